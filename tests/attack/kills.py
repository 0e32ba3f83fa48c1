"""SIGKILL of fits, comparisons and the processes of comparisons at random moments.

    python tests/attack/kills.py --tries 1000 --seed 7

A try starts a fit (of a model of any family) or a comparison, kills it, resumes it, and kills it
again, until it is let finish. After every kill the run can be read, has lost no step after its
last checkpoint and is not locked; no process is left that nobody waits for. At the end no half
written file is left, and weights and counters equal those of an unbroken run bit for bit. Every
kill counts as a try.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch
from attacking import end, fork, main

import monge
from monge.cli.main import attempt
from monge.comparison import runner
from monge.core.files import DRAFT
from monge.run import session, storage
from monge.train import checkpoint

STEPS = 12
FITS = {
    "gan": "gan iris",
    "made": "made iris",
    "ensemble": "made moons data.rows=300 --ensemble 2",
    "refit": "made iris train.refit=same train.patience=2",
    "mixture": "mixture iris",
    "chow_liu": "chow_liu iris",
    "ddpm": "ddpm iris",
    "coupling": "coupling iris",
    "vae": "vae iris",
    "mlp": "mlp iris",
    "logistic": "logistic iris",
    "cnn": "cnn digits data.rows=200",
    "contrastive": "contrastive iris",
    "rnn": "rnn sines data.rows=100",
    "sinkhorn": "sinkhorn_generator iris",
}
"""At least one fit of every family, small enough for many."""
COMPARED = ("compare", "iris", "made", "gaussian", "--budget", f"{STEPS}steps", "--threads", "1")
COMPARISONS = 0.02
"""The share of kills that hit a comparison, which takes many times as long as a fit."""


def fit(words: str, folder: Path, saved: int | None = None) -> int:
    """The exit code of `monge fit` that starts or resumes a run and saves after every step; each
    step that is saved is written to the pipe `saved`."""
    session.SAVE_EVERY = 0.0
    save = session.TrainingSession.save

    def announcing(self: session.TrainingSession) -> None:
        save(self)
        if saved is not None:
            os.write(saved, self.trainer.step.to_bytes(4))

    session.TrainingSession.save = announcing  # this process ends after the fit
    common = ("--budget", f"{STEPS}steps", "--threads", "1")
    if (folder / "run.json").exists():
        return attempt(["fit", "--resume", str(folder), *common])
    settings = ("train.batch_size=32", "train.eval_every=1")
    return attempt(["fit", *words.split(" "), *settings, *common, "--out", str(folder)])


def state(folder: Path) -> dict:
    """What training has made of a run; the seconds it took are not part of it."""
    found: dict = {}
    for name in ("last.safetensors", "best.safetensors"):
        tensors, about = checkpoint.load(folder / name)
        about.pop("seconds")
        found |= {f"{name}/{key}": tensor for key, tensor in tensors.items()} | {name: about}
    lines = list(monge.load(folder).log)
    return found | {"log": [{k: v for k, v in line.items() if k != "seconds"} for line in lines]}


def differences(expected: dict, found: dict) -> list[str]:
    names = sorted({*expected} ^ {*found})
    for name in {*expected} & {*found}:
        one, other = expected[name], found[name]
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
        names += [] if same else [name]
    return names


def left_behind(folder: Path) -> list[str]:
    """Half-written files in a folder that is not in use, and folders of runs beside it that were
    never finished, once a new run has been made there."""
    for draft in (*folder.parent.glob(f"{storage.DRAFT_RUN}*"), *folder.rglob("figures/.*")):
        os.utime(draft, (0, 0))  # as if the kill was long ago
    storage.sweep_drafts(folder.parent)
    for run in {path.parent for path in (*folder.glob("run.json"), *folder.glob("*/run.json"))}:
        with storage.locked(run):
            pass
    drafts = [path.name for path in folder.rglob(".*") if DRAFT.fullmatch(path.name)]
    return drafts + [path.name for path in folder.parent.glob(f"{storage.DRAFT_RUN}*")]


def wrong_after_kill(folder: Path, last: int) -> list[str]:
    """What is wrong with a run whose process was killed after it had saved the step `last`."""
    if not folder.exists():
        return [f"lost after step {last}"] if last else []
    wrong = ["is still locked"] if storage.is_locked(folder / ".lock") else []
    try:
        monge.load(folder)
        names = [name for name in ("last", "best") if (folder / f"{name}.safetensors").exists()]
        steps = [checkpoint.load(folder / f"{name}.safetensors")[1]["step"] for name in names]
    except Exception as error:  # what this script looks for
        return [*wrong, f"cannot be read: {error!r:.200}"]
    if last and (not names or steps[0] < last):
        wrong.append(f"saved step {last}, found {steps}")
    return wrong


def break_fit(words: str, whole: tuple[dict, float], folder: Path, kills: list[float]) -> list:
    """Fit with a kill at each of these fractions of the time that the whole fit takes, then to the
    end; what went wrong."""
    (expected, seconds), wrong = whole, []
    for fraction in kills:
        reading, writing = os.pipe()
        process = fork(lambda: fit(words, folder, writing))  # noqa: B023
        os.close(writing)
        code = end(process, fraction * seconds)
        with os.fdopen(reading, "rb") as announced:
            steps = announced.read()
        last = int.from_bytes(steps[-4:]) if steps else 0
        if code not in (0, -signal.SIGKILL):
            wrong.append(f"ended with {code} before the kill")
        wrong += wrong_after_kill(folder, last)
    if code := end(fork(lambda: fit(words, folder))):
        wrong.append(f"cannot be finished: exit code {code}")
        return wrong
    wrong += [f"left {name}" for name in left_behind(folder)]
    return wrong + [f"differs in {name}" for name in differences(expected, state(folder))[:3]]


def workers(folder: Path) -> list[int]:
    """The processes that fit for a comparison."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if b"monge.comparison.worker" in words and os.fsencode(folder) in words:
                found.append(int(entry.name))
    return found


def break_comparison(folder: Path, chance: random.Random, child: bool) -> list[str]:
    """Kill a comparison, or a process of it, and run it again; what went wrong."""
    args, wrong = [*COMPARED, "--out", str(folder)], []
    process, started = fork(lambda: attempt(args)), time.monotonic()
    moment = chance.uniform(0, 12)
    while child and not workers(folder) and time.monotonic() - started < 60:
        time.sleep(0.01)
    if child:
        time.sleep(chance.uniform(0, 4))
        for number in workers(folder)[:1]:
            os.kill(number, signal.SIGKILL)
        if end(process) < 0:
            wrong.append("the comparison did not end after its process was killed")
    else:
        end(process, moment)
        limit = time.monotonic() + runner.STOP_SECONDS + 20
        while workers(folder) and time.monotonic() < limit:
            time.sleep(0.05)
        wrong += [f"process {number} is left" for number in workers(folder)]
    for run in (folder / name for name in ("autoregressive.made", "baseline.gaussian")):
        wrong += wrong_after_kill(run, 0)
    if code := end(fork(lambda: attempt(args))):
        wrong.append(f"cannot be finished: exit code {code}")
    if folder.exists():
        wrong += [f"left {name}" for name in left_behind(folder)]
    return wrong


def attack(tries: int, seed: int) -> list[str]:
    """The kills that did harm, each in a line."""
    chance, failed, killed = random.Random(seed), [], 0
    wholes: dict[str, tuple[dict, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MONGE_RUNS"] = scratch
        with redirect_stdout(io.StringIO()):  # imports once what every fit needs
            attempt(["fit", "made", "iris", "--budget", "1step", "--json"])
        while killed < tries:
            folder = Path(scratch) / f"run-{killed}"
            if chance.random() < COMPARISONS:
                child = chance.random() < 0.5
                killed += 1
                wrong = break_comparison(folder, chance, child)
                failed += [f"kill {killed} of a comparison ({child=}): {w}" for w in wrong]
            else:
                name = chance.choice(list(FITS))
                if name not in wholes:
                    first, started = Path(scratch) / f"whole-{name}", time.monotonic()
                    if code := end(fork(lambda: fit(FITS[name], first))):  # noqa: B023
                        raise SystemExit(f"{name}: the unbroken fit ended with {code}")
                    wholes[name] = state(first), time.monotonic() - started
                count = min(chance.randrange(1, 4), tries - killed)
                kills = [chance.uniform(0, 1.1) for _ in range(count)]
                killed += count
                wrong = break_fit(FITS[name], wholes[name], folder, kills)
                failed += [f"kills to {killed} of {name}: {each}" for each in wrong]
            shutil.rmtree(folder, ignore_errors=True)
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 1000)
