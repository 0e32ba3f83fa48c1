"""Tables as text: plain for files and pipes, fitted to the width of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

MIN_TEXT_WIDTH = 16
"""Characters below which a column of text is not wrapped."""
UNLIMITED_WIDTH = 10**6

Cells = Sequence[Sequence[Any]]


def format_table(head: Sequence[str], rows: Cells, keys: int = 1, width: int | None = None) -> str:
    """Aligned columns, no cell cut. Without a width each row takes one line; with one, columns of
    text are wrapped, and columns that still do not fit follow in blocks below, each with the first
    `keys` columns."""
    if width is None:
        return render(
            plain_table(head, rows), Console(width=UNLIMITED_WIDTH, height=1, color_system=None)
        )
    console = Console(width=width, height=1)
    need = [min_width(column) for column in columns(head, rows)]
    parts = [
        terminal_table(
            [head[place] for place in block],
            [[row[place] for place in block] for row in rows],
            width,
        )
        for block in blocks(need, keys, width)
    ]
    return "\n\n".join(render(part, console) for part in parts)


def plain_table(head: Sequence[str], rows: Cells) -> Table:
    """A table without lines."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in head:
        table.add_column(Text(name), no_wrap=True)
    for row in rows:
        table.add_row(
            *(Text(format_cell(cell)) for cell in row)
        )  # as it is: brackets are no markup
    return table


def terminal_table(head: Sequence[str], rows: Cells, width: int) -> Table:
    """A table with a line below its head, and numbers to the right. Columns that
    fit are not wrapped."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    cells = columns(head, rows)
    fits = sum(min_width(column) + 2 for column in cells) - 2 <= width
    for place, column in enumerate(cells):
        numeric = {type(row[place]) for row in rows} <= {int, float, type(None)}
        table.add_column(
            Text(head[place], "bold"),
            overflow="fold",
            justify="right" if numeric else "left",
            no_wrap=fits and max(map(cell_len, column)) <= min_width(column),
        )
    for row in rows:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    return table


def render(table: Table, console: Console) -> str:
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def columns(head: Sequence[str], rows: Cells) -> list[list[str]]:
    """The text of each column, its head first."""
    return [[name, *(format_cell(row[place]) for row in rows)] for place, name in enumerate(head)]


def min_width(column: Sequence[str]) -> int:
    """Minimum characters of a column: its longest word, or all of a short text."""
    words = (cell_len(word) for cell in column for word in cell.split())
    return max(min(max(map(cell_len, column)), MIN_TEXT_WIDTH), *words, 0)


def blocks(need: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """Indices of the columns of each block; columns are two characters apart."""
    base = list(range(min(keys, len(need))))
    used, block = sum(need[place] + 2 for place in base), [*base]
    for place in range(len(base), len(need)):
        if len(block) > len(base) and used + need[place] > width:
            yield block
            used, block = sum(need[each] + 2 for each in base), [*base]
        block.append(place)
        used += need[place] + 2
    yield block


def format_cell(cell: Any) -> str:
    """A cell as text: four digits of a number, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return " ".join(map(str, cell)) if isinstance(cell, (tuple, list)) else str(cell)
