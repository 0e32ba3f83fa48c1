"""Wrong command lines: each ends with exit code 1 or 2 and one sentence that names a remedy, in
less than 3 s of computing and 1 GB of memory.

    python tests/attack/wrong_commands.py [--tries 400] [--seed 0]

Cases are written down below, or made of every option of every command with a wrong value; to reach
more tries, words of good command lines are replaced by odd ones. RUN is a small run, OUT a folder
that is removed afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import resource
import shutil
import tempfile
import time
from pathlib import Path

import click
from attacking import main

from monge.cli.main import attempt, commands

GOOD_RUN = Path(__file__).parents[1] / "fixtures" / "format-2" / "run"
HUGE, LONG = str(10**20), "x" * 100_000
WRONG = (
    "fit",
    "fit vae",
    "fit vea digits",
    "fit vae digits widht=3",
    "fit vae digits width=1e9",
    "fit vae digits width=1e30",
    "fit vae digits depth=1e8",
    "fit vae digits width=many",
    "fit vae digits train.betas=2,5",
    "fit vae digits train.lr=0",
    "fit vae digits train.rate=1",
    "fit vae digits data.seed=-1",
    "fit vae digits data.seed=1e30",
    "fit vae digits data.rows=-3",
    "fit made moons data.rows=1e11",
    "fit cnn digits data.augment=shift99999 --target label",
    "fit gpt digits data.context=1e8",
    "fit vae digits --seed -1",
    f"fit vae digits --seed {10**30}",
    "fit vae digits --threads 1000000",
    "fit vae digits --threads -1",
    "fit vae digits --device cpu:99",
    "fit vae digits --device gpu",
    "fit vae digits --ensemble 1000000",
    "fit vae digits --ensemble x",
    "fit vae digits --budget=",
    "fit vae digits --budget 1ms",
    "fit vae digits --budget -1s",
    "fit vae digits --budget 0",
    "fit vae digits --budget 1e400s",
    "fit vae digits --given",
    "fit vae digits --given colour",
    "fit vae digits --target colour",
    "fit vae nowhere.csv",
    "fit vae digits+resize99999",
    "fit vae digits+nothing",
    "fit ./nowhere.py digits",
    "fit --resume nowhere",
    "fit --resume RUN vae",
    "fit vae digits --nothing",
    "sample",
    "sample nowhere",
    "sample RUN -n 0",
    "sample RUN -n x",
    f"sample RUN -n {10**9}00",
    f"sample RUN -n {HUGE}",
    "sample RUN temperatur=1",
    "sample RUN -o OUT/x.xyz",
    "sample RUN -o OUT/x",
    "sample RUN -o OUT/x.txt",
    "sample RUN -o OUT/x.wav",
    "sample RUN --where colour=1",
    "sample RUN --where x>>1",
    "sample RUN --given colour=1",
    "sample RUN --stream",
    "sample RUN --prompt hello",
    "score RUN nowhere.csv",
    "score RUN -o OUT/x.xyz",
    "score RUN how=ode",
    "predict RUN",
    "predict RUN -o OUT/x.xyz",
    "complete RUN nowhere.csv -o OUT/x.csv",
    "complete RUN iris -o OUT/x.xyz",
    "encode RUN -o OUT/x.csv",
    "forecast RUN",
    "forecast RUN --horizon 0",
    "translate RUN hello",
    "export RUN -o OUT/x.xyz",
    "evaluate nowhere",
    "report nowhere",
    "report RUN -o OUT/x.pdf",
    "compare",
    "compare nowhere.csv",
    "compare digits vea",
    "distance iris",
    "distance iris nowhere.csv",
    "distance iris iris --plan OUT/x.xyz",
    "distance iris digits",
    "data nowhere.csv",
    "data digits colour=1",
    "data digits data.colour=1",
    "models vea",
    "models --nothing",
    "verify nothing",
    "runs --delete nowhere",
    "explain nothing",
    "nothing",
    "--nothing",
    LONG,
    f"fit {LONG} digits",
    f"fit vae {LONG}",
    f"fit vae digits {LONG}=1",
    f"sample RUN --where {LONG}=1",
    f"sample RUN {LONG}=1",
    f"data {LONG}.csv",
    f"models {LONG}",
    f"explain {LONG}",
    f"sample {LONG}",
    f"fit --resume {LONG}",
    f"fit vae digits --given {LONG}",
    f"fit vae digits --budget {LONG}",
    f"fit vae digits --seed {LONG}",
    f"sample RUN -n {LONG}",
    "fit vae digits train.batch_size=0",
    "fit vae digits train.batch_size=x",
    "fit vae digits train.optimiser=nothing",
    "fit vae digits train.ema_decay=2",
    "fit vae digits train.grad_clip=-1",
    "fit vae digits train.weight_decay=-1",
    "fit vae digits data.valid=2",
    "fit vae digits data.test=-1",
    "fit vae digits data.missing=nothing",
    "fit vae digits data.augment=nothing",
    "fit vae digits data.constraints=a>b",
    "fit vae digits sample.steps=3",
    "fit vae digits latent=0",
    "fit vae digits prior=nothing",
    "fit vae digits start=nowhere",
    "fit vae digits preset=nothing",
    "fit vae digits width=nan",
    "fit vae digits width=-1",
    "fit vae digits width",
    "fit vae digits =3",
    "fit gpt digits heads=0",
    "fit gpt digits width=1e9",
    "fit gpt digits depth=1e8",
    "fit ddpm moons width=1e9",
    "fit made iris --ensemble -1",
    "fit made iris --ensemble 1000000",
    "fit made iris --precision fp8",
    "fit mlp moons",
    "fit seq2seq iris",
    "fit cnn iris",
    "fit made iris --resume RUN",
    "fit made iris --out RUN",
    "fit made iris --budget 5parsecs",
    "fit made iris --budget 0.5steps",
    "fit made iris --budget 1e-9epochs",
    "fit made RUN",
    "fit RUN iris",
    "sample RUN RUN",
    f"sample RUN --seed {10**30}",
    f"sample RUN -n {10**15}",
    "sample RUN range=nothing",
    "sample RUN -o RUN/run.json",
    "sample RUN -o RUN/best.safetensors",
    "score RUN RUN/run.json",
    "score RUN samples=0",
    "score RUN --split nothing",
    "report RUN -o RUN/run.json",
    "report RUN -o OUT/x.xyz",
    "compare iris made --budget 0s",
    "compare iris made --seeds 0",
    "compare iris made --jobs 0",
    "compare iris made --out RUN",
    "compare iris nothing=3",
    "compare iris made data.nothing=3",
    "distance iris wine",
    "distance nowhere nowhere",
    "data iris data.seed=x",
    "data iris+nothing",
    "data /dev/zero",
    "data /dev/null",
    "data /",
    "data .",
    "data ../nothing",
    "runs --compact nowhere",
    "runs nowhere",
    "verify nothing nothing",
    "serve nowhere",
    "serve RUN --port x",
    "studio --port x",
)
PARTS = ("fit", "sample", "score", "RUN", "vae", "iris", "digits", "-n", "3", "-o", "OUT/x.csv")
ODD = ("", "-", "--", "=", "a=", "=b", "\0", "é", "-1", "nan", "1e999", "../..", "/", "*", "data.")


def mixed(chance: random.Random) -> list[str]:
    """A command line of good and odd words."""
    first = chance.choice(("sample", "score", "data", "models", "runs", "predict", "report"))
    words = [chance.choice(PARTS) if chance.random() < 0.6 else chance.choice(ODD)]
    words += [chance.choice((*PARTS, *ODD)) for _ in range(chance.randrange(3))]
    return [first, *words]


def wrong_options() -> list[list[str]]:
    """Every option of every command with a value that it does not take."""
    found = []
    for name in sorted({*commands()} - {"studio", "serve"}):
        command = importlib.import_module(f"monge.cli.{name}").command
        found += [[name, "--no-such-option"], [name, "RUN", "RUN", "RUN", "RUN", "--nothing=1"]]
        for option in command.params:
            if not isinstance(option, click.Option) or option.is_flag:
                continue
            word = max(option.opts, key=len)
            found.append([name, word])
            if isinstance(option.type, click.types.IntParamType) or option.type.name == "integer":
                found += [[name, word, value] for value in ("x", "", "1.5", LONG)]
            elif isinstance(option.type, click.Choice):
                found += [[name, word, value] for value in ("nothing", "", LONG)]
            elif isinstance(option.type, click.types.FloatParamType):
                found += [[name, word, value] for value in ("x", "")]
    return found


def memory() -> int:
    """The most bytes that this process has had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run_one(args: list[str], must_fail: bool) -> str | None:
    """What is wrong with how a command line ended; None if nothing is."""
    out, err, started, before = io.StringIO(), io.StringIO(), time.process_time(), memory()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = attempt(args)
        except BaseException as error:  # what this script looks for
            return f"raised {error!r:.200}"
    sentence = err.getvalue().strip()
    if code not in (1, 2) and (must_fail or code != 0):
        return f"exit code {code}"
    if "internal error" in sentence or "Traceback" in sentence:
        return sentence[:300]
    if code and not sentence:
        return f"exit code {code} without a sentence"
    said = [line for line in sentence.splitlines() if line.startswith("monge: ")]
    if code and must_fail and not sentence.startswith("Usage"):
        if len(said) != 1 or not ({*";?"} & {*said[0]}):
            return f"expected a sentence with a remedy, found {sentence[:300]!r}"
        if len(said[0]) > LONGEST:
            return f"a sentence of {len(said[0])} characters: {said[0][:200]}"
    if not must_fail:
        return None
    if (spent := time.process_time() - started) > SECONDS:
        return f"took {spent:.1f} s"
    return f"took {more / 1e9:.1f} GB" if (more := memory() - before) > BYTES else None


SECONDS, BYTES, LONGEST = 3.0, 10**9, 600
"""What a wrong command line may take, and how long its sentence may be."""


def attack_cases(cases: list[list[str]], must_fail: bool) -> list[str]:
    """The cases that did not end as they should, each in a line."""
    failed, here, runs = [], os.getcwd(), os.environ.get("MONGE_RUNS")
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(GOOD_RUN, Path(scratch) / "run")
        os.environ["MONGE_RUNS"] = scratch
        os.chdir(scratch)
        try:
            for case in cases:
                out = str(Path(scratch) / "out")
                args = [word.replace("RUN", "run").replace("OUT", out) for word in case]
                before = sorted(path.name for path in Path(scratch).iterdir())
                wrong = run_one(args, must_fail)
                after = sorted(path.name for path in Path(scratch).iterdir())
                if must_fail and wrong is None and after != before:
                    wrong = f"left {sorted({*after} - {*before})} behind"
                if wrong:
                    failed.append(f"{' '.join(case)[:120]}: {wrong}")
        finally:
            os.chdir(here)
            os.environ.pop("MONGE_RUNS") if runs is None else os.environ.update(MONGE_RUNS=runs)
    return failed


def attack(tries: int, seed: int) -> list[str]:
    """The command lines that did not end as they should: those written down and wrong options,
    all if there are enough tries, and mixed ones for the rest."""
    chance = random.Random(seed)
    cases = [[*case.split(" ")] for case in WRONG] + wrong_options()
    cases = cases if tries >= len(cases) else chance.sample(cases, tries)
    attempt(["fit", "made", "iris", "--nothing"])  # imports are not part of a case
    importlib.import_module("monge.run.run")
    more = [mixed(chance) for _ in range(tries - len(cases))]
    return attack_cases(cases, must_fail=True) + attack_cases(more, must_fail=False)


if __name__ == "__main__":
    main(__doc__, attack, 400)
