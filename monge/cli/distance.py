"""Distances between two data sets and a two-sample test

Optimal transport, energy and kernel distances on standardised rows, with standard errors and a
p-value.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._output import Console, common
from ._writers import OUTPUT, write_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.batch import Batch
    from ..core.space import Space
    from ..data import Dataset


@click.command("distance")
@click.argument("a")
@click.argument("b")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--rows",
    default=1000,
    show_default=True,
    type=click.IntRange(20),
    help="Maximum rows per data set, chosen at random; the cost is quadratic.",
)
@click.option(
    "--plan",
    "out",
    type=OUTPUT,
    help="File (.npz) for the entropic transport plan, its points and potentials.",
)
@click.option(
    "--plot", type=OUTPUT, help="File (.png) for a plot of the plan; for rows of two numbers."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Same seed, same rows and same metrics.",
)
@common
def command(
    console: Console,
    a: str,
    b: str,
    settings: tuple[str, ...],
    rows: int,
    out: Path | None,
    plot: Path | None,
    seed: int,
) -> None:
    """Compare data sets A and B; B is read with the schema of A. Options such as
    data.missing=drop apply to both, data.seed and data.rows to A only; write transforms
    (`+NAME`) after each name."""
    from .. import data
    from ..core.errors import UsageError
    from ..core.overrides import Overrides
    from ..evaluate.energy_distance import FeatureMap
    from ..evaluate.two_sample import distances, frequencies

    overrides = Overrides.parse(settings)
    if overrides.model:
        raise UsageError(
            f"expected data options (data.KEY=VALUE), found {overrides.model[0]}; remove it"
        )
    first = data.open(a, *overrides.data)
    shared = [each for each in overrides.data if each.partition("=")[0] not in ("seed", "rows")]
    second = data.open(b, *shared, fields=first.fields_dict())
    space = first.view().space
    if plot and space.shape != (2,):
        raise UsageError(
            f"--plot needs rows of two numbers, {first.name} holds {space}; remove --plot"
        )
    sides = [choose_rows(source, rows, seed) for source in (first, second)]
    features = FeatureMap(space)
    x, y = (features(side) for side in sides)
    found = distances(x, y, seed) | frequencies(sides[0].x, sides[1].x, space)
    if out or plot:
        save_plan(x, y, space, out, plot)
    console.note(
        f"{first.name} ({len(x)} rows) and {second.name} ({len(y)} rows), in standard deviations "
        f"of {first.name}"
    )
    table = console.table(
        ("metric", "value", "±"), [[name, s.value, s.stderr or None] for name, s in found.items()]
    )
    console.result(
        {"metrics": {name: metric.to_dict() for name, metric in found.items()}},
        table + "".join(f"\n{path}" for path in (out, plot) if path),
    )


def choose_rows(source: Dataset, rows: int, seed: int) -> Batch:
    """At most `rows` rows of all splits together, chosen by the seed."""
    import torch

    from ..core.errors import DataError
    from ..core.rng import make_generator

    every = source.view().split("all")
    few = every.batch(
        torch.randperm(len(every), generator=make_generator(seed))[:rows].sort().values
    )
    if not bool(few.observed_mask.all()):
        raise DataError(
            f"expected complete rows, found missing values in {source.name}; leave such rows out "
            "with data.missing=drop"
        )
    return few


def save_plan(x: Tensor, y: Tensor, space: Space, out: Path | None, plot: Path | None) -> None:
    from ..evaluate.two_sample import plan
    from ..plot.image_grid import write_plan

    found = plan(x, y)
    if out:
        write_arrays(
            out,
            x=x.numpy(),
            y=y.numpy(),
            plan=found.matrix.numpy(),
            f=found.f.numpy(),
            g=found.g.numpy(),
            epsilon=found.epsilon,
        )
    if plot:
        scale, mean = space.statistic("scale").numpy(), space.statistic("mean").numpy()
        write_plan(plot, x.numpy() * scale + mean, y.numpy() * scale + mean, found.matrix.numpy())
