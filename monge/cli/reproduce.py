"""Repeat published tables: measured figures beside published ones

Without a name the tables are listed, with their data, models, published figures and sources, the
time they take and what of their data is on this machine. What was interrupted goes on where it
was, and what is done is not done again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from ..comparison.published import SOURCES, TABLES, Fit, Table, find, is_here, short
from ..core.errors import DataError
from ..train.cost_description import duration
from ._output import THREADS, Console, common
from .main import Named

if TYPE_CHECKING:
    from ..comparison.reproduction import FitResult


@click.command("reproduce")
@click.argument("table", required=False, type=Named(lambda: TABLES))
@click.option(
    "--data",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder of data, searched before those of MONGE_DATA.",
)
@click.option(
    "--only",
    multiple=True,
    help="Only the fit of this name, or those whose names contain it, such as nltcs.",
)
@click.option("--budget", help="Of each fit, in place of the table's own, such as 30s.")
@click.option("--repeats", type=click.IntRange(1), help="Splits or seeds of each line, at most.")
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Of each fit.")
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Fits at a time."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where TABLE.json and the curves over time are written.",
)
@common
def command(
    console: Console,
    table: str | None,
    folder: Path | None,
    only: tuple[str, ...],
    budget: str | None,
    repeats: int | None,
    threads: int,
    jobs: int,
    out: Path,
) -> None:
    """Fit the models of a published TABLE, score them, and print measured beside published
    figures. Without TABLE: list the tables."""
    if folder is not None:
        search_first(folder)
    if table is None:
        listed = [describe(each) for each in TABLES.values()]
        console.result(
            {"tables": listed},
            "\n\n".join(listing(each, console.width()) for each in TABLES.values()),
        )
        return
    repeat(console, find(table), only, budget, repeats, threads, jobs, out)


def search_first(folder: Path) -> None:
    """Look for data in this folder too; if it holds the sets of a benchmark themselves, in the
    folder above it."""
    if not folder.is_dir():
        raise DataError(f"expected a folder of data, found none at {folder}; name one that exists")
    whole = folder.absolute()
    known = {Path(data).parts[0] for table in TABLES.values() for data in table.data}
    places = [whole.parent, whole] if whole.name in known else [whole]
    rest = os.environ.get("MONGE_DATA", "")
    os.environ["MONGE_DATA"] = os.pathsep.join(filter(None, [*map(str, places), rest]))


# the tables there are


def describe(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "data": {name: is_here(name) for name in table.data},
        "models": table.models,
        "published": [
            {"data": data, "by": figure.by, "metric": figure.metric, "value": figure.value}
            | {"stderr": figure.stderr, "source": SOURCES[source]}
            for source, figures in table.published.items()
            for data, figure in figures
        ],
        "seconds": table.seconds,
        "departs": table.departs,
    }


def listing(table: Table, width: int | None) -> str:
    """A table in some lines."""
    lacking = table.missing()
    here = [name for name in table.data if name not in lacking]
    data = f"{', '.join(here)} on this machine" if here else ""
    if lacking:
        data += f"{'; ' if here else ''}{', '.join(lacking)} not found (--data or MONGE_DATA)"
    fits = sum(fit.repeats for fit in table.fits)
    lines = [
        ("data", data),
        ("models", ", ".join(table.models)),
        ("time", f"{fits} fits, at most {duration(table.seconds)} of one thread"),
        *(("published", text) for text in published(table)),
        ("departs", table.departs),
    ]
    wrapped = [
        fill(text, width or 10**6, initial_indent=f"  {name:11}", subsequent_indent=" " * 13)
        for name, text in lines
    ]
    return "\n".join([f"{table.name}: {table.title}", *wrapped])


def published(table: Table) -> Iterator[str]:
    """What each source states, in one line."""
    for source, figures in table.published.items():
        one = len({data for data, _ in figures}) == 1
        groups: dict[str, list[str]] = {}
        for data, figure in figures:
            error = f" ± {figure.stderr:g}" if figure.stderr is not None else ""
            name = figure.metric if one else f"{figure.by}, {figure.metric}"
            what = figure.by if one else data
            groups.setdefault(name, []).append(f"{what} {figure.value:g}{error}")
        stated = "; ".join(f"{name}: {', '.join(values)}" for name, values in groups.items())
        yield f"{stated} ({SOURCES[source]})"


# one table


def repeat(
    console: Console,
    table: Table,
    only: Sequence[str],
    budget: str | None,
    repeats: int | None,
    threads: int,
    jobs: int,
    out: Path,
) -> None:
    from ..comparison.reproduction import kept_lines, reproduce, write

    if lacking := table.missing():
        console.note(f"not on this machine, left out: {', '.join(lacking)}")
    console.note(table.departs)
    out.mkdir(parents=True, exist_ok=True)
    kept_lines(out / f"{table.name}.json")  # refused before the first fit
    lines = []
    for each in reproduce(table, only, budget, repeats, threads, jobs):
        if each.repeat is None:
            lines.append(each)
            path = write(table, [each], out)
        else:
            console.note(progress(each))
    rows = [row for each in lines for row in result_rows(each)]
    head = ("data", "model", "metric", "measured", "95 %", "published", "by", "seconds")
    text = console.table(head, rows, keys=2)
    console.note(f"kept in {path}")
    console.result(
        {"table": table.name, "file": str(path), "lines": [result(each) for each in lines]}, text
    )


def progress(each: FitResult) -> str:
    found = ", ".join(f"{name} {score.value:.4g}" for name, score in each.metrics.items())
    number = f" ({(each.repeat or 0) + 1} of {each.fit.repeats})" if each.fit.repeats > 1 else ""
    return f"{each.fit.name}{number}: {found}, {each.seconds:.0f} s"


def result_rows(each: FitResult) -> Iterator[list[Any]]:
    """A line of the printed table for each metric, and for each figure beside it."""
    fit: Fit = each.fit
    for metric, score in each.metrics.items():
        low, high = each.interval(metric)
        figures = [figure for figure in fit.published if figure.metric == metric]
        own = [short(fit.data), fit.model + f", {fit.label}" * bool(fit.label), metric]
        own += [f"{score.value:.4g}", f"{low:.4g} to {high:.4g}"]
        stated = [
            (f"{f.value:g}" + (f" ± {f.stderr:g}" if f.stderr is not None else ""), f.by)
            for f in figures
        ] or [("", "")]
        yield [*own, *stated[0], round(each.seconds, 1)]
        for more in stated[1:]:
            yield [short(fit.data), "", "", "", "", *more, None]


def result(each: FitResult) -> dict[str, Any]:
    return {
        "name": each.fit.name,
        "metrics": {
            name: score.to_dict() | {"interval": each.interval(name)}
            for name, score in each.metrics.items()
        },
        "seconds": each.seconds,
    }
