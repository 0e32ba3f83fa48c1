"""How large the residuals of identities are by chance, beside their tolerances.

    python scripts/residuals.py --seeds 10 --json results/verify/residuals.json
    ATEN_CPU_CAPABILITY=default python scripts/residuals.py --threads 2 --json ...

examines every identity with several seeds, on the first small model if it needs one, and prints
those that fail with one of them, and those whose tolerance is less than `--room` times the largest
residual. The room of residuals in standard errors, and of statements that something is large or
different, is not judged: their tolerance is a level of chance, or the statement itself. `--json
FILE` keeps the largest residual of each beside its tolerance and, with `--faults`, the smallest
residual under a fault of `monge verify --mutants` that it catches. A file that exists is joined,
so that it covers several processors and numbers of threads, which each row names (`seen`). What is
found is kept after each identity, and seeds that the file has for the same processor and number of
threads are not examined again; `--again` does so, for identities that have changed or whose code
has.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monge.verify.framework import Identity, IdentityResult

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
    parser.add_argument("--again", action="store_true", help="also what --json has")
    parser.add_argument("--faults", action="store_true", help="also measure under the mutants")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    from monge.verify.framework import identities
    from monge.verify.mutants import MUTANTS

    torch.set_num_threads(asked.threads)
    where = f"{torch.backends.cpu.get_cpu_capability()}, {asked.threads} threads"
    start = time.monotonic()
    mutated = {mutant.check for mutant in MUTANTS}
    every = identities()
    kept = Kept(asked.json, {identity.listing.name for identity in every})
    examined = seeds = judged = 0
    for identity in every:
        name = identity.listing.name
        first = 0 if asked.again else kept.seeds(name, where)
        if not name.startswith(tuple(asked.only)) or first >= asked.seeds:
            continue
        if time.monotonic() - start > asked.seconds:
            break
        rows = examine_seeds(identity, range(first, asked.seeds), asked.longest)
        values = [row.residual for row in rows if row.residual is not None]
        limits = [row.tolerance for row in rows if row.tolerance is not None]
        failed = [seed for seed, row in enumerate(rows, first) if row.passed is False]
        reason = next((row.error or row.skipped for row in rows if row.tolerance is None), None)
        if reason or not rows:
            print(f"{reason or 'no small model has the ability'}: {name}", flush=True)
            continue
        row = kept.join(name, max(values), min(limits), where, first + len(rows))
        largest, tolerance = row["largest"], row["tolerance"]  # below 0 if a bound has room
        examined, seeds, judged = examined + 1, seeds + len(rows), judged + row["rounding"]
        tight = row["rounding"] and tolerance < asked.room * largest
        if failed or tight:
            mark = f"FAILED with seeds {failed}" if failed else "tight"
            fault = " (a fault is known)" if name in mutated else ""
            print(
                f"{mark} {name}: largest {largest:.2g}, tolerance {tolerance:.2g}{fault}",
                flush=True,
            )
    print(f"{examined} examined, {seeds} times in all; the room of {judged} is judged")
    if asked.faults:
        kept.add_faults(faults(asked.only))


def examine_seeds(identity: Identity, seeds: range, longest: float) -> list[IdentityResult]:
    """The outcomes with these seeds, or those that were begun before as many seconds; none if no
    small model can be examined."""
    from monge.verify.framework import examine
    from monge.verify.subjects import able

    subject = None
    if identity.needs is not None:
        tried = ((each, examine(identity, each)) for each in able(identity.needs))
        subject = next((each for each, row in tried if row.skipped is None), None)
        if subject is None:
            return []
    begun, rows = time.process_time(), []
    for seed in seeds:
        rows.append(examine(identity, subject, seed))
        if time.process_time() - begun > longest:
            break
    return rows


def faults(only: Sequence[str]) -> dict[str, float]:
    """The smallest residual of each check under a fault that it catches."""
    from monge.verify.mutants import MUTANTS, attempt_all

    smallest: dict[str, float] = {}
    chosen = [mutant for mutant in MUTANTS if mutant.check.startswith(tuple(only))]
    for row in attempt_all(chosen):
        if row.caught and row.with_fault is not None:
            smallest[row.check] = min(row.with_fault, smallest.get(row.check, math.inf))
    return smallest


class Kept:
    """What a file holds of the identities that there are, joined with what is found."""

    def __init__(self, path: Path | None, names: set[str]) -> None:
        self.path = path
        text = path.read_text() if path is not None and path.exists() else "{}"
        rows = json.loads(text).get("identities", {})
        self.rows: dict[str, dict[str, Any]] = {n: row for n, row in rows.items() if n in names}

    def seeds(self, name: str, where: str) -> int:
        """How many seeds of an identity were examined under a condition."""
        seen = [each.rpartition(", ") for each in self.rows.get(name, {}).get("seen", ())]
        return max((int(end.split()[0]) for start, _, end in seen if start == where), default=0)

    def join(
        self, name: str, largest: float, tolerance: float, where: str, seeds: int
    ) -> dict[str, Any]:
        """Add what was seen of an identity; its row."""
        row = self.rows.setdefault(name, {})
        row["largest"] = max(row.get("largest", -math.inf), largest)
        row["tolerance"], row["rounding"] = tolerance, 0 < tolerance <= LARGEST
        others = {each for each in row.get("seen", ()) if each.rpartition(", ")[0] != where}
        row["seen"] = sorted({*others, f"{where}, {max(seeds, self.seeds(name, where))} seeds"})
        self.write()
        return row

    def add_faults(self, smallest: dict[str, float]) -> None:
        for name, value in smallest.items():
            self.rows.setdefault(name, {})["smallest_fault"] = value
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        conditions = sorted({each for row in self.rows.values() for each in row.get("seen", ())})
        text = json.dumps(
            {"conditions": conditions, "identities": self.rows}, indent=1, sort_keys=True
        )
        fresh = self.path.with_suffix(".part")
        fresh.write_text(text + "\n")
        os.replace(fresh, self.path)


if __name__ == "__main__":
    main()
