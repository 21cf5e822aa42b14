"""Download CIFAR from its own site, check it against a known checksum and unpack it."""

from __future__ import annotations

from pathlib import Path

from depl0._util.optional import require
from depl0._util.registry import unknown
from depl0.app.data.readers import CIFAR10, CIFAR100
from depl0.errors import DownloadError

TIMEOUT = 30  # seconds without any answer
SITE = "https://www.cs.toronto.edu/~kriz"
ARCHIVES = {
    "cifar10": (CIFAR10, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": (CIFAR100, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
"""files, archive and its MD5 checksum"""


def download(name: str, directory: str | Path) -> Path:
    """Download and unpack a data set into a folder; return the folder of its files.

    Nothing is downloaded again: neither the files nor an archive with the right checksum. Only an archive with the
    right checksum is unpacked.
    """
    if name not in ARCHIVES:
        raise unknown("data set to download", name, ARCHIVES)
    files, archive, checksum = ARCHIVES[name]
    folder = Path(directory).expanduser()
    if all((folder / files.folder / file).is_file() for file in files.files):
        return folder / files.folder
    pooch = require("pooch", "pooch", "to download data")
    url = f"{SITE}/{archive}"
    hint = f"download {url} where you can, put it at {folder / archive}, and repeat this command: it unpacks the file."
    try:
        pooch.retrieve(
            url,
            known_hash=f"md5:{checksum}",
            fname=archive,
            path=folder,
            downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
            processor=pooch.Untar(extract_dir="."),
        )
    except ValueError as error:  # pooch: another checksum
        raise DownloadError(f"{url} gave a file without the known checksum (md5 {checksum}).", hint=hint) from error
    except OSError as error:  # no connection, a full disk; errors of requests are OSErrors too
        raise DownloadError(f"{name} cannot be downloaded: {error}.", hint=hint) from error
    return folder / files.folder
