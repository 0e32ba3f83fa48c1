"""Encode rows; plot latent traversals, interpolations, arithmetic and transfers

Without a flag the latent codes are written to a table, or plotted in the plane as .png.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import UsageError
from ..run.writers import write, write_arrays, write_table
from ._output import SEED, Console, Output, common
from .sample import parse_pair

if TYPE_CHECKING:
    from ..run.run import Run


TABLES = (".csv", ".parquet", ".npz")


@click.command("encode")
@click.argument("run")
@click.argument("data", required=False)
@click.option(
    "-o",
    "--out",
    type=Output(".csv", ".parquet", ".npz", ".png", ".wav"),
    required=True,
    help="File: .csv, .parquet or .npz of codes, .png for a scatter plot; with a flag below, "
    ".png, .csv or .npz of the decoded rows.",
)
@click.option(
    "--traverse",
    is_flag=True,
    help="Traverse each latent dimension over its range, one line each.",
)
@click.option(
    "--interpolate",
    is_flag=True,
    help="Interpolate between the codes of pairs of rows, one line each.",
)
@click.option(
    "--arithmetic", metavar="SUM", help='Add and subtract the mean codes of labels: "+a -b +c".'
)
@click.option(
    "--transfer",
    is_flag=True,
    help="Decode the codes of rows under other conditions: those of --given, or those of every "
    "other row.",
)
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Condition that --transfer sets for all rows.",
)
@click.option("--field", help="Label field for --arithmetic, if there are several.")
@click.option(
    "--row",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Row whose code --traverse starts from.",
)
@click.option(
    "-n",
    "lines",
    type=click.IntRange(1),
    help="Maximum number of lines (dimensions or interpolations).",
)
@click.option(
    "--steps", type=click.IntRange(2), default=9, show_default=True, help="Decoded rows per line."
)
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test", "all"]),
    help="Rows to encode: by default the test split if there are splits, else all.",
)
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of the codes of a model without an encoder.",
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
    """Encode DATA (by default the test rows of RUN), or decode paths through the latent space."""
    from ..run import latent
    from ..run import run as runs

    if traverse + interpolate + (arithmetic is not None) + transfer > 1:
        raise UsageError(
            "expected one of --traverse, --interpolate, --arithmetic and --transfer, found "
            "several; remove all but one"
        )
    if given and not transfer:
        raise UsageError(f"--given {given[0]} needs --transfer; add --transfer")
    found = runs.load(run)
    if traverse:
        sheet = latent.traverse(found, data, split, row - 1, lines or latent.LINES, steps, seed)
    elif interpolate:
        sheet = latent.interpolate(found, data, split, lines or 8, steps, seed)
    elif arithmetic is not None:
        sheet = latent.arithmetic(found, arithmetic, data, split, field, seed)
    elif transfer:
        pairs = map(parse_pair, given)
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


def write_codes(
    console: Console, run: Run, data: str | None, split: str | None, out: Path
) -> None:
    """Write the codes as a table, or plot them."""
    import numpy as np

    from ..run.figures import write_codes
    from ..run.latent import table

    if out.suffix not in (*TABLES, ".png"):
        raise UsageError(
            f"cannot write codes to {out.suffix or 'a file without a suffix'}; use "
            ".csv, .parquet, .npz or .png"
        )
    codes = table(run, data, split)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".npz":
        arrays: Any = {name: np.array(codes[name].to_list()) for name in codes}
        write_arrays(out, arrays)
    elif out.suffix == ".png":
        write_codes(run, codes, out)
    else:
        write_table(codes, out)
    result = {"run": str(run.folder), "rows": len(codes), "columns": list(codes), "file": str(out)}
    console.result(result, str(out))
