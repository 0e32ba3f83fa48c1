"""Non-saturating against minimax: adversarial training with two losses, from the same weights.

The discriminator has eight updates per update of the generator, so that it soon recognises fakes.
Above, the gradient norm of the generator loss at fakes and the accuracy of the discriminator;
below, samples beside the eight modes of the ring.

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
        "critic_steps=8",
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
        axes[0, 0].plot(log["step"], log["watch/gradient_norm"], label=game)
        axes[0, 1].plot(log["step"], log["watch/accuracy"], label=game)
        found = run.evaluate()
        print(
            f"{game:14} modes {found['modes_found'].value} {found['modes_found'].unit}, within "
            f"4 sigma {found['within_4_sigma'].value:.0%}, C2ST {found['c2st'].value:.3f}"
        )
    axes[0, 0].set(title="gradient norm at the generator", xlabel="step", yscale="log")
    axes[0, 1].set(title="accuracy of the discriminator", xlabel="step", ylim=(0, 1))
    axes[0, 1].legend(frameon=False)
    for panel, (game, run) in zip(axes[1], runs.items(), strict=True):
        x = run.sample(2000)
        panel.scatter(x[:, 0], x[:, 1], s=2, alpha=0.4, linewidths=0)
        panel.set(title=game, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    figure.savefig(arguments.out, dpi=120)
    print(arguments.out)


if __name__ == "__main__":
    main()
