"""Run the benchmarks against peers, each where its peers are: `make bench`.

    python -m benchmarks                 # all beside peers, an hour of one core and more
    python -m benchmarks gpt few_steps   # these

Environments are made by `benchmarks.environments` (scripts/bench-env) when they are not there yet.
Every benchmark keeps its ratios in results/; one that fails is named at the end and does not stop
the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .environments import ENVIRONMENTS, ROOT, make

OPTIONS = {"sampling": ["--large"]}
"""What a benchmark is told, where a row of the tables needs it."""
ON_REQUEST = ("detection", "few_steps", "noised", "posteriors", "step_memory")
"""Benchmarks without a peer that fit models for long: they run if they are named."""


def main() -> None:
    homes = {each: name for name, here in ENVIRONMENTS.items() for each in here.benchmarks}
    chosen = sys.argv[1:] or [name for name in homes if name not in ON_REQUEST]
    if unknown := [name for name in chosen if name not in homes]:
        raise SystemExit(f"expected some of {', '.join(homes)}, found {unknown[0]}")
    failed = []
    for name in chosen:
        started = time.perf_counter()
        print(f"== {name}", flush=True)
        try:
            python = make(homes[name])
        except (SystemExit, subprocess.CalledProcessError) as error:
            print(f"{name}: its environment cannot be made ({error})", flush=True)
            failed.append(name)
            continue
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        words = [python, "-m", f"benchmarks.{name}", *OPTIONS.get(name, [])]
        done = subprocess.run(words, cwd=ROOT, env=environment)
        failed += [name] if done.returncode else []
        print(f"== {name}: {time.perf_counter() - started:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
