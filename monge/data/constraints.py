"""Constraints on the columns of a table: end>=start, 0<=rate<=100, total=a+b.

Numbers, names of columns (odd ones in backticks), + - * / and comparisons, which may be chained.
A comparison of a column with a number is a bound, of two columns an ordering, and an equation with
a single column on one side computes that column; all others are checked in samples. Dates count
in their own unit: days, minutes, seconds or months.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import DataError, UsageError, nearest
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.scalar import Binary, Number, listed
from .codecs.time_index import DAY
from .readers.base import RowLocations

ROUNDING = 1e-6
"""Largest error of an equation, relative to the largest number of its columns: float32 has seven
digits."""
QUOTED = re.compile(r"`([^`]*)`")
SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")

OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
COMPARISONS: Mapping[type[ast.AST], str] = {
    ast.Eq: "=",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
HOLDS: Mapping[str, Callable[[Any, Any], Any]] = {
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Numbers = Mapping[str, np.ndarray]
"""The columns (N,) as float64, NaN where a cell is empty."""


@dataclass(frozen=True)
class Expression:
    """A number computed from columns."""

    text: str
    columns: tuple[str, ...]
    compute: Callable[[Numbers], Any]

    @property
    def column(self) -> str | None:
        """The column, if the expression is nothing else."""
        alone = self.columns and self.text.strip("`") == self.columns[0]
        return self.columns[0] if alone else None

    @property
    def constant(self) -> float | None:
        """The value, if the expression has no columns."""
        return None if self.columns else float(self.compute({}))


@dataclass(frozen=True)
class ColumnConstraint:
    """left < right and the like; an empty cell breaks none."""

    left: Expression
    sign: str
    right: Expression
    text: str  # as the user wrote it, with the rest of its chain

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.left.columns + self.right.columns))

    @property
    def spelled(self) -> str:
        """The comparison alone, as it can be read again."""
        return f"{self.left.text} {self.sign} {self.right.text}"

    @property
    def bound(self) -> tuple[str, str, float] | None:
        """The column, the sign and the number of a bound."""
        for side, sign, other in self.sides():
            if side.column is not None and other.constant is not None and sign[0] in "<>":
                return side.column, sign, other.constant
        return None

    @property
    def ordering(self) -> tuple[str, str] | None:
        """The smaller and the larger column of an ordering that admits equality."""
        for side, sign, other in self.sides():
            if side.column and other.column and sign == "<=":
                return side.column, other.column
        return None

    @property
    def equation(self) -> tuple[str, Expression] | None:
        """The column that an equation computes, and what it equals."""
        for side, sign, other in self.sides():
            if side.column and sign == "=" and side.column not in other.columns:
                return side.column, other
        return None

    def sides(self) -> tuple[tuple[Expression, str, Expression], ...]:
        return (
            (self.left, self.sign, self.right),
            (self.right, MIRRORED[self.sign], self.left),
        )

    def broken(self, numbers: Numbers) -> np.ndarray:
        """The rows (N,) that break it."""
        left, right = (np.asarray(side.compute(numbers)) for side in (self.left, self.right))
        known = ~(np.isnan(left) | np.isnan(right))
        if self.sign == "=":
            sizes = [np.nan_to_num(np.abs(numbers[name])) for name in self.columns]
            largest = max(size.max(initial=0) for size in sizes)
            return known & (np.abs(left - right) > ROUNDING * max(largest, 1.0))
        return known & ~HOLDS[self.sign](left, right)


def parse(texts: Sequence[str], known: Sequence[str]) -> list[ColumnConstraint]:
    """Every comparison of constraints that are separated by semicolons."""
    parts = [part.strip() for text in texts for part in split(text)]
    return [comparison for part in parts if part for comparison in parse_one(part, known)]


def split(text: str) -> list[str]:
    """The text at its semicolons, but not at those in the name of a column."""
    pieces = re.split(r"(`[^`]*`)", text)
    marked = "".join(piece if piece[:1] == "`" else piece.replace(";", "\0") for piece in pieces)
    return marked.split("\0")


def parse_one(text: str, known: Sequence[str]) -> list[ColumnConstraint]:
    """The comparisons of a chain such as 0<=rate<=100."""
    names: dict[str, str] = {}

    def stand_in(found: re.Match) -> str:
        names[f"_column_{len(names)}"] = found[1]
        return f" _column_{len(names) - 1} "

    source = SINGLE_EQUALS.sub("==", QUOTED.sub(stand_in, text))
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(
            f"data.constraints: expected a comparison such as end>=start, found {text!r}; write "
            "names of columns with other signs in backticks"
        ) from None
    if not isinstance(tree, ast.Compare) or not {type(op) for op in tree.ops} <= {*COMPARISONS}:
        raise UsageError(
            f"data.constraints: expected a comparison with =, !=, <, <=, > or >=, found {text!r}; "
            "write one such as end>=start"
        )
    terms = [expression(term, names, known, text) for term in (tree.left, *tree.comparators)]
    found = [
        ColumnConstraint(left, COMPARISONS[type(sign)], right, text)
        for left, sign, right in zip(terms, tree.ops, terms[1:], strict=False)
    ]
    idle = [each for each in found if not each.columns]
    if idle:
        raise UsageError(f"data.constraints: {text!r} compares numbers alone; name a column in it")
    return found


def expression(
    tree: ast.expr, names: Mapping[str, str], known: Sequence[str], text: str
) -> Expression:
    """What a part of a comparison computes."""
    match tree:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Expression(repr(value), (), lambda numbers: np.float64(value))
        case ast.Name(id=name):
            column = names.get(name, name)
            if column not in known:
                raise UsageError(
                    f"data.constraints: {text!r} names {column!r}, which is no "
                    f"column{nearest(column, known)}"
                )
            return Expression(f"`{column}`", (column,), lambda numbers: numbers[column])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = expression(operand, names, known, text)
            return Expression(
                f"(-{inner.text})", inner.columns, lambda numbers: -inner.compute(numbers)
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            a, b = (expression(side, names, known, text) for side in (left, right))
            act = OPERATIONS[type(op)]
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(op)]
            return Expression(
                f"({a.text} {sign} {b.text})",
                tuple(dict.fromkeys(a.columns + b.columns)),
                lambda numbers: quietly(act, a.compute(numbers), b.compute(numbers)),
            )
    raise UsageError(
        f"data.constraints: expected numbers, columns and + - * / in {text!r}, found "
        f"{ast.unparse(tree)!r}; compute it as a column of its own"
    )


def quietly(act: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Divisions by zero give infinity or NaN without a warning."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return act(a, b)


def parse_expression(text: str, known: Sequence[str]) -> Expression:
    """An expression that a schema stores."""
    return parse_one(f"{text} = 0", known)[0].left


def zero_of(codec: Codec) -> float:
    """The number that the code 0 stands for."""
    if isinstance(codec, Date):
        origin, unit = codec.clock.start, codec.clock.unit
        if unit == "month":
            return float(origin.astype("datetime64[M]").astype(np.int64)) / codec.clock.every
        return float(origin.astype(np.int64)) / codec.clock.every
    return float(getattr(codec, "offset", 0))


def unit_of(codec: Codec) -> str:
    """What a difference of one counts: nothing, or the unit of dates."""
    if not isinstance(codec, Date):
        return ""
    days = codec.clock.unit == "second" and codec.clock.every == DAY
    return "days" if days else codec.clock.step


def to_numbers(codec: Codec, codes: np.ndarray) -> np.ndarray:
    """The column (N,) in the numbers of the data, as constraints compute with them."""
    if isinstance(codec, Date):
        return codes.astype(np.float64) + zero_of(codec)
    decoded = codec.decode(codes)
    return np.array([np.nan if cell is None else float(cell) for cell in decoded.tolist()])


def is_numeric(codec: Codec) -> bool:
    numeric = isinstance(codec, Number | Date)
    return numeric or (isinstance(codec, Binary) and not codec.is_text)


def refuse_other_columns(
    comparisons: Sequence[ColumnConstraint], codecs: Mapping[str, Codec]
) -> None:
    """UsageError for columns of names, and for dates of different units."""
    for comparison in comparisons:
        for name in comparison.columns:
            if not is_numeric(codecs[name]):
                raise UsageError(
                    f"data.constraints: {comparison.text!r} computes with {name!r}, which holds "
                    "names or text; name columns of numbers or dates"
                )
        units = {unit_of(codecs[name]) for name in comparison.columns}
        if len(units) > 1 and "" not in units:
            raise UsageError(
                f"data.constraints: {comparison.text!r} compares dates in {listed(units)}; write "
                "them in one format"
            )


def refuse_broken(
    comparisons: Sequence[ColumnConstraint],
    numbers: Numbers,
    places: RowLocations,
    cell: Callable[[str, int], str],
) -> None:
    """DataError about the first constraint that rows break: how many, and the first, with its
    cells as they are written."""
    for text in dict.fromkeys(comparison.text for comparison in comparisons):
        chain = [comparison for comparison in comparisons if comparison.text == text]
        broken = np.flatnonzero(np.any([one.broken(numbers) for one in chain], 0))
        if len(broken):
            first, total = int(broken[0]), len(next(iter(numbers.values())))
            named = dict.fromkeys(name for one in chain for name in one.columns)
            cells = ", ".join(cell(name, first) for name in named)
            where = places.at(f"constraint {text!r}")(first)
            raise DataError(
                f"{where}: found {cells} ({len(broken)} of {total} rows break it); fix them, or "
                "fit without the constraint"
            )
