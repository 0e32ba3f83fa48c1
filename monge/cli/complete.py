"""Fill in missing or hidden values: impute a table, inpaint an image

Observed values stay; the rest is sampled from the model given the observed values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import DataError, UsageError
from ..core.files import load_array
from ..run.writers import PART, as_frame, frame, write, write_arrays, write_table, write_tables
from ._output import SEED, Console, Output, common, gather_files

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.batch import Batch
    from ..core.space import Space
    from ..data.batches import Split
    from ..run.completion import Completed, FillBy
    from ..run.run import Run


PARTS = ("lower", "upper", "left", "right", "box")


@click.command("complete")
@click.argument("run")
@click.argument("data", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--hide",
    metavar="PART|FILE",
    help=f"Hide this part of each image ({', '.join(PARTS)}), or "
    "the entries that are true in a boolean .npy of the shape of one row. By default the "
    "missing cells of DATA are filled in.",
)
@click.option(
    "--noise",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Denoise: the rows have Gaussian noise of standard deviation S, in data units; sample "
    "the rows without it.",
)
@click.option(
    "--edit",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="T",
    help="Noise the rows up to diffusion time T, then denoise them; near 1 little remains.",
)
@click.option(
    "--rows", type=click.IntRange(1), metavar="N", help="Complete the first N rows only."
)
@click.option(
    "-n",
    "--draws",
    "count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Completions per row, each sampled anew.",
)
@click.option(
    "--mean", is_flag=True, help="Fill in the mean of numbers and the most frequent name."
)
@click.option("--median", is_flag=True, help="Fill in the median instead of the mean.")
@click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="P",
    help="Add the ends of the interval of probability P of each number that was filled in, in "
    "columns NAME.low and NAME.high.",
)
@click.option(
    "--keep-holes",
    multiple=True,
    metavar="COLUMN",
    help="Leave the empty cells of this column empty, as a fact about the row. Repeatable.",
)
@click.option(
    "-o",
    "--out",
    type=Output(".csv", ".npz", ".png", ".wav"),
    required=True,
    help="File: .csv, .npz, or .png (each row masked, completed and true).",
)
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Same seed, same completions."
)
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
    mean: bool,
    median: bool,
    interval: float | None,
    keep_holes: tuple[str, ...],
    out: Path,
    seed: int,
) -> None:
    """Complete the rows of DATA (by default the test rows of RUN): its empty cells are taken to
    hold a value that is not known. KEY=VALUE sets a sampling option; `monge models MODEL` lists
    them.

    --noise and --edit are for diffusion models: they resample whole rows.
    """
    from ..core.abilities import CanComplete
    from ..core.config import Overrides
    from ..core.rng import make_generator
    from ..run import run as runs
    from ..run.completion import (
        POINT_DRAWS,
        about_known_cells,
        about_unknown_rows,
        array_rows,
        completed_table,
        unknown_cells,
    )

    if data is not None and "=" in data and not Path(data).exists():
        settings, data = (data, *settings), None
    data, settings = gather_files(console, data, settings)
    found, overrides = runs.load(run), Overrides.parse(settings)
    denoised = array_rows(found.view, data, True) if noise and data else None
    if denoised is None:
        there = found.split(data, every=True)
        there = next(there.parts(min(rows or len(there), max(len(there), 1))))
    by = chosen_by(mean, median, count)
    if interval is not None and out.suffix != ".csv":
        raise UsageError(f"--interval needs a table, found -o {out.name}; use -o NAME.csv")
    anew = tuple(f"{name}={value}" for name, value in (("noise", noise), ("edit", edit)) if value)
    generator = make_generator(seed, found.compute.torch_device())
    filled, nothing, some = 0, 0, bool(anew)
    how: dict[str, None] = {}

    def completions(size: int) -> Iterator[tuple[Split, Batch, Completed]]:
        nonlocal filled, nothing, some
        for part in there.parts(size):
            batch = unknown_cells(part.whole(), found.space, keep_holes)
            if hide:
                hidden = mask(hide, found.space)
                # padded to these rows' longest
                steps = batch.x.shape[1] if found.space.varies else None
                seen = batch.observed_mask & ~hidden[:steps]
                batch = replace(batch, observed=seen)
            some |= batch.observed is not None and not bool(batch.observed.all())
            if not some and part.first + len(part) >= len(there):
                raise DataError(
                    "these rows have no missing values; choose what to hide with --hide"
                )
            completed = found.complete_batch(
                batch,
                *overrides.model,
                *overrides.sample,
                *anew,
                by=by,
                draws=count,
                interval=interval,
                generator=generator,
                implied=part.implied,
            )
            filled += int(completed.filled.sum())
            nothing += completed.unknown_rows
            how.update(dict.fromkeys(completed.notes))
            yield part, batch, completed

    if denoised is not None:
        batch = denoised[: rows or len(denoised)]
        words = (*overrides.model, *overrides.sample, *anew)
        x = found.complete_batch(batch, *words, by=by, draws=count, generator=generator).x
        write(found, side_by_side(batch, x, count) if out.suffix == ".png" else x, out)
    elif out.suffix == ".csv" and interval is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_tables(
            (
                as_frame(found, completed_table(found.view, part, done, as_text=True))
                for part, _, done in completions(PART)
            ),
            out,
        )
    else:
        part, batch, completed = next(completions(max(len(there), 1)))
        x = completed.x
        if out.suffix == ".png" and found.space.is_image:
            x = side_by_side(batch, x, count)
        length = None if batch.length is None else batch.length.repeat_interleave(count)
        if interval is not None:
            write_intervals(found, part, completed, out)
        elif found.view.selection.schema.table and out.suffix == ".npz":
            table = as_frame(found, completed_table(found.view, part, completed))
            write_arrays(out, {str(name): cells.to_numpy() for name, cells in table.items()})
        else:
            write(found, x, out, length)
    cells = about_known_cells(found.view, there) if denoised is None else []
    for note in (*found.notes, *how, *about_unknown_rows(nothing), *cells):
        console.note(note)
    method = (
        "resampled from whole rows, " + " ".join(anew)
        if anew
        else found.require(CanComplete).completion
    )
    if by != "sample":
        method += f"; numbers are the {by}, names the most frequent, of {POINT_DRAWS} such samples"
    console.note(f"{'entries' if anew else 'hidden entries'} are {method}")
    result = {
        "run": str(found.folder),
        "rows": len(there) if denoised is None else len(batch),
        "completions": count,
        "filled": filled,
        "file": str(out),
        "method": method,
    }
    console.result(result, str(out))


def chosen_by(mean: bool, median: bool, count: int) -> FillBy:
    """How cells are filled in."""
    if mean and median:
        raise UsageError("--mean and --median exclude one another; give one of them")
    if (mean or median) and count > 1:
        name = "mean" if mean else "median"
        raise UsageError(f"--{name} gives one completion per row; remove --draws {count}")
    return "mean" if mean else "median" if median else "sample"


def write_intervals(run: Run, rows: Split, completed: Completed, out: Path) -> None:
    """A table whose filled-in numbers have the ends of their intervals beside them."""
    from ..run.completion import completed_table, replaced_cells

    table = as_frame(run, completed_table(run.view, rows, completed, as_text=True))
    if completed.low is None or completed.high is None:
        raise UsageError("--interval needs completions of numbers; leave it out")
    ends = {"low": frame(run, completed.low, {}), "high": frame(run, completed.high, {})}
    times = len(table) // len(completed.filled)
    filled = replaced_cells(run.view, rows, completed, times)
    for field in run.view.event.fields:
        here = filled[field.name]
        if field.space.kind not in ("real", "counts") or not here.any():
            continue
        for name, other in ends.items():
            values = other[field.key].repeat(times).to_numpy()
            label = f"{field.key}.{name}"
            table[label] = [v if use else None for v, use in zip(values, here, strict=True)]
    write_table(table, out)


def mask(hide: str, space: Space) -> Tensor:
    """True at hidden entries, in the shape of one row."""
    import torch

    if hide not in PARTS:
        path = Path(hide)
        if path.suffix != ".npy" or not path.is_file():
            raise UsageError(f"--hide: expected {', '.join(PARTS)} or a .npy file, found {hide}")
        try:
            known = torch.from_numpy(load_array(path).astype(bool))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"--hide: expected true and false, or 1 and 0, found {error}; save the mask with "
                "numpy.save"
            ) from error
        if tuple(known.shape) not in (space.shape, space.shape[1:]):
            raise DataError(
                f"{hide}: expected the shape {space.shape} of one row, found "
                f"{tuple(known.shape)}; reshape the mask"
            )
        return known.expand(space.shape)
    if not space.is_image:
        raise UsageError(f"--hide {hide} needs images, found {space}; give a .npy file")
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
    """For each row the masked row, each completion and the true row."""
    import torch

    shown = torch.where(batch.observed_mask, batch.x, batch.x.amin())
    completed = x.reshape(len(batch), count, *x.shape[1:])
    return torch.cat([shown[:, None], completed, batch.x[:, None]], 1).flatten(0, 1)
