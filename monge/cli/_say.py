"""What every verb shares: its common options, and how it speaks to people and to programs."""

from __future__ import annotations

import functools
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

WIDE = 80
"""Characters a cell of a table may take."""


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb: --json, -q, -v, --debug (which main takes off)."""
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more.")
    @click.option("--debug", is_flag=True, help="Show where an error comes from.")
    @functools.wraps(command)
    def wrapped(as_json: bool, quiet: bool, verbose: bool, debug: bool, **rest: Any) -> Any:
        voice = Voice(as_json, quiet, verbose)
        return command(voice, **rest)

    return wrapped


class Voice:
    """Results on stdout, everything else on stderr; with --json one value and nothing else."""

    def __init__(self, as_json: bool, quiet: bool, verbose: bool) -> None:
        self.as_json, self.verbose = as_json, verbose
        self.quiet = quiet or as_json

    @property
    def lively(self) -> bool:
        """Whether a person watches, so that a bar may move."""
        return sys.stderr.isatty() and not self.quiet

    def note(self, text: str) -> None:
        """Something said on the way."""
        if not self.quiet:
            click.echo(text, err=True)

    def result(self, value: Any, text: str | None = None) -> None:
        """The outcome: `value` for programs, `text` for people."""
        if self.as_json:
            click.echo(json.dumps(finite(value), ensure_ascii=False))
        elif text is not None:
            click.echo(text)

    @property
    def room(self) -> int | None:
        """Characters of a line of the terminal; None where a file or a program reads."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]], wide: int | None = WIDE,
              keys: int = 1) -> str:
        """Columns aligned; a cell of more than `wide` characters is cut. In a terminal that is too
        narrow the last column is wrapped where it is not cut, and otherwise columns go on in a
        block below, each with the first `keys` columns."""
        cells = [[*map(str, head)], *([show(cell, wide) for cell in row] for row in rows)]
        if self.room is None:
            return aligned(cells)
        if wide is None:
            return aligned(wrapped(cells, self.room))
        return "\n\n".join(aligned([[row[place] for place in block] for row in cells])
                           for block in blocks(widths(cells), keys, self.room))


def widths(cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def aligned(cells: list[list[str]]) -> str:
    wide = widths(cells)
    return "\n".join("  ".join(map(str.ljust, row, wide)).rstrip() for row in cells)


def wrapped(cells: list[list[str]], room: int) -> list[list[str]]:
    """The last column in as many lines as it takes."""
    *first, _ = widths(cells)
    left = max(room - sum(first) - 2 * len(first), 24)
    return [[*(row[:-1] if number == 0 else [""] * len(first)), line]
            for row in cells for number, line in enumerate(textwrap.wrap(row[-1], left) or [""])]


def blocks(wide: list[int], keys: int, room: int) -> Iterator[list[int]]:
    """Places of columns that stand beside one another."""
    base = list(range(min(keys, len(wide))))
    used, block = sum(wide[place] + 2 for place in base), [*base]
    for place in range(len(base), len(wide)):
        if len(block) > len(base) and used + wide[place] > room:
            yield block
            used, block = sum(wide[each] + 2 for each in base), [*base]
        block.append(place)
        used += wide[place] + 2
    yield block


def show(cell: Any, wide: int | None = WIDE) -> str:
    """A cell for people: numbers short, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    text = " ".join(map(str, cell)) if isinstance(cell, (tuple, list)) else str(cell)
    return text if wide is None or len(text) <= wide else text[:wide - 1] + "…"


def choosing(text: str, choices: Sequence[str]) -> str:
    """Help with the words that may be chosen behind it."""
    return f"{text} [{' | '.join(choices)}]" if choices else text


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for both."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
