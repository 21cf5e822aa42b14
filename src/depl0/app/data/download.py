"""Download CIFAR from its own site, with a known checksum."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from depl0._util.optional import require
from depl0._util.registry import did_you_mean
from depl0.app.data.archive import unpack
from depl0.app.data.cifar import CIFAR10, CIFAR100, Layout
from depl0.errors import DownloadError, InputError

TIMEOUT = 30  # seconds without any answer


@final
@dataclass(frozen=True)
class Download:
    """Where a data set is, and what its archive's checksum is."""

    url: str
    md5: str
    layout: Layout


DOWNLOADS: dict[str, Download] = {
    "cifar10": Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", CIFAR10
    ),
    "cifar100": Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", CIFAR100
    ),
}


def get(name: str, directory: str | Path, progress: bool = True) -> Path:
    """Download and unpack a data set into a folder, and give the folder of its files.

    What is there already is not downloaded again: neither the files nor an archive with the right checksum.
    """
    if name not in DOWNLOADS:
        raise InputError(
            f"The data set to download must be one of {', '.join(DOWNLOADS)}, got {name!r} instead.",
            hint=did_you_mean(name, DOWNLOADS),
        )
    download = DOWNLOADS[name]
    layout = download.layout
    folder = Path(directory).expanduser()
    unpacked = folder / layout.folder
    if all((unpacked / file).is_file() for file in layout.files):
        return unpacked
    if unpacked.exists():
        raise DownloadError(
            f"{unpacked} is there already, but not complete.", hint="move it out of the way, then try again."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"{folder} cannot be made: {error.strerror or error}.") from error
    return unpack(_fetch(name, download, folder, progress), layout.folder)


def _fetch(name: str, download: Download, folder: Path, progress: bool) -> Path:
    pooch = require("pooch", "pooch", "to download data")
    requests = require("requests", "requests", "to download data")
    archive = folder / download.layout.archive
    by_hand = (
        f"download {download.url} where you can, put it at {archive}, and use --data {name}:{folder} "
        "(it will be unpacked)."
    )
    try:
        with _bar(archive.name, progress) as bar, _quiet(pooch.get_logger()):
            pooch.retrieve(
                download.url,
                known_hash=f"md5:{download.md5}",
                fname=archive.name,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT),
            )
    except requests.exceptions.HTTPError as error:
        raise DownloadError(f"{name} cannot be downloaded: {error}.", hint=by_hand) from error
    except requests.exceptions.RequestException as error:
        host = urlsplit(download.url).netloc
        raise DownloadError(
            f"{name} cannot be downloaded: the connection to {host} failed ({type(error).__name__}). "
            "Is this machine offline?",
            hint=by_hand,
        ) from error
    except ValueError as error:  # pooch: another checksum
        raise DownloadError(
            f"{download.url} gave a file that does not have the known checksum (md5 {download.md5}); it was not kept.",
            hint=f"try again later, or {by_hand}",
        ) from error
    except OSError as error:
        raise DownloadError(f"{archive} cannot be written: {error.strerror or error}.") from error
    return archive


@contextlib.contextmanager
def _bar(title: str, progress: bool) -> Iterator[Any]:
    """Show a progress bar on stderr, in the form that pooch wants it."""
    if not progress:
        yield False
        return
    rich = require("rich.progress", "rich", "to show the progress of a download")
    console = require("rich.console", "rich", "to show the progress of a download").Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console) as display:
        yield _Bar(display, display.add_task(title, total=None, visible=False))


@final
class _Bar:
    """What pooch calls while it downloads."""

    def __init__(self, display: Any, task: Any) -> None:
        self._display = display
        self._task = task
        self.total = 0

    def update(self, received: int) -> None:
        """Move on by so many bytes."""
        self._display.update(self._task, total=self.total or None, advance=received, visible=True)

    def reset(self) -> None:
        """Go back to the start: pooch counts whole chunks on the way, and the true size at the end."""
        self._display.update(self._task, completed=0)

    def close(self) -> None:
        """Do nothing: the display is closed by who opened it."""


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch's own log lines, which would run through the progress bar, to warnings."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
