"""One fit by two processes: throughput, weights that are cut over them, workers that are killed.

    python -m benchmarks.scale_training throughput [--rounds 3] [--steps 60] [--batch 512]
    python -m benchmarks.scale_training shard
    python -m benchmarks.scale_training kills [--kills 20]
    python -m benchmarks.scale_training searches [--kills 20]

`throughput` trains a masked network of two million weights with the same global batch in one
process of one thread and in two, alternately, and prints the ratio of wall times and of the CPU
time that the first process needs: on a busy machine only the second is fair. Beside it stands the
ratio of two such processes that each train alone: cores share memory and clock. `shard` trains an
encoder-decoder of fifty million weights on short sentences, with and without --shard, and prints
the most memory that a process takes beyond what it had before it built the model. `kills` starts a
fit under torchrun with two workers, kills a worker at a random moment again and again, checks that
the run folder can be read after each, and compares the weights with those of an unbroken fit by
two workers. `searches` kills a search of settings at random moments, and checks that its journal
can be read and that no trial is lost.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from monge import registry
from monge.comparison import tuning
from monge.core.batch import Batch
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.run.run import load
from monge.train import checkpoint, distributed
from monge.train.trainer import Trainer

from .sides import InMemoryRows

WIDTH, ROWS = 1024, 4096
VOCABULARY = 8000
LONGEST_LIFE = 6.0
"""Seconds of training after which a worker is killed at the latest; the first checkpoint is after
2, the second after 4."""
STEPS_PER_KILL = 600
FIT = ("-m", "monge", "fit", "made", "iris", "width=256", "train.patience=0", "-q")


def make_trainer(workers: distributed.Workers, batch: int) -> Trainer:
    torch.manual_seed(0)
    x = (torch.rand(ROWS, 784) < 0.3).float()
    space = Space(kind="binary", shape=(784,), mean=(0.3,), rows=ROWS)
    model = registry.find("autoregressive.made").Config(width=WIDTH).build(space)
    config = TrainConfig(batch_size=batch, shards=2, warmup=0)
    return Trainer(model, InMemoryRows(x), config, workers=workers)


def time_steps(steps: int, batch: int) -> None:
    """Print the wall and the CPU time of some steps, in the first process."""
    torch.set_num_threads(1)
    workers = distributed.join_workers()
    trainer = make_trainer(workers, batch)
    for _ in range(3):
        trainer.train_step(1.0)
    workers.barrier()
    wall, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainer.train_step(1.0)
    if workers.is_first:
        print(time.perf_counter() - wall, time.process_time() - busy)


def throughput(rounds: int, steps: int, batch: int) -> None:
    command = [sys.executable, "-m", "benchmarks.scale_training", "steps", "--steps", str(steps)]
    command += ["--batch", str(batch)]
    times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    apart: list[float] = []
    for _ in range(rounds):
        for count, found in times.items():
            wall, busy = map(float, output_of(command, count).split())
            found.append((wall, busy))
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        apart += [float(job.communicate()[0].split()[0]) for job in both]
    for place, name in enumerate(("wall", "CPU of the first process")):
        one, two = (statistics.median(each[place] for each in times[count]) for count in (1, 2))
        ratio = f"one {one:.2f} s, two {two:.2f} s, ratio {one / two:.2f}"
        print(f"{steps} steps of {batch} rows, {name}: {ratio} (goal 1.60)")
    one = statistics.median(wall for wall, _ in times[1])
    most = 2 * one / statistics.median(apart)
    print(f"two processes that have nothing to do with one another: {most:.2f}, the most there is")


class SentencePairs:
    """Pairs of sentences of eight random symbols."""

    lengths = None

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randint(0, size - 1, (64, 2, 8), generator=generator)
        self.x[:, 0, -1] = size - 1  # the symbol that ends a sentence

    def __len__(self) -> int:
        return len(self.x)

    @property
    def row_bytes(self) -> int:
        return self.x[0].numel() * self.x.element_size()

    def batch(self, index: torch.Tensor, train: bool = False) -> Batch:
        target, source = self.x[index].unbind(1)
        length = torch.full((len(index),), 8)
        given = {"source": Batch(source, length=length)}
        return Batch(target, given, length=length, row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))


def sentence_space(size: int) -> Space:
    def tokens(name: str, symbols: int, **rest: Any) -> Space:
        kind = {"kind": "tokens", "shape": (8,), "varies": True, "rows": 64}
        return Space(**kind, size=symbols, name=name, **rest)

    source = tokens("source", size - 1)
    return tokens("target", size, end=size - 1, given={"source": source})


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_memory(shard: bool, steps: int) -> None:
    """Print the weights, their bytes, and the most bytes that the first process took, also while
    it wrote a checkpoint."""
    torch.set_num_threads(1)
    workers = distributed.join_workers()
    space, rows = sentence_space(VOCABULARY), SentencePairs(VOCABULARY)
    import_sharding = importlib.import_module("monge.train.sharding")
    before = resident()
    config = registry.find("sequence.transformer").Config()
    net = config.override("net.width=512", "net.depth=6", "net.heads=8")
    torch.manual_seed(0)
    settings = TrainConfig(batch_size=4, shards=2, warmup=0, eval_every=1)
    trainer = Trainer(net.build(space), rows, settings, workers=workers, shard=shard)
    count = sum(param.numel() for param in trainer.model.parameters())
    most = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(steps):
        trainer.train_step(1.0)
    trained = most - before
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.safetensors"
        if trainer.sharded:
            whole = import_sharding.read_whole
            checkpoint.save_in_turn(path, *trainer.state(), whole, workers.is_first)
        elif workers.is_first:
            checkpoint.save(path, *trainer.state())
    done.set()
    watcher.join()
    if workers.is_first:
        largest = trainer.sharded.largest_unit if trainer.sharded else count
        print(count, 4 * count, trained, most - before, largest)


def shard(steps: int) -> None:
    command = [sys.executable, "-m", "benchmarks.scale_training", "memory"]
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # else glibc keeps what is freed
    found = {}
    for name, words in {
        "whole": ["--steps", str(steps)],
        "cut": ["--steps", str(steps), "--shard"],
    }.items():
        found[name] = [int(float(each)) for each in output_of([*command, *words], 2).split()]
    for name, (count, size, trained, saved, largest) in found.items():
        print(
            f"{name}: {count} weights of {size / 2**20:.0f} MB, training {trained / 2**20:.0f} MB "
            f"({trained / size:.2f} times the weights), with a checkpoint {saved / 2**20:.0f} MB; "
            f"{largest} weights at a time"
        )
    for place, name in ((2, "training"), (3, "with a checkpoint")):
        ratio = found["cut"][place] / found["whole"][place]
        print(f"peak memory of parameters, {name}: ratio {ratio:.2f} (goal at most 0.60)")


def output_of(command: list[str], count: int) -> str:
    """What a command prints that runs as so many processes."""
    with tempfile.TemporaryFile("w+") as out:
        saved = os.dup(1)
        os.dup2(out.fileno(), 1)
        try:
            if count == 1:
                subprocess.run(command, check=True)
            else:
                assert distributed.launch(command, count, 1) == 0
        finally:
            os.dup2(saved, 1)
        out.seek(0)
        return out.read()


def kills(count: int) -> None:
    folder = Path(tempfile.mkdtemp())
    words = (*FIT, "--budget", f"{STEPS_PER_KILL * count}steps")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [sys.executable, *torchrun, "--max-restarts", str(count + 1), *words]
    command += ["--out", str(folder / "broken")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(folder / "torchrun.log", "w") as log:
        job = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        killed = unreadable = lost = step = 0
        known: set[int] = set()
        while killed < count and job.poll() is None:
            workers = [pid for pid in children(job.pid) if pid not in known]
            if len(workers) < 2 or not has_begun(folder / "broken", workers[0]):
                time.sleep(0.1)
                continue
            time.sleep(random.uniform(0, LONGEST_LIFE))
            victim = random.choice(workers)
            if job.poll() is None and victim in children(job.pid):
                os.kill(victim, signal.SIGKILL)
                killed, known = killed + 1, known | set(workers)
                unreadable += not is_readable(folder / "broken")
                before, step = step, step_of(folder / "broken")
                lost += step < before
                print(f"kill {killed} ({victim}), checkpoint of step {step}", flush=True)
        code = job.wait()
    print(f"killed {killed} times of {count}, code {code}")
    print(
        f"unreadable folders: {unreadable} (goal 0); checkpoints that went back: {lost} (goal 0)"
    )
    whole = [sys.executable, *words, "--workers", "2", "--out", str(folder / "whole")]
    subprocess.run(whole, check=True, env=environment, stdout=subprocess.DEVNULL)
    broken, unbroken = (
        checkpoint.load(folder / name / "last.safetensors")[0] for name in ("broken", "whole")
    )
    gap = max(float((broken[key].double() - unbroken[key].double()).abs().max()) for key in broken)
    print(f"largest difference of any tensor to the unbroken fit: {gap:g} (goal 0)")


def searches(count: int) -> None:
    """Kill `monge tune` at random moments, and start the same command again."""
    folder = Path(tempfile.mkdtemp()) / "search"
    command = [sys.executable, "-m", "monge", "tune", "made", "iris", "width=8..64", "-q"]
    command += ["--trials", str(50 * count), "--budget", "20steps", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = damaged = lost = ended = 0
    while killed < count:
        job = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        size = journal_size(folder)
        while job.poll() is None and journal_size(folder) == size:  # until it is searching
            time.sleep(0.02)
        time.sleep(random.uniform(0, LONGEST_LIFE))
        job.kill()
        if job.wait() == 0:
            break
        killed += 1
        try:
            trials = finished_trials(folder)
        except Exception as error:
            print(error)
            damaged += 1
            continue
        lost, ended = lost + (trials < ended), trials
        print(f"kill {killed}: {trials} trials ended", flush=True)
    print(f"killed {killed} times of {count}")
    print(f"journals that cannot be read: {damaged} (goal 0); trials lost: {lost} (goal 0)")
    subprocess.run([*command, "--trials", str(ended + 1)], check=True, env=environment)
    print(f"the search went on to {finished_trials(folder)} trials (goal {ended + 1})")


def journal_size(folder: Path) -> int:
    path = folder / tuning.JOURNAL
    return path.stat().st_size if path.exists() else 0


def finished_trials(folder: Path) -> int:
    with tuning.closing_study(folder, 0) as study:
        return sum(trial.state.is_finished() for trial in study.trials)


def children(parent: int) -> list[int]:
    """The processes whose parent this is."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in listed]


def is_readable(folder: Path) -> bool:
    try:
        load(folder).summary  # noqa: B018
        if (folder / "last.safetensors").exists():
            checkpoint.load(folder / "last.safetensors")
    except Exception as error:
        print(error)
        return False
    return True


def has_begun(folder: Path, worker: int) -> bool:
    """Whether this worker has begun to train: it cuts the log to the step of its checkpoint."""
    log, process = folder / "log.jsonl", Path(f"/proc/{worker}")
    return (
        log.exists() and process.exists() and log.stat().st_mtime > process.stat().st_mtime + 0.1
    )


def step_of(folder: Path) -> int:
    path = folder / "last.safetensors"
    return checkpoint.about(path)["step"] if path.exists() else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "what", choices=["throughput", "shard", "kills", "searches", "steps", "memory"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shard", action="store_true")
    chosen = parser.parse_args()
    if chosen.what == "steps":
        time_steps(chosen.steps, chosen.batch)
    elif chosen.what == "memory":
        measure_memory(chosen.shard, chosen.steps)
    elif chosen.what == "shard":
        shard(3)
    elif chosen.what == "searches":
        searches(chosen.kills)
    elif chosen.what == "kills":
        kills(chosen.kills)
    else:
        throughput(chosen.rounds, chosen.steps, chosen.batch)
