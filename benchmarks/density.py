"""Mean test log-likelihood in nats on binary tables, measured beside published.

    MONGE_DATA=path python -m benchmarks.density nltcs plants --models made --budget 2m

The data (nltcs, plants, jester, dna as folders of train, valid and test files below debd/) are not
part of the project. Every model has its default settings; valid rows are for early stopping only.
Published: independent and Chow-Liu as reproduced by many; ID-SPN of Rooshenas & Lowd (2014); one
MADE of 500 units on one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import monge

PUBLISHED = {
    "independent": {"nltcs": -9.23, "plants": -31.27, "jester": -63.88, "dna": -100.39},
    "tree": {"nltcs": -6.76, "plants": -16.52, "jester": -58.23, "dna": -87.66},
    "mixture": {},
    "made": {"nltcs": -5.99, "plants": -12.33, "jester": -51.55, "dna": -83.31},
}
STRONG = {"nltcs": -6.02, "plants": -12.54, "jester": -52.86, "dna": -81.21}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="*", default=list(STRONG))
    parser.add_argument("--models", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--budget", default="2m")
    chosen = parser.parse_args()
    print(f"{'data':8}{'model':14}{'measured':>10}{'± ':>9}{'published':>10}{'ID-SPN':>9}{'s':>7}")
    for name in chosen.data:
        for model in chosen.models:
            begun = time.perf_counter()
            with tempfile.TemporaryDirectory() as place:
                run = monge.fit(model, f"debd/{name}", budget=chosen.budget, out=f"{place}/run")
                score = run.score().score
            spent = time.perf_counter() - begun
            known = PUBLISHED.get(model, {}).get(name)
            print(f"{name:8}{model:14}{score.value:10.3f}{score.stderr:9.3f}"
                  f"{'' if known is None else known:>10}{STRONG[name]:>9}{spent:7.1f}", flush=True)


if __name__ == "__main__":
    main()
