import gzip
import io
import os
import tarfile
import tracemalloc

import pytest

from depl0.app.data import open_data
from depl0.app.data.archive import unpack
from depl0.errors import DataError
from tests.support.layouts import pack, write_cifar10


def entry(name, content=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def write_archive(path, *entries, form=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w:gz", format=form) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


GOOD = entry("data/good.bin")
PLAIN = {"type": tarfile.REGTYPE}


def left_over(folder, archive):
    return sorted(path for path in folder.rglob("*") if path != archive)


def test_a_good_archive_is_unpacked_next_to_it(tmp_path):
    folder = unpack(write_archive(tmp_path / "a.tar.gz", GOOD, entry("data/more/x.bin", b"abc")), "data")
    assert folder == tmp_path / "data"
    assert (folder / "more/x.bin").read_bytes() == b"abc"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "data"]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (entry("../evil"), "'../evil' in it would be written outside of its folder"),
        (entry("data/../../evil"), "'data/../../evil' in it would be written outside"),
        (entry("/tmp/evil"), "'/tmp/evil' in it would be written outside"),
        (entry("..\\evil"), "would be written outside"),
        (entry("C:evil"), "would be written outside"),
        (entry("data/link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "is neither a plain file nor a folder"),
        (entry("data/link", b"", type=tarfile.SYMTYPE, linkname="good.bin"), "is neither a plain file nor a folder"),
        (entry("data/link", b"", type=tarfile.LNKTYPE, linkname="data/good.bin"), "is neither a plain file nor a"),
        (entry("data/pipe", b"", type=tarfile.FIFOTYPE), "is neither a plain file nor a folder"),
        (entry("data/disk", b"", type=tarfile.BLKTYPE), "is neither a plain file nor a folder"),
        (entry("data/tty", b"", type=tarfile.CHRTYPE), "is neither a plain file nor a folder"),
    ],
)
def test_bad_members_are_refused_and_nothing_is_left(tmp_path, bad, text):
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = write_archive(inner / "a.tar.gz", GOOD, bad)
    with pytest.raises(DataError, match=r"a\.tar\.gz is not unpacked: ") as error:
        unpack(archive, "data")
    assert text in error.value.message
    assert left_over(tmp_path, archive) == [inner]


@pytest.mark.parametrize(
    ("entries", "limits", "text"),
    [
        ([entry(f"data/{number}") for number in range(11)], {"max_members": 10}, "holds more than 10 files"),
        ([entry("data/big", bytes(50_000))], {"max_bytes": 40_000}, "would have 50,000 bytes, more than the 40,000"),
        (
            [entry(f"data/{number}", bytes(3000)) for number in range(20)],
            {"max_bytes": 40_000},
            "it becomes larger than the 40,000 bytes allowed",
        ),
    ],
)
def test_bombs_are_refused_and_nothing_is_left(tmp_path, entries, limits, text):
    archive = write_archive(tmp_path / "a.tar.gz", *entries)
    with pytest.raises(DataError) as error:
        unpack(archive, "data", **limits)
    assert text in error.value.message
    assert left_over(tmp_path, archive) == []


def test_a_header_cannot_be_a_bomb(tmp_path):
    info, content = entry("data/x")
    info.pax_headers = {"comment": "x" * 3_000_000}
    archive = write_archive(tmp_path / "a.tar.gz", (info, content), form=tarfile.PAX_FORMAT)
    with pytest.raises(DataError, match="has more than 65,536 bytes"):
        unpack(archive, "data", max_bytes=1_000_000)


def test_a_sparse_file_cannot_be_a_bomb(tmp_path):
    info, content = entry("data/x")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "9999999", "GNU.sparse.name": "data/x"}
    archive = write_archive(tmp_path / "a.tar.gz", (info, content), form=tarfile.PAX_FORMAT)
    with pytest.raises(DataError, match="is neither a plain file nor a folder"):
        unpack(archive, "data")


@pytest.mark.parametrize("keep", [0, 5, 200, -300])
def test_a_damaged_archive_leaves_nothing(tmp_path, keep):
    archive = write_archive(tmp_path / "a.tar.gz", GOOD, entry("data/noise", os.urandom(5000)))
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged or an incomplete copy: "):
        unpack(archive, "data")
    assert left_over(tmp_path, archive) == []


@pytest.mark.parametrize(
    "content", [b"<html>not found</html>", gzip.compress(b"no tar at all", mtime=0)], ids=["page", "gzip"]
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged or an incomplete copy: "):
        unpack(archive, "data")


def test_an_archive_of_something_else_is_refused(tmp_path):
    archive = write_archive(tmp_path / "a.tar.gz", entry("other/x"))
    with pytest.raises(DataError, match="must hold a folder called data, but does not"):
        unpack(archive, "data")
    assert left_over(tmp_path, archive) == []


def test_a_folder_that_another_process_unpacked_meanwhile_is_kept(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/theirs").write_text("theirs")
    folder = unpack(write_archive(tmp_path / "a.tar.gz", GOOD), "data")
    assert [path.name for path in folder.iterdir()] == ["theirs"]


def test_a_damaged_cifar_archive_is_named(tmp_path):
    archive = pack(write_cifar10(tmp_path / "source"), tmp_path / "cifar-10-binary.tar.gz")
    os.truncate(archive, 100_000)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is damaged or an incomplete copy"):
        open_data(f"cifar10:{tmp_path}")


def described(kind, size, content=b""):
    """A header that announces so many bytes of description, and the first of them."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT) + content


def refuse_early(path):
    """Return the bytes that it took."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"the description of a file in it has more than 65,536 bytes"):
            unpack(path, "data")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK], ids=repr
)
def test_a_large_description_is_refused_before_it_is_read(tmp_path, kind):
    """900 MB of zeros in less than a megabyte."""
    path, piece = tmp_path / "a.tar.gz", bytes(10_000_000)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(described(kind, 900_000_000, b"900000000 path="))
        for _ in range(3):  # as many as are read before the limit, and more
            file.write(piece)
    assert refuse_early(path) < 5_000_000
    assert left_over(tmp_path, path) == []


def test_descriptions_of_descriptions_are_counted_together(tmp_path):
    path = tmp_path / "a.tar.gz"
    one = described(tarfile.XGLTYPE, 11, b"11 a=bcdef\n".ljust(512, b"\0"))
    path.write_bytes(gzip.compress(one * 5000 + bytes(1024)))
    refuse_early(path)


def test_a_map_of_holes_without_end_is_refused(tmp_path):
    info = tarfile.TarInfo("data/x")
    info.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    head[482] = 1  # more of the map follows
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    more = bytearray(512)
    more[504] = 1
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(bytes(head) + bytes(more) * 20_000))
    refuse_early(path)


def test_long_names_within_reason_are_read(tmp_path):
    name = "data/" + "n" * 200
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        folder = tmp_path / str(form)
        folder.mkdir()
        entries = [entry(f"{name}{number}") for number in range(100)]
        assert len(list(unpack(write_archive(folder / "a.tar.gz", *entries, form=form), "data").iterdir())) == 100
