"""Wrong command lines: each ends with exit code 1 or 2 and one sentence that names a remedy.

    python tests/attack/wrong_commands.py [--tries 400] [--seed 0]

Cases are written down below; to reach more tries, words of good command lines are replaced by odd
ones. RUN is a small run, OUT a folder that is removed afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from monge.cli.main import attempt

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
)
PARTS = ("fit", "sample", "score", "RUN", "vae", "iris", "digits", "-n", "3", "-o", "OUT/x.csv")
ODD = ("", "-", "--", "=", "a=", "=b", "\0", "é", "-1", "nan", "1e999", "../..", "/", "*", "data.")


def mixed(chance: random.Random) -> list[str]:
    """A command line of good and odd words."""
    first = chance.choice(("sample", "score", "data", "models", "runs", "predict", "report"))
    words = [chance.choice(PARTS) if chance.random() < 0.6 else chance.choice(ODD)]
    words += [chance.choice((*PARTS, *ODD)) for _ in range(chance.randrange(3))]
    return [first, *words]


def run_one(args: list[str], must_fail: bool, limit: float) -> str | None:
    """What is wrong with how a command line ended; None if nothing is."""
    out, err, started = io.StringIO(), io.StringIO(), time.monotonic()
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
    if code and "--json" not in args and not sentence:
        return f"exit code {code} without a sentence"
    if code and len(sentence) > 2000 and not sentence.startswith("Usage"):
        return f"a sentence of {len(sentence)} characters"
    spent = time.monotonic() - started
    return f"took {spent:.0f} s" if spent > limit else None


def attack(cases: list[list[str]], must_fail: bool, limit: float = 60.0) -> list[str]:
    """The cases that did not end as they should, each in a line."""
    failed, here = [], os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(GOOD_RUN, Path(scratch) / "run")
        os.environ["MONGE_RUNS"] = scratch
        os.chdir(scratch)
        try:
            for case in cases:
                out = str(Path(scratch) / "out")
                args = [word.replace("RUN", "run").replace("OUT", out) for word in case]
                before = sorted(path.name for path in Path(scratch).iterdir())
                wrong = run_one(args, must_fail, limit)
                after = sorted(path.name for path in Path(scratch).iterdir())
                if must_fail and wrong is None and after != before:
                    wrong = f"left {sorted({*after} - {*before})} behind"
                if wrong:
                    failed.append(f"{' '.join(case)[:120]}: {wrong}")
        finally:
            os.chdir(here)
            del os.environ["MONGE_RUNS"]
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case.split(" ") for case in WRONG]
    failed = attack(cases, must_fail=True)
    chance = random.Random(options.seed)
    more = [mixed(chance) for _ in range(options.tries - len(cases))]
    failed += attack(more, must_fail=False)
    print("\n".join(failed))
    print(f"seed {options.seed}: {len(cases) + len(more)} tried, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
