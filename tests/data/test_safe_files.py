"""What files may hold: plain files that memory holds, measured before they are unpacked."""

import gzip
import os
import signal
import socket
import tracemalloc
import zipfile
from contextlib import closing, contextmanager

import numpy as np
import pytest
from PIL import Image

from monge.core.errors import DataError
from monge.data import loading as data
from monge.data.readers import base

MEGABYTE = 1 << 20


@pytest.fixture
def small_memory(monkeypatch):
    """A machine with 40 MB left, of which unpacked content may fill 10."""
    monkeypatch.setattr(base, "available", lambda: 40 * MEGABYTE)


@contextmanager
def deadline(seconds=20):
    """Reading that hangs is a failure. The error is none that a reader would catch."""

    def late(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def packed(path, megabytes, members=1):
    """A small .gz that unpacks to so much, in one or several members."""
    member = gzip.compress(b"\0" * (megabytes * MEGABYTE // members))
    path.write_bytes(member * members)
    return path


@pytest.mark.parametrize("members", [1, 20])
@pytest.mark.parametrize("name", ["a.csv.gz", "a.txt.gz", "a.tsv.gz", "a-idx3-ubyte.gz"])
def test_a_gz_bomb_is_refused_before_it_is_unpacked(tmp_path, small_memory, name, members):
    path = packed(tmp_path / name, 200, members)
    assert path.stat().st_size < MEGABYTE
    data.open("moons")  # what is imported on first use is none of the content
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"{name} unpacks to more than 0.0105 GB"):
            data.open(path)
        assert tracemalloc.get_traced_memory()[1] < 30 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_gz_bomb_in_a_folder_of_indices_or_sentences_is_refused(tmp_path, small_memory):
    for name in ("train.de.gz", "train.en.gz"):
        packed(tmp_path / name, 40)
    with pytest.raises(DataError, match="unpacks to more"):
        data.open(tmp_path)


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_npz_bomb_is_refused_before_it_is_unpacked(tmp_path, small_memory, name, compression):
    path = tmp_path / name
    np.save(tmp_path / "part.npy", np.zeros(6 * MEGABYTE, np.uint8))
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member in ("x.npy", "y.npy"):  # one alone would do
            archive.write(tmp_path / "part.npy", member)
    with pytest.raises(DataError, match=rf"{name} unpacks to more than 0.0105 GB"):
        data.open(path)


def test_what_fits_is_read_as_it_was(tmp_path, small_memory):
    rows = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", x=rows)
    assert np.array_equal(data.open(tmp_path / "a.npz").tensors["x"].numpy(), rows)
    text = "a,b\n" + "".join(f"{a},{b}\n" for a, b, _ in rows)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert len(data.open(tmp_path / "b.csv.gz")) == 400
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"some words of a text. " * 400))
    assert data.open(tmp_path / "c.txt.gz", "context=32").fields["text"].space.kind == "tokens"


def test_a_plain_file_may_fill_the_memory_and_no_more(tmp_path, small_memory, monkeypatch):
    monkeypatch.setattr(base, "ALWAYS_FITS", 0)
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(41 * MEGABYTE)  # a hole, which takes no place on the disk
    with pytest.raises(DataError, match=r"a.csv .* 0.0419 GB"):
        data.open(path)
    np.save(tmp_path / "b.npy", np.zeros((300, 5_000)))
    assert len(data.open(tmp_path / "b.npy")) == 300  # 12 MB that are not packed


def test_broken_archives_get_one_sentence(tmp_path, small_memory):
    whole = gzip.compress(np.random.default_rng(0).bytes(MEGABYTE))
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"cut.csv.gz"):
        data.open(tmp_path / "cut.csv.gz")
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(9000))
    body = bytearray((tmp_path / "a.npz").read_bytes())
    body[200:400] = bytes(200)
    (tmp_path / "a.npz").write_bytes(bytes(body))
    with pytest.raises(DataError, match=r"a.npz .*numpy.save"):
        data.open(tmp_path / "a.npz")


def test_a_shape_beyond_memory_is_one_sentence(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(1000, np.uint8))
    body = (tmp_path / "a.npy").read_bytes()
    huge = body.replace(b"'shape': (1000,), }          ", b"'shape': (1000000000000000,), }")
    assert huge != body
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", huge)
    with pytest.raises(DataError, match=r"a.npz"):
        data.open(tmp_path / "a.npz")


def test_idx_headers_that_lie_get_one_sentence(tmp_path):
    for name, axes, shape in (("a.idx", 5, b"\xff" * 20), ("b.idx", 99, b"\0\0\0\1" * 99)):
        (tmp_path / name).write_bytes(bytes([0, 0, 8, axes]) + shape + b"\0")
        with pytest.raises(DataError, match=rf"{name} cannot be read as idx"):
            data.open(tmp_path / name)


def odd(kind, path):
    """Something at a path that is neither a file nor a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(str(path))
    else:
        path.symlink_to({"device": "/dev/zero", "nothing": "missing"}[kind])


@pytest.mark.parametrize(
    ("kind", "found"),
    [("pipe", "a named pipe"), ("device", "a character device"), ("socket", "a socket")],
)
@pytest.mark.parametrize(
    "name", ["a.csv", "a.txt", "a.npz", "a.png", "a.wav", "a.idx", "a.tsv.gz"]
)
def test_pipes_and_devices_are_refused(tmp_path, monkeypatch, kind, found, name):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    odd(kind, tmp_path / name if kind != "socket" else type(tmp_path)(name))
    with deadline(), pytest.raises(DataError, match=found):
        data.open(tmp_path / name)


@pytest.mark.parametrize("kind", ["pipe", "device", "nothing"])
@pytest.mark.parametrize("name", ["b.csv", "c/b.png", "c/b.wav"])
def test_a_folder_that_holds_such_a_thing_is_refused(tmp_path, kind, name):
    if name == "b.csv":
        (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n2,3\n" * 20)
    elif name == "c/b.png":
        (tmp_path / "c").mkdir()
        for i in range(8):
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "c" / f"{i}.png")
    odd(kind, tmp_path / name)
    with deadline(), pytest.raises(DataError, match=rf"{name}, found a"):
        data.open(tmp_path)


def test_a_table_beside_numbers_reads_no_pipe(tmp_path):
    (tmp_path / "data.txt").write_text("1 2\n3 4\n" * 20)
    (tmp_path / "index_target.txt").write_text("1\n")
    os.mkfifo(tmp_path / "index_features.txt")
    with deadline(), pytest.raises(DataError, match=r"index_features.txt, found a named pipe"):
        data.open(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "x" * 300 + "~y", "x" * 300 + ",y"])
def test_a_name_that_no_file_can_have_is_no_data(name):
    with pytest.raises(DataError, match="there is no data"):
        data.open(name)


def test_the_memory_that_is_available_is_plausible():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert MEGABYTE < base.available() <= whole
