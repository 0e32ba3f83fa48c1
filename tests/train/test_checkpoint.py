"""A checkpoint is there whole or not at all, and runs no code."""

import errno
import itertools
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from monge.core.errors import RunError
from monge.run.storage import Log, locked
from monge.train import checkpoint


def save_on(path):
    """Save again and again, each time other numbers."""
    for k in itertools.count(1):
        checkpoint.save(path, {"x": torch.from_numpy(np.full(100_000, float(k)))}, {"step": k})


def test_round_trip_with_tied_weights(tmp_path):
    x, y = torch.randn(3, 4), torch.arange(5)
    checkpoint.save(tmp_path / "c", {"x": x, "tied": x, "y": y, "t": x.T}, {"step": 3, "b": None})
    tensors, about = checkpoint.load(tmp_path / "c")
    assert about == {"step": 3, "b": None} == checkpoint.about(tmp_path / "c")
    for name, value in {"x": x, "tied": x, "y": y, "t": x.T}.items():
        assert torch.equal(tensors[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o644  # others may read a shared run


def test_killed_while_saving_leaves_a_whole_file(tmp_path):
    path = tmp_path / "last.safetensors"
    process = multiprocessing.get_context("fork").Process
    for part in range(5):
        saver = process(target=save_on, args=(path,))
        path.unlink(missing_ok=True)
        saver.start()
        while not path.exists():
            time.sleep(0.002)
        time.sleep(0.02 + part * 0.007)
        saver.kill()
        saver.join()
        tensors, about = checkpoint.load(path)
        assert (tensors["x"] == about["step"]).all()


TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def test_every_bit_of_a_checkpoint_counts(tmp_path):
    """Tensors of every type, a scalar and an empty one among them, and the counters."""
    tensors = {str(dtype): torch.tensor([1, 0, 1]).to(dtype) for dtype in TYPES}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "t": torch.randn(4, 5).T}
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, tensors, {"step": 7})
    found, _ = checkpoint.load(path)
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for place in range(begin, len(whole)):
        for bit in (1, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with pytest.raises(RunError, match="crc32_tensors"):
                checkpoint.load(path)
    path.write_bytes(whole.replace(b'\\"step\\": 7', b'\\"step\\": 3'))
    for reading in (checkpoint.load, checkpoint.about):
        with pytest.raises(RunError, match="crc32_counters"):
            reading(path)


def test_a_checkpoint_without_checksums_is_refused(tmp_path):
    path = tmp_path / "last.safetensors"
    save_file({"x": torch.zeros(3)}, path, {"about": "{}", "alias": "{}"})
    for reading in (checkpoint.load, checkpoint.about):
        with pytest.raises(RunError, match=r"last\.safetensors.*crc32_counters"):
            reading(path)


@pytest.mark.parametrize("spoil", ["cut", "foreign", "pickle", "empty", "header"])
def test_a_spoilt_file_is_refused_and_runs_nothing(tmp_path, spoil):
    path, trap = tmp_path / "last.safetensors", tmp_path / "trap"
    checkpoint.save(path, {"x": torch.zeros(1000)}, {"step": 1})
    whole = path.read_bytes()

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trap),)

    path.write_bytes(
        {
            "cut": whole[:-100],
            "foreign": b"not a checkpoint" * 50,
            "empty": b"",
            "pickle": pickle.dumps(Trap()),
            "header": whole.replace(b"about", b"abuot", 1),
        }[spoil]
    )
    with pytest.raises(RunError, match=r"last\.safetensors"):
        checkpoint.load(path)
    with pytest.raises(RunError, match=r"last\.safetensors"):
        checkpoint.about(path)
    assert not trap.exists()


def test_a_missing_file_and_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match=re.escape(str(tmp_path / "none"))):
        checkpoint.load(tmp_path / "none")
    with pytest.raises(RunError, match=re.escape(str(tmp_path / "no" / "where"))):
        checkpoint.save(tmp_path / "no" / "where", {"x": torch.zeros(1)}, {})


def test_no_space_left_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    checkpoint.save(path, {"x": torch.zeros(3)}, {"step": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match=r"\[Errno 28\]"):
        checkpoint.save(path, {"x": torch.ones(3)}, {"step": 2})
    assert checkpoint.about(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


HOLD = """
import sys, time
from pathlib import Path
from monge.run.storage import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_two_processes_cannot_hold_one_folder(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path), "0"]
    with locked(tmp_path):
        other = subprocess.run(command, capture_output=True, text=True)
        assert str(tmp_path) in other.stderr.splitlines()[-1]
        with pytest.raises(RunError, match=re.escape(str(tmp_path))), locked(tmp_path):
            pass  # nor can the same process hold it twice
    assert subprocess.run(command).returncode == 0


def test_a_killed_process_leaves_no_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError), locked(tmp_path):
            pass
        other.kill()
    assert (tmp_path / ".lock").exists()
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_locked_is_an_error(tmp_path, monkeypatch):
    """A soft lock in its place would outlive a killed process."""
    with pytest.raises(RunError, match="absent"), locked(tmp_path / "absent"):
        pass

    def unsupported(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", unsupported)
    with pytest.raises(RunError, match="Function not implemented"), locked(tmp_path):
        pass


def record(step):
    return {"step": step, "epoch": 1.0, "seconds": 0.5, "terms": {}, "norms": {}, "held_out": None}


def test_the_log_is_cut_and_forgives_a_torn_line(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    assert list(log) == []
    for step in (1, 2, 3):
        log.add(record(step))
    with open(log.path, "a") as file:
        file.write('{"step": 4, "te')
    assert [r["step"] for r in log] == [1, 2, 3]
    log.cut(2)
    assert [r["step"] for r in log] == [1, 2]
    log.add(record(3))
    assert [r["step"] for r in log] == [1, 2, 3]
