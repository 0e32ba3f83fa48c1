"""Distances between two data sets and a two-sample test

Optimal transport, energy and kernel distances on standardised rows, with standard errors and a
p-value.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..run.writers import write_arrays
from ._output import SEED, Console, Output, common

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.space import Space


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
    type=Output(".npz"),
    help="File (.npz) for the entropic transport plan, its points, potentials, primal and dual "
    "value, and the marginal error after each pass.",
)
@click.option(
    "--plot",
    type=Output(".png"),
    help="File (.png) for a plot of the plan; for rows of two numbers.",
)
@click.option(
    "--sweep",
    type=Output(".png"),
    help="File (.png) for transport costs by the size of minibatches and by the entropy of plans; "
    "their values are printed too.",
)
@click.option(
    "--seed",
    type=SEED,
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
    sweep: Path | None,
    seed: int,
) -> None:
    """Compare data sets A and B; B is read with the schema of A. Options such as
    data.missing=drop apply to both, data.seed and data.rows to A only; write transforms
    (`+NAME`) after each name."""
    from ..core.errors import UsageError
    from ..run.distance import two_samples

    pair = two_samples(a, b, *settings, rows=rows, seed=seed)
    space = pair.space
    if plot and space.shape != (2,):
        raise UsageError(
            f"--plot needs rows of two numbers, {pair.names[0]} holds {space}; remove --plot"
        )
    found, (x, y) = pair.distances(seed), pair.features
    if out or plot:
        save_plan(x, y, space, out, plot)
    console.note(
        f"{pair.names[0]} ({len(x)} rows) and {pair.names[1]} ({len(y)} rows), in standard "
        f"deviations of {pair.names[0]}"
    )
    table = console.table(
        ("metric", "value", "±"), [[name, s.value, s.stderr or None] for name, s in found.items()]
    )
    result: dict[str, Any] = {
        "metrics": {name: metric.to_dict() for name, metric in found.items()}
    }
    if sweep:
        tables, result["sweeps"] = save_sweeps(console, x, y, sweep, seed)
        table = "\n\n".join([table, *tables])
    console.result(result, table + "".join(f"\n{path}" for path in (out, plot, sweep) if path))


def save_sweeps(
    console: Console, x: Tensor, y: Tensor, path: Path, seed: int
) -> tuple[list[str], list[dict[str, Any]]]:
    """Draw transport costs by batch size and by entropy; their tables and values."""
    from ..evaluate.two_sample import sweep_batch_size, sweep_epsilon
    from ..plot.transport_sweep import write_sweeps

    sweeps = [sweep_batch_size(x, y, seed), sweep_epsilon(x, y, seed)]
    write_sweeps(path, sweeps)
    tables = [
        console.table(
            (sweep.setting, *sweep.curves),
            [
                [at, *(curve[k].value for curve in sweep.curves.values())]
                for k, at in enumerate(sweep.at)
            ],
        )
        for sweep in sweeps
    ]
    return tables, [sweep.to_dict() for sweep in sweeps]


def save_plan(x: Tensor, y: Tensor, space: Space, out: Path | None, plot: Path | None) -> None:
    import numpy as np

    from ..evaluate.two_sample import plan
    from ..plot.image_grid import write_plan

    found = plan(x, y)
    if out:
        arrays = {"x": x, "y": y, "plan": found.matrix, "f": found.f, "g": found.g}
        values = {"epsilon": found.epsilon, "primal": found.primal, "dual": found.dual}
        # epsilon, passes and marginal error while it was found
        write_arrays(out, {**arrays, **values, "trace": np.array(found.trace)})
    if plot:
        scale, mean = space.statistic("scale").numpy(), space.statistic("mean").numpy()
        write_plan(plot, x.numpy() * scale + mean, y.numpy() * scale + mean, found.matrix.numpy())
