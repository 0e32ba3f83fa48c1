"""How far two data sets are from one another, and whether they may be one

Optimal transport, energy and kernel distances on standardised rows, with errors and a p-value.
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
    help="Rows of each side at most, by a seeded choice; cost grows with the square.",
)
@click.option(
    "--plan", "out", type=OUTPUT, help="npz with the entropic plan, its points and its potentials."
)
@click.option("--plot", type=OUTPUT, help="png of the plan, where rows are points in the plane.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Same seed, same choice of rows and same chance in the measures.",
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
    """Compare data A with data B, which is read in A's terms. WORDS such as data.missing=drop say
    how both are read, but data.seed and data.rows concern A alone; `+` transforms belong to the
    names."""
    from .. import data
    from ..core.errors import UsageError
    from ..core.overrides import Overrides
    from ..evaluate.energy_distance import FeatureMap
    from ..evaluate.two_sample import distances, frequencies

    overrides = Overrides.parse(settings)
    if overrides.model:
        raise UsageError(
            f"{overrides.model[0]} concerns a model; a distance takes data.* words alone"
        )
    first = data.open(a, *overrides.data)
    shared = [word for word in overrides.data if word.partition("=")[0] not in ("seed", "rows")]
    second = data.open(b, *shared, fields=first.fields_dict())
    space = first.view().space
    if plot and space.shape != (2,):
        raise UsageError(
            f"--plot draws points in the plane, and {first.name} holds {space}; leave it out"
        )
    sides = [pick(source, rows, seed) for source in (first, second)]
    eye = FeatureMap(space)
    x, y = (eye(side) for side in sides)
    found = distances(x, y, seed) | frequencies(sides[0].x, sides[1].x, space)
    if out or plot:
        save(x, y, space, out, plot)
    console.note(
        f"{first.name} ({len(x)} rows) against {second.name} ({len(y)} rows), in standard "
        f"deviations of {first.name}"
    )
    table = console.table(
        ("measure", "value", "±"), [[name, s.value, s.stderr or None] for name, s in found.items()]
    )
    console.result(
        {"measures": {name: score.to_dict() for name, score in found.items()}},
        table + "".join(f"\n{path}" for path in (out, plot) if path),
    )


def pick(source: Dataset, rows: int, seed: int) -> Batch:
    """At most so many rows of every split together, by a seeded choice."""
    import torch

    from ..core.errors import DataError
    from ..core.rng import make_generator

    every = source.view().rows("all")
    few = every.batch(
        torch.randperm(len(every), generator=make_generator(seed))[:rows].sort().values
    )
    if not bool(few.observed_mask.all()):
        raise DataError(
            f"{source.name} has missing values, and rows need all of theirs to be "
            "compared; leave such rows out with data.missing=drop"
        )
    return few


def save(x: Tensor, y: Tensor, space: Space, out: Path | None, plot: Path | None) -> None:
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
