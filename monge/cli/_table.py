"""Tables: of plain text for files and programs, and for a terminal as wide as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

EASY = 16
"""Characters to which a column of text is wrapped without becoming hard to read."""
UNLIMITED = 10**6
"""Characters of a line that nothing reaches."""

Cells = Sequence[Sequence[Any]]


def written(head: Sequence[str], rows: Cells, keys: int = 1, room: int | None = None) -> str:
    """Columns aligned and every cell whole. Without a limit each row takes one line; where a line
    has `room` for so many characters, columns of text are wrapped, and those for which there is
    no room even so go on in a block below, each with the first `keys` columns."""
    if room is None:
        return rendered(plain(head, rows), Console(width=UNLIMITED, height=1, color_system=None))
    console = Console(width=room, height=1)
    need = [narrowest(column) for column in columns(head, rows)]
    parts = [
        pretty(
            [head[place] for place in block],
            [[row[place] for place in block] for row in rows],
            room,
        )
        for block in blocks(need, keys, room)
    ]
    return "\n\n".join(rendered(part, console) for part in parts)


def plain(head: Sequence[str], rows: Cells) -> Table:
    """A table without lines."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in head:
        table.add_column(Text(name), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(show(cell)) for cell in row))  # as it is: brackets are no markup
    return table


def pretty(head: Sequence[str], rows: Cells, room: int) -> Table:
    """A table with a line below its head, and numbers to the right. Columns that would lose by
    wrapping are not wrapped, unless nothing else is possible."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    cells = columns(head, rows)
    fits = sum(narrowest(column) + 2 for column in cells) - 2 <= room
    for place, column in enumerate(cells):
        numeric = {type(row[place]) for row in rows} <= {int, float, type(None)}
        table.add_column(
            Text(head[place], "bold"),
            overflow="fold",
            justify="right" if numeric else "left",
            no_wrap=fits and max(map(cell_len, column)) <= narrowest(column),
        )
    for row in rows:
        table.add_row(*(Text(show(cell)) for cell in row))
    return table


def rendered(table: Table, console: Console) -> str:
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def columns(head: Sequence[str], rows: Cells) -> list[list[str]]:
    """The text of each column, its head first."""
    return [[name, *(show(row[place]) for row in rows)] for place, name in enumerate(head)]


def narrowest(column: Sequence[str]) -> int:
    """Characters that a column takes at least: its longest word, or all where that is little."""
    words = (cell_len(word) for cell in column for word in cell.split())
    return max(min(max(map(cell_len, column)), EASY), *words, 0)


def blocks(need: Sequence[int], keys: int, room: int) -> Iterator[list[int]]:
    """Places of columns that stand beside one another, two characters apart."""
    base = list(range(min(keys, len(need))))
    used, block = sum(need[place] + 2 for place in base), [*base]
    for place in range(len(base), len(need)):
        if len(block) > len(base) and used + need[place] > room:
            yield block
            used, block = sum(need[each] + 2 for each in base), [*base]
        block.append(place)
        used += need[place] + 2
    yield block


def show(cell: Any) -> str:
    """A cell for people: numbers short, nothing for None."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return " ".join(map(str, cell)) if isinstance(cell, (tuple, list)) else str(cell)
