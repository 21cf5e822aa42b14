import functools
import hashlib
import http.server
import sys
import threading

import pytest

from depl0.app.data import open_data
from depl0.app.data.download import download as download_data
from depl0.app.data.readers import CIFAR10
from depl0.errors import DataError, InputError
from tests.support.layouts import pack, write_cifar10

pytest.importorskip("pooch")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path):
    """Serve a small cifar10 archive; return the site and the archive's checksum."""
    (tmp_path / "site").mkdir()
    archive = pack(write_cifar10(tmp_path / "source"), tmp_path / "site" / "c.tar.gz")
    handler = functools.partial(Quiet, directory=archive.parent)
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}", hashlib.md5(archive.read_bytes()).hexdigest()
    web.shutdown()
    web.server_close()
    thread.join()


def use(monkeypatch, site, checksum, archive="c.tar.gz"):
    module = sys.modules["depl0.app.data.download"]
    monkeypatch.setattr(module, "SITE", site)
    monkeypatch.setitem(module.ARCHIVES, "cifar10", (CIFAR10, archive, checksum))


def test_an_archive_is_downloaded_and_unpacked_once(server, tmp_path, monkeypatch, capfd):
    use(monkeypatch, *server)
    folder = download_data("cifar10", tmp_path / "new" / "place")
    assert folder == tmp_path / "new" / "place" / "cifar-10-batches-bin"
    assert open_data(f"cifar10:{folder.parent}").info.test_size == 20
    assert capfd.readouterr().out == ""
    use(monkeypatch, "http://127.0.0.1:9/nowhere", server[1])
    assert download_data("cifar10", folder.parent) == folder  # the files are there
    (folder / "test_batch.bin").unlink()
    assert download_data("cifar10", folder.parent) == folder  # the archive is there
    assert open_data(f"cifar10:{folder}").info.test_size == 20


def test_an_archive_with_another_checksum_is_not_unpacked(server, tmp_path, monkeypatch):
    use(monkeypatch, server[0], "0" * 32)
    with pytest.raises(DataError, match=r"gave a file without the known checksum \(md5 0{32}\)"):
        download_data("cifar10", tmp_path / "place")
    assert not list((tmp_path / "place").iterdir())


def test_without_a_connection_the_hint_names_the_file_and_its_place(server, tmp_path, monkeypatch):
    use(monkeypatch, *server, archive="missing.tar.gz")
    with pytest.raises(DataError, match="cifar10 cannot be downloaded: 404 Client Error"):
        download_data("cifar10", tmp_path)
    use(monkeypatch, "http://127.0.0.1:9", "0" * 32)
    with pytest.raises(DataError, match="cifar10 cannot be downloaded: ") as error:
        download_data("cifar10", tmp_path)
    assert f"download http://127.0.0.1:9/c.tar.gz where you can, put it at {tmp_path / 'c.tar.gz'}" in error.value.hint


def test_only_known_data_sets_are_downloaded(tmp_path):
    with pytest.raises(InputError, match=r"must be one of 'cifar10', 'cifar100', got 'cifar-10' .*\nhint: did you"):
        download_data("cifar-10", tmp_path)
