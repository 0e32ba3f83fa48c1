"""SIGKILL of fits, comparisons and their processes, searches, preparations and jobs of the studio
at random moments.

    python tests/attack/kills.py --tries 1000 --seed 7

A try starts a fit (of a model of any family) or one of the others, kills it, starts it again, and
kills it again, until it is let finish. After every kill the run can be read, has lost no step
after its last checkpoint and is not locked; no process is left that nobody waits for. At the end
no half-written file is left, and weights and counters of a fit, the trials of a search and the
rows of a prepared folder equal those of an unbroken one, fits bit for bit. Every kill counts as a
try.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import torch
from attacking import Seed, end, fork, main

import monge
from monge.cli.main import attempt
from monge.comparison import runner
from monge.core.files import DRAFT
from monge.run import session, storage
from monge.run.run import start
from monge.studio import jobs
from monge.train import checkpoint

STEPS, TRIALS = 6, 2
FITS = {
    "command": "monge made iris",
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
SHARES = {"fit": 0.9, "prepare": 0.06, "tune": 0.02, "compare": 0.01, "studio": 0.01}
"""How often each is started; those that start processes take many times as long as a fit."""
MOST = 5
"""Kills of one fit, search or preparation."""
TABLE = "a,b,c,d\n" + "".join(f"{n},{n % 7},x{n % 3},{n / 9:.3f}\n" for n in range(1500))


def fit(words: str, folder: Path, saved: int | None = None) -> int:
    """Start or resume a fit that saves after every step, as `monge fit` does but for its plots and
    estimates, which take most of its time; the exit code. Each step that is saved is written to
    the pipe `saved`."""
    session.SAVE_EVERY = 0.0
    save = session.TrainingSession.save

    def announcing(self: session.TrainingSession) -> None:
        save(self)
        if saved is not None:
            os.write(saved, self.trainer.step.to_bytes(4))

    session.TrainingSession.save = announcing  # this process ends after the fit
    settings = ("train.batch_size=32", "train.eval_every=1")
    if words.startswith("monge "):
        common = ("--budget", f"{STEPS}steps", "--threads", "1")
        if (folder / "run.json").exists():
            return attempt(["fit", "--resume", str(folder), *common])
        args = words.split(" ")[1:]
        return attempt(["fit", *args, *settings, *common, "--out", str(folder)])
    words, _, members = words.partition(" --ensemble ")
    if (folder / "run.json").exists():
        run = monge.load(folder)
    else:
        model, data, *own = words.split(" ")
        run = start(model, data, *own, *settings, out=folder, ensemble=int(members or 0))
    for _ in run.train(f"{STEPS}steps"):
        pass
    return 0


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
    return processes(b"monge.comparison.worker", folder)


def processes(word: bytes, folder: Path) -> list[int]:
    """The processes with this word and this folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if word in words and os.fsencode(folder) in words:
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


def tune(folder: Path) -> int:
    session.SAVE_EVERY = 0.0
    words = f"tune made iris width=4..8 train.eval_every=1 --trials {TRIALS} "
    words += f"--budget {STEPS}steps --threads 1"
    return attempt([*words.split(" "), "--out", str(folder)])


def trials(folder: Path) -> dict:
    """What a search has found."""
    found = {"plan": json.loads((folder / "tune.json").read_text(encoding="utf-8"))}
    for run in sorted(path.parent for path in folder.glob("trial-*/run.json")):
        found |= {f"{run.name}/{name}": each for name, each in state(run).items()}
    return found


def prepare(folder: Path) -> int:
    folder.mkdir(exist_ok=True)
    if (folder / "t.monge").exists():  # it was done, and is not made again
        return 0
    return attempt(
        ["data", "prepare", str(folder.parent / "t.csv"), "-o", str(folder / "t.monge")]
    )


def prepared(folder: Path) -> dict:
    """What a preparation has made: its rows, and the names of all files beside them."""
    found = monge.open(folder / "t.monge")
    rows = {name: found.tensors[name][:] for name in found.tensors}
    return rows | {"mark": found.fingerprint, "files": sorted(p.name for p in folder.iterdir())}


def break_other(
    work: Callable[[Path], int],
    result: Callable[[Path], dict],
    whole: tuple[dict, float],
    folder: Path,
    kills: list[float],
) -> list[str]:
    """Search or prepare with a kill at each of these fractions of its time, then to the end; what
    went wrong."""
    (expected, seconds), wrong = whole, []
    for fraction in kills:
        code = end(fork(lambda: work(folder)), fraction * seconds)
        if code not in (0, -signal.SIGKILL):
            wrong.append(f"ended with {code} before the kill")
        for run in folder.glob("trial-*"):
            wrong += wrong_after_kill(run, 0)
        try:
            if (folder / "t.monge").exists():
                monge.open(folder / "t.monge")
        except Exception as error:  # what this script looks for
            wrong.append(f"cannot be read: {error!r:.200}")
    if code := end(fork(lambda: work(folder))):
        return [*wrong, f"cannot be finished: exit code {code}"]
    wrong += [f"left {name}" for name in left_behind(folder)]
    return wrong + [f"differs in {name}" for name in differences(expected, result(folder))[:3]]


def break_job(folder: Path, chance: random.Random) -> list[str]:
    """Kill the process of a fit in the studio, and resume it there; what went wrong."""
    settings = ["train.batch_size=32", "width=4"]
    job = jobs.submit_fit(folder.name, "made", "iris", settings, "100000steps", "--threads", "1")
    process, limit = jobs.CHILDREN[-1], time.monotonic() + 60
    while not job.output and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(chance.uniform(0, 3))
    process.kill()
    process.wait()
    wrong = [] if job.state == "lost" else [f"the job is {job.state}"]
    wrong += [f"process {number} is left" for number in processes(b"fit", folder)]
    wrong += wrong_after_kill(folder, 0)
    if (folder / "run.json").exists():
        step = 0
        if (folder / "last.safetensors").exists():
            step = checkpoint.load(folder / "last.safetensors")[1]["step"]
        again = jobs.submit_resume(folder, f"{step + 2}steps", "--threads", "1")
        if jobs.CHILDREN[-1].wait(120):
            wrong.append(f"cannot be finished: {again.sentence}")
        wrong += [f"left {name}" for name in left_behind(folder)]
    elif (found := jobs.find(folder.name)) is not None:
        found.forget()
    jobs.reap()
    return wrong


def attack(tries: int, seed: Seed) -> list[str]:
    """The kills that did harm, each in a line."""
    chance, failed, killed = random.Random(seed), [], 0
    wholes: dict[str, tuple[dict, float]] = {}
    counts: Counter[str] = Counter()
    others = {"tune": (tune, trials), "prepare": (prepare, prepared)}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MONGE_RUNS"] = scratch
        Path(scratch, "t.csv").write_text(TABLE)
        with redirect_stdout(io.StringIO()):  # imports once what every fit needs
            attempt(["fit", "made", "iris", "--budget", "1step", "--json"])

        def whole(name: str) -> tuple[dict, float]:
            """What an unbroken one makes, and how long it takes."""
            if name not in wholes:
                folder, started = Path(scratch) / f"whole-{name}", time.monotonic()
                work, result = others.get(name, (lambda out: fit(FITS[name], out), state))
                if code := end(fork(lambda: work(folder))):
                    raise SystemExit(f"{name}: the unbroken one ended with {code}")
                wholes[name] = result(folder), time.monotonic() - started
            return wholes[name]

        while killed < tries:
            folder = Path(scratch) / f"run-{killed}"
            kind = chance.choices(list(SHARES), list(SHARES.values()))[0]
            name = chance.choice(list(FITS)) if kind == "fit" else kind
            count = 1
            if kind == "compare":
                wrong = break_comparison(folder, chance, chance.random() < 0.5)
            elif kind == "studio":
                wrong = break_job(folder, chance)
            else:
                count = min(chance.randrange(1, MOST + 1), tries - killed)
                kills = [chance.uniform(0, 1.1) for _ in range(count)]
                if kind == "fit":
                    wrong = break_fit(FITS[name], whole(name), folder, kills)
                else:
                    wrong = break_other(*others[kind], whole(kind), folder, kills)
            killed += count
            counts[name] += count
            failed += [f"kills to {killed} of {name}: {each}" for each in wrong]
            shutil.rmtree(folder, ignore_errors=True)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 1000, 50)
