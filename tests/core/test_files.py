"""A file is replaced whole or not at all, and never through a link."""

import os

import numpy as np
import pytest

from monge.core.files import leaks, load_array, replacing


def test_a_file_takes_its_name_once_it_is_whole(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with replacing(path) as fresh:
        assert fresh.parent == tmp_path
        assert fresh.suffix == ".csv"
        fresh.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail():
        with replacing(path) as fresh, open(fresh, "w") as file:
            file.write("half of the ne")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"\[Errno 28\]") as caught:
        fail()
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_two_at_a_time_do_not_mix(tmp_path):
    path = tmp_path / "table.csv"
    with replacing(path) as first, replacing(path) as second:
        first.write_text("1")
        second.write_text("2")
    assert path.read_text() == "1"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_link_is_replaced_and_what_it_points_to_is_left(tmp_path):
    (tmp_path / "precious").write_text("old")
    path = tmp_path / "out.txt"
    path.symlink_to(tmp_path / "precious")
    with replacing(path) as fresh:
        fresh.write_text("new")
    assert (tmp_path / "precious").read_text() == "old"
    assert path.read_text() == "new"
    assert not path.is_symlink()


def test_a_pipe_is_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(path) as fresh:
        fresh.write_text("through")
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    assert path.is_fifo()


def test_links_out_of_a_folder_are_found(tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "running"
    (folder / "images").mkdir(parents=True)
    outside.mkdir()
    (folder / "file").write_text("")
    (folder / "images" / "inside").symlink_to("../file")
    assert list(leaks(folder)) == []
    links = {
        folder / "folder": outside,
        folder / "images" / "up": "../../running",
        folder / "images" / "gone": "/no/where",
    }
    for link, target in links.items():
        link.symlink_to(target)
    assert set(leaks(folder)) == set(links)
    (tmp_path / "alias").symlink_to(folder)  # a run folder may be a link itself
    assert len(list(leaks(tmp_path / "alias"))) == 3


def test_an_array_is_read_and_anything_else_is_a_value_error(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4.0))
    assert load_array(tmp_path / "a.npy", "r").tolist() == [0, 1, 2, 3]
    body = (tmp_path / "a.npy").read_bytes()
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    np.savez(tmp_path / "several.npz", x=np.arange(3))
    (tmp_path / "header.npy").write_bytes(body.replace(b"}", b"{", 1))  # numpy: TokenError
    (tmp_path / "cut.npy").write_bytes(body[:-8])
    for name in ("objects.npy", "several.npz", "header.npy", "cut.npy"):
        with pytest.raises(ValueError, match=name):
            load_array(tmp_path / name)
