"""How large the residuals of identities are by chance, beside their tolerances.

    python scripts/residuals.py --seeds 10
    ATEN_CPU_CAPABILITY=default python scripts/residuals.py --seeds 10

examines every identity with several seeds, on the first small model if it needs one, and prints
those whose tolerance is less than `--room` times the largest residual. Residuals in standard
errors, and those of statements that something is large or different, are left out: their tolerance
is a level of chance, or the statement itself. `--json FILE` keeps all of them, so that runs on two
processors can be joined.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

LARGEST = 1e-3
"""Tolerances above this are no bounds of rounding."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--room", type=float, default=10.0)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of a check")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    from monge.verify.framework import examine, identities
    from monge.verify.mutants import MUTANTS
    from monge.verify.subjects import able

    torch.set_num_threads(1)
    mutated = {mutant.check for mutant in MUTANTS}
    found: dict[str, dict[str, float | bool]] = {}
    for identity in identities():
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
        asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
