"""Non-saturating against minimax: the same game with two losses, from the same weights.

The discriminator moves eight times for each move of the generator, so that it soon knows a fake.
Above, what reaches the generator (the slope of its loss at fakes) and how often the discriminator
is right; below, samples beside the eight modes of the ring.

    python -m examples.saturation [--budget 800steps] [-o saturation.png]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure

import monge
from monge.run.run import Run

GAMES = ("nonsaturating", "minimax")


def fitted(game: str, budget: str) -> Run:
    return monge.fit(
        "gan",
        "ring",
        f"game={game}",
        "penalty=0",
        "rounds=8",
        "train.eval_every=50",
        budget=budget,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="800steps")
    parser.add_argument("-o", "--out", type=Path, default=Path("saturation.png"))
    arguments = parser.parse_args()
    runs = {game: fitted(game, arguments.budget) for game in GAMES}
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    for game, run in runs.items():
        log = run.history
        axes[0, 0].plot(log["step"], log["watch/slope"], label=game)
        axes[0, 1].plot(log["step"], log["watch/right"], label=game)
        found = run.evaluate()
        print(
            f"{game:14} modes {found['modes_found'].value} {found['modes_found'].unit}, within "
            f"4 sigma {found['within_4_sigma'].value:.0%}, C2ST {found['c2st'].value:.3f}"
        )
    axes[0, 0].set(title="slope at the generator", xlabel="step", yscale="log")
    axes[0, 1].set(title="discriminator right", xlabel="step", ylim=(0, 1))
    axes[0, 1].legend(frameon=False)
    for place, (game, run) in zip(axes[1], runs.items(), strict=True):
        x = run.sample(2000)
        place.scatter(x[:, 0], x[:, 1], s=2, alpha=0.4, linewidths=0)
        place.set(title=game, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    figure.savefig(arguments.out, dpi=120)
    print(arguments.out)


if __name__ == "__main__":
    main()
