"""How large the residuals of identities are by chance, beside their tolerances.

    python scripts/residuals.py --seeds 10 --json results/verify/residuals.json
    ATEN_CPU_CAPABILITY=default python scripts/residuals.py --threads 2 --json ...

examines every identity with several seeds, on the first small model if it needs one, and prints
those that fail with one of them, and those whose tolerance is less than `--room` times the largest
residual. The room of residuals in standard errors, and of statements that something is large or
different, is not judged: their tolerance is a level of chance, or the statement itself. `--json
FILE` keeps the largest residual of each beside its tolerance and the smallest residual under a
fault of `monge verify --mutants` that it catches; a file that exists is joined, so that it covers
several processors and numbers of threads, which each row names (`seen`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

LARGEST = 1e-3
"""Tolerances above this are no bounds of rounding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--room", type=float, default=10.0)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of all its seeds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="none is begun after")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--faults", action="store_true", help="also measure under the mutants")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    from monge.verify.framework import examine, identities
    from monge.verify.mutants import MUTANTS
    from monge.verify.subjects import able

    torch.set_num_threads(asked.threads)
    start = time.monotonic()
    mutated = {mutant.check for mutant in MUTANTS}
    found: dict[str, dict[str, float | bool]] = {}
    seeds = 0
    for identity in identities():
        if time.monotonic() - start > asked.seconds:
            break
        name, subject = identity.listing.name, None
        if not name.startswith(tuple(asked.only)):
            continue
        if identity.needs is not None:
            tried = ((each, examine(identity, each)) for each in able(identity.needs))
            subject = next((each for each, row in tried if row.skipped is None), None)
            if subject is None:
                continue
        begun, rows = time.process_time(), []
        for seed in range(asked.seeds):
            rows.append(examine(identity, subject, seed))
            if time.process_time() - begun > asked.longest:
                break
        values = [row.residual for row in rows if row.residual is not None]
        limits = [row.tolerance for row in rows if row.tolerance is not None]
        failed = [seed for seed, row in enumerate(rows) if row.passed is False]
        if not limits:
            print(f"{rows[0].error or rows[0].skipped}: {name}")
            continue
        largest, tolerance = max(values), min(limits)  # below 0 if a bound holds with room
        rounding = 0 < tolerance <= LARGEST
        tight = rounding and tolerance < asked.room * largest
        found[name] = {"largest": largest, "tolerance": tolerance, "rounding": rounding}
        found[name]["seeds"] = len(rows)
        seeds += len(rows)
        if failed or tight:
            mark = f"FAILED with seeds {failed}" if failed else "tight"
            fault = " (a fault is known)" if name in mutated else ""
            print(
                f"{mark} {name}: largest {largest:.2g}, tolerance {tolerance:.2g}{fault}",
                flush=True,
            )
    judged = sum(bool(each["rounding"]) for each in found.values())
    print(f"{len(found)} examined, {seeds} times in all; the room of {judged} is judged")
    if asked.json:
        keep(
            asked.json,
            found,
            faults(asked.only) if asked.faults else {},
            asked.seeds,
            asked.threads,
        )


def faults(only: Sequence[str]) -> dict[str, float]:
    """The smallest residual of each check under a fault that it catches."""
    from monge.verify.mutants import MUTANTS, attempt_all

    smallest: dict[str, float] = {}
    chosen = [mutant for mutant in MUTANTS if mutant.check.startswith(tuple(only))]
    for row in attempt_all(chosen):
        if row.caught and row.with_fault is not None:
            smallest[row.check] = min(row.with_fault, smallest.get(row.check, math.inf))
    return smallest


def keep(path: Path, found: dict, fault: dict[str, float], seeds: int, threads: int) -> None:
    """Join what was found with what the file holds."""
    import torch

    kept = json.loads(path.read_text()) if path.exists() else {"conditions": [], "identities": {}}
    where = f"{torch.backends.cpu.get_cpu_capability()}, {threads} threads"
    kept["conditions"] = sorted({*kept["conditions"], f"{where}, {seeds} seeds"})
    for name, each in found.items():
        row = kept["identities"].setdefault(name, {"largest": -math.inf})
        largest = max(row["largest"], each["largest"])
        row |= {"tolerance": each["tolerance"], "largest": largest, "rounding": each["rounding"]}
        row["seen"] = sorted({*row.get("seen", []), f"{where}, {each['seeds']} seeds"})
    for name, value in fault.items():
        kept["identities"].setdefault(name, {})["smallest_fault"] = value
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
