"""Rows as codes, and pictures of walks, sums and transfers of codes

Without a flag the codes are written, or with a picture's suffix drawn in the plane.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ._output import Console, common
from ._writers import OUTPUT, write, write_arrays, write_table
from .sample import pair

if TYPE_CHECKING:
    from ..run.run import Run


TABLES = (".csv", ".parquet", ".npz")


@click.command("encode")
@click.argument("run")
@click.argument("data", required=False)
@click.option(
    "-o",
    "--out",
    type=OUTPUT,
    required=True,
    help="File: .csv, .parquet or .npz of codes, .png for a map of them; with a flag "
    "below .png, .csv or .npz of what is decoded.",
)
@click.option(
    "--traverse", is_flag=True, help="Each dimension of the code over its range, a line each."
)
@click.option("--interpolate", is_flag=True, help="Walks between the codes of rows, a line each.")
@click.option(
    "--arithmetic", metavar="SUM", help='Mean codes of labels added and subtracted: "+a -b +c".'
)
@click.option(
    "--transfer",
    is_flag=True,
    help="Rows whose codes are kept while what they are "
    "given changes: to what --given says, or else to what each other row is given.",
)
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A condition that --transfer changes for all rows.",
)
@click.option("--field", help="The labels that --arithmetic means, where there are several.")
@click.option(
    "--row",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="The row whose code --traverse starts from.",
)
@click.option("-n", "lines", type=click.IntRange(1), help="Lines: dimensions or walks, at most.")
@click.option(
    "--steps", type=click.IntRange(2), default=9, show_default=True, help="Events in a line."
)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to encode: by default test where there are splits, all otherwise.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Codes drawn where the model is a generator, which has none of data.",
)
@common
def command(
    console: Console,
    run: str,
    data: str | None,
    out: Path,
    traverse: bool,
    interpolate: bool,
    arithmetic: str | None,
    transfer: bool,
    given: tuple[str, ...],
    field: str | None,
    row: int,
    lines: int | None,
    steps: int,
    split: str | None,
    seed: int,
) -> None:
    """Write the codes of DATA (or of the run's own test rows) under RUN, or what comes of moving
    along them."""
    from ..run import latent
    from ..run import run as runs

    if traverse + interpolate + (arithmetic is not None) + transfer > 1:
        raise UsageError(
            "--traverse, --interpolate, --arithmetic and --transfer are four "
            "pictures; ask for one at a time"
        )
    if given and not transfer:
        raise UsageError(f"--given {given[0]} says what --transfer changes; add --transfer")
    found = runs.load(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    if traverse:
        sheet = latent.traverse(found, data, split, row - 1, lines or latent.LINES, steps, seed)
    elif interpolate:
        sheet = latent.interpolate(found, data, split, lines or 8, steps, seed)
    elif arithmetic is not None:
        sheet = latent.arithmetic(found, arithmetic, data, split, field, seed)
    elif transfer:
        pairs = map(pair, given)
        conditions = {name: found.view.encode_given(name, text) for name, text in pairs}
        sheet = latent.transfer(found, data, split, lines or 8, conditions)
    else:
        write_codes(console, found, data, split, out)
        return
    paths = write(found, sheet.x, out, columns=sheet.columns)
    result = {
        "run": str(found.folder),
        "lines": list(sheet.lines),
        "columns": sheet.columns,
        "file": str(paths[0]),
    }
    console.result(result, str(paths[0]))


def write_codes(console: Console, run: Run, data: str | None, split: str | None, out: Path) -> None:
    """A table of codes, or a map of them."""
    import numpy as np

    from ..run.figures import draw_codes
    from ..run.latent import table

    if out.suffix not in (*TABLES, ".png"):
        raise UsageError(
            f"cannot write codes to {out.suffix or 'a file without a suffix'}; use "
            ".csv, .parquet, .npz or .png"
        )
    codes = table(run, data, split)
    if out.suffix == ".npz":
        arrays: Any = {name: np.array(codes[name].to_list()) for name in codes}
        write_arrays(out, **arrays)
    elif out.suffix == ".png":
        draw_codes(run, codes, out)
    else:
        write_table(codes, out)
    result = {"run": str(run.folder), "rows": len(codes), "columns": list(codes), "file": str(out)}
    console.result(result, str(out))
