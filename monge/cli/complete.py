"""Fill what is missing or hidden: impute a table, in-paint a picture

What was seen is kept; the rest is drawn from the law given what was seen.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import DataError, UsageError
from ._output import Console, common
from ._writers import OUTPUT, write

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.batch import Batch
    from ..core.space import Space


PARTS = ("lower", "upper", "left", "right", "box")


@click.command("complete")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--hide",
    metavar="PART|FILE",
    help=f"Hide {', '.join(PARTS)} of each picture, or "
    "what is true in a .npy of the shape of an event. Without it, the cells that are "
    "missing in DATA are filled.",
)
@click.option(
    "--noise",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="The rows have noise of deviation S, in units of the data: draw what they were "
    "without it.",
)
@click.option(
    "--edit",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="T",
    help="Noise the rows up to time T and bring them back: near 1, little is left of them.",
)
@click.option("--rows", type=click.IntRange(1), help="Complete only the first so many rows.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Completions of each row.",
)
@click.option(
    "-o",
    "--out",
    type=OUTPUT,
    required=True,
    help="File: .csv, .npz, or .png (hidden, then completed, then true).",
)
@click.option("--seed", default=0, show_default=True, help="Same seed, same completions.")
@common
def command(
    console: Console,
    run: str,
    data: str | None,
    settings: tuple[str, ...],
    hide: str | None,
    noise: float | None,
    edit: float | None,
    rows: int | None,
    count: int,
    out: Path,
    seed: int,
) -> None:
    """Complete the rows of DATA (or the run's own test rows) under RUN. WORDS say how: those that
    `monge models MODEL` lists under sampling.

    With --noise or --edit, of diffusion laws, whole rows are drawn anew from what they are.
    """
    import torch

    from ..core.abilities import CanComplete
    from ..core.overrides import Overrides
    from ..run import run as runs

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    found, overrides = runs.load(run), Overrides.parse(settings)
    there = found.rows(data)
    batch = there.batch(torch.arange(min(rows or len(there), len(there))))
    if hide:
        hidden = mask(hide, found.space)
        steps = batch.x.shape[1] if found.space.varies else None  # padded to these rows' longest
        seen = batch.observed_mask & ~hidden[:steps]
        batch = replace(batch, observed=seen)
    anew = tuple(f"{name}={value}" for name, value in (("noise", noise), ("edit", edit)) if value)
    if not anew and (batch.observed is None or bool(batch.observed.all())):
        raise DataError("nothing is missing in these rows; say what to hide with --hide")
    every = batch[torch.arange(len(batch)).repeat_interleave(count)]
    x = found.complete(every, *overrides.model, *overrides.sample, *anew, seed=seed)
    if out.suffix == ".png" and found.space.is_picture:
        x = side_by_side(batch, x, count)
    write(found, x, out, every.length)
    method = (
        "drawn anew from whole rows, " + " ".join(anew)
        if anew
        else found.require(CanComplete).completion
    )
    console.note(f"{'entries' if anew else 'hidden entries'} are {method}")
    result = {
        "run": str(found.folder),
        "rows": len(batch),
        "completions": count,
        "file": str(out),
        "method": method,
    }
    console.result(result, str(out))


def mask(hide: str, space: Space) -> Tensor:
    """True where an event is hidden, in the shape of an event."""
    import numpy as np
    import torch

    if hide not in PARTS:
        path = Path(hide)
        if path.suffix != ".npy" or not path.is_file():
            raise UsageError(f"--hide {hide} is neither {', '.join(PARTS)} nor a .npy file")
        known = torch.from_numpy(np.load(path, allow_pickle=False).astype(bool))
        if tuple(known.shape) not in (space.shape, space.shape[1:]):
            raise DataError(
                f"{hide} has the shape {tuple(known.shape)}, and an event has "
                f"{space.shape}; make them equal"
            )
        return known.expand(space.shape)
    if not space.is_picture:
        raise UsageError(f"--hide {hide} is for pictures, and these are {space}; give a .npy file")
    height, width = space.shape[1:]
    hidden = torch.zeros(space.shape, dtype=torch.bool)
    spans = {
        "lower": (height // 2, height, 0, width),
        "upper": (0, height // 2, 0, width),
        "left": (0, height, 0, width // 2),
        "right": (0, height, width // 2, width),
        "box": (height // 4, height - height // 4, width // 4, width - width // 4),
    }
    top, bottom, left, right = spans[hide]
    hidden[:, top:bottom, left:right] = True
    return hidden


def side_by_side(batch: Batch, x: Tensor, count: int) -> Tensor:
    """For each row what was shown, each completion, and the truth."""
    import torch

    shown = torch.where(batch.observed_mask, batch.x, batch.x.amin())
    completed = x.reshape(len(batch), count, *x.shape[1:])
    return torch.cat([shown[:, None], completed, batch.x[:, None]], 1).flatten(0, 1)
