import functools
import hashlib
import http.server
import os
import threading
from dataclasses import replace

import pytest

from depl0.app.data import download, get, open_data
from depl0.app.data.cifar import CIFAR10
from depl0.errors import DataError, InputError
from tests.support.layouts import pack, write_cifar10

pytest.importorskip("pooch")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """Serve a small cifar10 archive, and count the requests."""
    site = tmp_path / "site"
    pack(write_cifar10(tmp_path / "source"), _made(site) / CIFAR10.archive)
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}/{CIFAR10.archive}", site / CIFAR10.archive
    web.shutdown()
    web.server_close()
    thread.join()


def _made(folder):
    folder.mkdir()
    return folder


def use(monkeypatch, url, md5):
    monkeypatch.setitem(download.DOWNLOADS, "cifar10", replace(download.DOWNLOADS["cifar10"], url=url, md5=md5))


@pytest.mark.parametrize("progress", [True, False])
def test_a_data_set_is_downloaded_and_unpacked(server, tmp_path, monkeypatch, capfd, progress):
    url, archive = server
    use(monkeypatch, url, hashlib.md5(archive.read_bytes()).hexdigest())
    folder = get("cifar10", tmp_path / "new" / "place", progress=progress)
    assert folder == tmp_path / "new" / "place" / "cifar-10-batches-bin"
    assert open_data(f"cifar10:{folder.parent}").info.test_size == 20
    captured = capfd.readouterr()
    assert captured.out == ""
    assert ("100" in captured.err or "cifar-10-binary.tar.gz" in captured.err) == progress

    use(monkeypatch, "http://127.0.0.1:9/gone", hashlib.md5(archive.read_bytes()).hexdigest())
    assert get("cifar10", folder.parent, progress=progress) == folder  # the files are there
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert get("cifar10", folder.parent, progress=progress) == folder  # the archive is there


def test_another_checksum_is_refused_and_nothing_is_kept(server, tmp_path, monkeypatch):
    use(monkeypatch, server[0], "0" * 32)
    with pytest.raises(DataError, match=r"does not have the known checksum \(md5 0{32}\); it was not kept"):
        get("cifar10", tmp_path / "place", progress=False)
    assert list((tmp_path / "place").iterdir()) == []


def test_a_page_that_is_not_there_is_named(server, tmp_path, monkeypatch):
    use(monkeypatch, server[0] + "x", "0" * 32)
    with pytest.raises(DataError, match="cifar10 cannot be downloaded: 404 Client Error"):
        get("cifar10", tmp_path, progress=False)


def test_offline_the_error_says_which_file_to_put_where(tmp_path, monkeypatch):
    use(monkeypatch, "http://127.0.0.1:9/cifar-10-binary.tar.gz", "0" * 32)
    with pytest.raises(
        DataError, match=r"the connection to 127\.0\.0\.1:9 failed .* Is this machine offline\?"
    ) as error:
        get("cifar10", tmp_path, progress=False)
    assert error.value.hint == (
        f"download http://127.0.0.1:9/cifar-10-binary.tar.gz where you can, put it at "
        f"{tmp_path / 'cifar-10-binary.tar.gz'}, and use --data cifar10:{tmp_path} (it will be unpacked)."
    )
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_folder_is_not_touched(tmp_path):
    folder = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataError, match="cifar-10-batches-bin is there already, but not complete"):
        get("cifar10", tmp_path)
    assert len(os.listdir(folder)) == 5


def test_only_known_data_sets_are_downloaded(tmp_path):
    with pytest.raises(
        InputError, match=r"must be one of cifar10, cifar100, got 'cifar-10' instead\.\nhint: did you mean"
    ):
        get("cifar-10", tmp_path)


def test_the_official_files_are_meant():
    assert {name: (known.url, known.md5) for name, known in download.DOWNLOADS.items()} == {
        "cifar10": ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar100": ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    }
