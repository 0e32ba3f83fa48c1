"""How large the residuals of identities are by chance, beside their tolerances.

    python scripts/residuals.py --seeds 10 --json results/residuals.json
    ATEN_CPU_CAPABILITY=default python scripts/residuals.py --threads 2 --json ...

examines every identity with several seeds, on the first small model if it needs one, and prints
those whose tolerance is less than `--room` times the largest residual. Residuals in standard
errors, and those of statements that something is large or different, are left out: their tolerance
is a level of chance, or the statement itself. `--json FILE` keeps the largest residual of each
beside its tolerance and the smallest residual under a fault of `monge verify --mutants` that it
catches; a file that exists is joined, so that it covers several processors and numbers of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

LARGEST = 1e-3
"""Tolerances above this are no bounds of rounding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--room", type=float, default=10.0)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of a check")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="none is begun after")
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
    for identity in identities():
        if time.monotonic() - start > asked.seconds:
            break
        name, subject = identity.listing.name, None
        if identity.needs is not None:
            rows = ((each, examine(identity, each)) for each in able(identity.needs))
            subject = next((each for each, row in rows if row.skipped is None), None)
            if subject is None:
                continue
        first = examine(identity, subject)
        rounding = first.tolerance is not None and 0 < first.tolerance <= LARGEST
        if first.residual is None or not rounding or first.seconds > asked.longest:
            continue
        each = [examine(identity, subject, seed) for seed in range(1, asked.seeds)]
        values = [row.residual for row in (first, *each) if row.residual is not None]
        largest = max(values, default=math.nan)  # below 0 if a bound holds with room
        tolerance = min(row.tolerance for row in (first, *each) if row.tolerance is not None)
        failed = any(row.passed is False for row in (first, *each))
        found[name] = {"largest": largest, "tolerance": tolerance, "failed": failed}
        if failed or tolerance < asked.room * largest:
            mark = "FAILED" if failed else "tight"
            fault = " (a fault is known)" if name in mutated else ""
            print(f"{mark:6s} {name}: largest {largest:.2g}, tolerance {tolerance:.2g}{fault}")
    print(f"{len(found)} examined with {asked.seeds} seeds")
    if asked.json:
        keep(asked.json, found, faults() if asked.faults else {}, asked.seeds, asked.threads)


def faults() -> dict[str, float]:
    """The smallest residual of each check under a fault that it catches."""
    from monge.verify.mutants import MUTANTS, attempt_all

    smallest: dict[str, float] = {}
    for row in attempt_all(MUTANTS):
        if row.caught and row.with_fault is not None:
            smallest[row.check] = min(row.with_fault, smallest.get(row.check, math.inf))
    return smallest


def keep(path: Path, found: dict, fault: dict[str, float], seeds: int, threads: int) -> None:
    """Join what was found with what the file holds."""
    import torch

    kept = json.loads(path.read_text()) if path.exists() else {"conditions": [], "identities": {}}
    how = f"{torch.backends.cpu.get_cpu_capability()}, {threads} threads, {seeds} seeds"
    kept["conditions"] = sorted({*kept["conditions"], how})
    for name, each in found.items():
        row = kept["identities"].setdefault(name, {"largest": -math.inf})
        row |= {"tolerance": each["tolerance"], "largest": max(row["largest"], each["largest"])}
    for name, value in fault.items():
        kept["identities"].setdefault(name, {})["smallest_fault"] = value
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
