"""Columns of a table that follow from others: they are not modelled but computed for samples.

A column is constant, a function of the names in another column (class and pclass), or computed by
a constraint (total=a+b). A column that is never below another is modelled as the difference.
Functions are found among all rows of all splits, so that every row of the data obeys them.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import ClassVar

import numpy as np

from ..core.config import Config
from ..core.errors import DataError, UsageError
from ..core.space import Space
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.scalar import MISSING, Binary, Categorical, codes_of, listed
from .constraints import (
    ColumnConstraint,
    Numbers,
    is_numeric,
    parse_expression,
    to_numbers,
    unit_of,
    zero_of,
)
from .packed import Picked, as_ranks, levels, pieces
from .readers.base import RowLocations

FEWEST_PAIRS = 20
"""Rows with two dates from which their order is believed."""
FEWEST_BROKEN = 5
"""Rows that would break the order of two columns of dates, were they independent, from which it is
taken for one."""
FEWEST_ROWS = 5
"""Rows for each value of a column, on average, from which a function of it is believed."""
CHANCE = -20.0
"""Largest log-probability that an independent column would look like a function."""

EMPTY = "(empty)"
"""How messages show an empty cell."""
FIRST = 2**12
"""Rows that are looked at before all."""

Codes = Mapping[str, np.ndarray]
"""Columns (N,) as their codecs encode them; an empty cell is NaN, or the last code of a label."""


class Derived(Config, abc.ABC):
    """A column that is computed from others."""

    tag = "derived/"
    name: str
    """The column."""

    @property
    @abc.abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The columns it follows from."""

    @abc.abstractmethod
    def compute(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        """The codes of n rows."""

    @property
    @abc.abstractmethod
    def rule(self) -> str:
        """What it is, for the user."""

    remedy: ClassVar[str] = "data.space=plain"
    """The setting that avoids the rule."""

    @property
    def note(self) -> str:
        return f"{self.rule}; it is not modelled but computed"

    def broken(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        """The rows (n,) that differ from what is computed; an empty cell is unknown."""
        found, expected = codes[self.name], self.compute(codes, codecs, n)
        return ~((found == expected) | is_empty(found, codecs[self.name]))

    def implied(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The codes (N,) of this column where it is known and cannot be computed, so that it says
        something about the empty cells among its sources; NaN elsewhere."""
        value = codes[self.name].astype(np.float64)
        return np.where(np.isnan(self.compute(codes, codecs, len(value))), value, np.nan)

    def fill_source(self, codes: Codes, codecs: Mapping[str, Codec]) -> Mapping[str, np.ndarray]:
        """Sources with those empty cells filled in that this column determines."""
        return {}

    def undetermined(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The rows (N,) in which what this column says leaves several values to its sources."""
        known = self.implied(codes, codecs)
        return ~np.isnan(known) & (self.compute(codes, codecs, len(known)) != known)


class Constant(Derived):
    """A column with one value in all rows."""

    tag = "derived/constant"
    code: float
    """The value, encoded."""
    shown: str
    """The value as text."""

    @property
    def sources(self) -> tuple[str, ...]:
        return ()

    def compute(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        return np.full(n, self.code)

    @property
    def rule(self) -> str:
        return f"{self.name} is {self.shown} in every row"


class Lookup(Derived):
    """A column that is a function of the names of another."""

    tag = "derived/lookup"
    source: str
    """The other column."""
    codes: tuple[float | None, ...]
    """The code for each code of the source; None if it is empty there, or never seen."""
    inverse: bool = False
    """Whether the source is a function of this column too."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def compute(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        table = [np.nan if code is None else code for code in self.codes]
        values = np.array([*table, np.nan])  # index -1 is unknown
        return values[codes_of(codes[self.source])]

    def fill_source(self, codes: Codes, codecs: Mapping[str, Codec]) -> Mapping[str, np.ndarray]:
        """The source with its empty cells filled in where only one name has the value of this
        column."""
        source, value = codes[self.source].copy(), self.implied(codes, codecs)
        for place, code in enumerate(self.codes):
            if code is not None and self.codes.count(code) == 1:
                source[value == code] = place
        return {self.source: source}

    def implied(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The codes (N,) of this column where it is known and its source is empty, so that it says
        which names the source may have; NaN elsewhere."""
        value, source = codes[self.name].astype(np.float64), codes[self.source]
        says = is_empty(source, codecs[self.source]) & ~is_empty(value, codecs[self.name])
        return np.where(says, value, np.nan)

    def broken(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        """An empty source may have any name that has the value of this column."""
        value = self.implied(codes, codecs)
        possible = [code for code in self.codes if code is not None]
        known = np.isin(value, possible)
        return super().broken(codes, codecs, n) & ~known

    @property
    def rule(self) -> str:
        return f"{self.name} is a function of {self.source}"


class Formula(Derived):
    """A column that a constraint computes."""

    tag = "derived/formula"
    text: str
    """The expression, with the names of columns in backticks."""
    columns: tuple[str, ...]
    """The columns in it."""

    @property
    def sources(self) -> tuple[str, ...]:
        return self.columns

    def compute(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        numbers = in_numbers({name: codes[name] for name in self.columns}, codecs)
        value = parse_expression(self.text, self.columns).compute(numbers)
        return np.broadcast_to(value - zero_of(codecs[self.name]), (n,)).copy()

    def broken(self, codes: Codes, codecs: Mapping[str, Codec], n: int) -> np.ndarray:
        """Only known columns that cannot be computed: constraints compare the others."""
        return ~np.isnan(self.implied(codes, codecs))

    def code(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The code of this column, not rounded to the decimals of its sources."""
        numbers = {
            name: codes[name].astype(np.float64) + zero_of(codecs[name]) for name in self.columns
        }
        value = parse_expression(self.text, self.columns).compute(numbers)
        return np.asarray(value - zero_of(codecs[self.name]))

    def fill_source(self, codes: Codes, codecs: Mapping[str, Codec]) -> Mapping[str, np.ndarray]:
        """Sources that are empty alone, where the expression is linear in them."""
        empty = {name: np.isnan(codes[name]) for name in self.columns}
        alone = (sum(cells.astype(int) for cells in empty.values()) == 1) & ~np.isnan(
            codes[self.name]
        )
        found = {}
        for name, cells in empty.items():
            rows = np.flatnonzero(alone & cells)
            if not len(rows):
                continue
            here = {each: codes[each][rows].astype(np.float64) for each in self.columns}
            origin, one, two = (
                self.code({**here, name: np.full(len(rows), value)}, codecs)
                for value in (0.0, 1.0, 2.0)
            )
            slope = one - origin
            linear = (slope != 0) & np.isclose(two - one, slope, rtol=1e-9)
            with np.errstate(divide="ignore", invalid="ignore"):
                value = (codes[self.name][rows].astype(np.float64) - origin) / slope
            if getattr(codecs[name], "kind", "binary") != "real":
                value = np.where(np.abs(value - np.rint(value)) < 1e-3, np.rint(value), value)
            found[name] = codes[name].copy()
            found[name][rows] = np.where(linear, value, np.nan)
        return found

    @property
    def rule(self) -> str:
        shown = self.text.replace("`", "").removeprefix("(").removesuffix(")")
        return f"{self.name} = {shown}"

    remedy = "leaving out the constraint"


class Difference(Config):
    """A column that is modelled as its distance above another, which is never negative."""

    tag = "data/difference"
    name: str
    """The column."""
    base: str
    """The column below it."""
    shift: float
    """The distance between the zeros of their codes."""
    space: Space
    """The space of the difference."""

    def subtract(self, codes: Codes) -> np.ndarray:
        top, base = codes[self.name].astype(np.float64), codes[self.base].astype(np.float64)
        return np.maximum(top - base + self.shift, 0).astype(codes[self.name].dtype)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.base,)

    def implied(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The codes (N,) of this column where it is known and the column below it is empty; NaN
        elsewhere."""
        value = codes[self.name].astype(np.float64)
        return np.where(np.isnan(codes[self.base]), value, np.nan)

    def undetermined(self, codes: Codes, codecs: Mapping[str, Codec]) -> np.ndarray:
        """The rows (N,) in which the distance is not known although this column is."""
        return ~np.isnan(self.implied(codes, codecs))

    def add(self, difference: np.ndarray, base: np.ndarray) -> np.ndarray:
        total = difference.astype(np.float64) + base.astype(np.float64) - self.shift
        return total.astype(difference.dtype)


def in_numbers(codes: Codes, codecs: Mapping[str, Codec]) -> Numbers:
    """Columns in the numbers of the data."""
    return {name: to_numbers(codecs[name], code) for name, code in codes.items()}


@dataclass(frozen=True)
class Restored:
    """How the columns of a table are computed from those that are modelled."""

    derived: tuple[Derived, ...] = ()
    differences: tuple[Difference, ...] = ()

    def columns(
        self, names: Sequence[str], x: np.ndarray, codecs: Mapping[str, Codec]
    ) -> dict[str, np.ndarray]:
        """The codes of every column from rows x (N, D) of the modelled ones."""
        codes = {name: x[:, place] for place, name in enumerate(names)}
        for each in self.differences:  # a base comes before what is above it
            codes[each.name] = each.add(codes[each.name], codes[each.base])
        for derived in self.derived:
            codes[derived.name] = derived.compute(codes, codecs, len(x))
        return codes

    @property
    def relations(self) -> tuple[Derived | Difference, ...]:
        """The columns that are not modelled as they are; what is known of one says something about
        the cells that it follows from."""
        return (*self.derived, *self.differences)

    def exact(
        self,
        wanted: Sequence[str],
        names: Sequence[str],
        x: np.ndarray,
        codecs: Mapping[str, Codec],
    ) -> np.ndarray:
        """The codes (N, wanted) of formulas and differences from rows x (N, D), not rounded."""
        codes = {name: x[:, place].astype(np.float64) for place, name in enumerate(names)}
        for each in self.differences:
            codes[each.name] = each.add(codes[each.name], codes[each.base])
        for derived in self.derived:
            if isinstance(derived, Formula):
                codes[derived.name] = derived.code(codes, codecs)
        return np.stack([codes[name] for name in wanted], 1)


def refuse_broken_rows(
    derived: Sequence[Derived],
    codes: Codes,
    codecs: Mapping[str, Codec],
    places: RowLocations,
) -> None:
    """DataError about the first row in which a column is not what it is computed to be."""
    for each in derived:
        known = all(name in codes for name in (each.name, *each.sources))
        if not known:
            continue
        broken = np.flatnonzero(each.broken(codes, codecs, len(codes[each.name])))
        if len(broken):
            row = int(broken[0])
            wrong = cell(each.name, codes, codecs, row)
            why = " and ".join(cell(name, codes, codecs, row) for name in each.sources)
            total, beside = len(codes[each.name]), f" beside {why}" if why else ""
            remedy = "fix them"
            if hidden := [n for n in each.sources if cell(n, codes, codecs, row).endswith(EMPTY)]:
                remedy = f"fill in {listed(hidden)} or leave {each.name} empty too"
            raise DataError(
                f"{places.at(f'rule that {each.rule}')(row)}: found {wrong}{beside} "
                f"({len(broken)} of {total} rows break it); {remedy}, or fit without the rule by "
                f"{each.remedy}"
            )


def cell(name: str, codes: Codes, codecs: Mapping[str, Codec], row: int) -> str:
    value = codecs[name].decode(codes[name][row : row + 1])[0]
    return f"{name}={EMPTY if value is None or value != value else value}"


def is_function(source: np.ndarray, column: np.ndarray, known: Levels | None = None) -> bool:
    """Whether a column (N,) of codes is a function of another, which is not believed of few rows
    or where an independent column would often be one too. `known` are the levels of the source."""
    known = known or levels_of(source)
    if known is None:
        return False
    values, sizes = known
    table = np.full(len(values), np.nan)
    for part, here in zip(parts(source), parts(column), strict=True):
        place, cells = np.searchsorted(values, as_ranks(part)), as_ranks(here)
        table[place] = np.where(np.isnan(table[place]), cells, table[place])
        if not np.array_equal(table[place], cells):
            return False
    inverse = np.unique(table, return_inverse=True)[1]
    counts = np.bincount(inverse, sizes)
    with np.errstate(divide="ignore"):  # what no independent column would do
        agree = np.log(((counts / len(column)) ** sizes[:, None]).sum(1)).sum()
    return float(agree) < CHANCE


Levels = tuple[np.ndarray, np.ndarray]
"""The different values of a column, and how often each occurs."""


def levels_of(codes: np.ndarray) -> Levels | None:
    """The levels of a column of which another may be a function; None if they hardly repeat."""
    return levels(codes, len(codes) // FEWEST_ROWS)


def parts(codes: np.ndarray) -> list[np.ndarray]:
    """The rows of a column some at a time, few of them first: they refute most of what is asked
    about all."""
    return [codes[:FIRST], *pieces(codes[FIRST:])] if len(codes) > FIRST else [codes]


def is_single(codes: np.ndarray) -> bool:
    """Whether all cells of a column are equal; empty ones are."""
    return all(bool((as_ranks(part) == as_ranks(codes[:1])).all()) for part in parts(codes))


def is_finite(codec: Codec) -> bool:
    return isinstance(codec, Categorical | Binary)


def find_derived(
    codes: Codes, codecs: Mapping[str, Codec], excluded: Collection[str]
) -> tuple[Derived, ...]:
    """The constant columns, and those that are functions of names in another. Of two that
    determine one another names are modelled rather than numbers, and the first rather than the
    second. `excluded` columns are always modelled."""
    single = Picked(codes, [name for name, code in codes.items() if code.ndim == 1])
    equal = {name for name, code in single.items() if is_single(code)}
    constants = [name for name in single if name in equal and name not in excluded]
    constants = [name for name in constants if not np.isnan(single[name][:1]).any()]
    if len(constants) == len(single):
        return ()
    found: list[Derived] = [constant(name, single[name], codecs[name]) for name in constants]
    varied = [name for name in single if name not in equal]
    finite = [name for name in varied if is_finite(codecs[name])]
    known = {name: some for name in finite if (some := levels_of(single[name])) is not None}
    functions = {
        (source, name)
        for source, its_levels in known.items()
        for name in varied
        if source != name and is_function(single[source], single[name], its_levels)
    }

    def precedes(source: str, name: str) -> bool:
        """Whether `name` is computed from `source` rather than the reverse."""
        both = (name, source) in functions and name not in excluded
        return not both or varied.index(source) < varied.index(name)

    sources = {
        name: [
            source for source in finite if (source, name) in functions and precedes(source, name)
        ]
        for name in varied
        if name not in excluded
    }
    for name, candidates in sources.items():
        roots = [source for source in candidates if not sources.get(source)]
        if roots:
            both = (name, roots[0]) in functions
            found.append(lookup(name, roots[0], single, codecs, both))
    return tuple(found)


def constant(name: str, code: np.ndarray, codec: Codec) -> Constant:
    shown = codec.decode(code[:1])[0]
    return Constant(name=name, code=float(code[0]), shown=str(shown))


def lookup(
    name: str, source: str, codes: Codes, codecs: Mapping[str, Codec], inverse: bool
) -> Lookup:
    table: list[float | None] = []
    for part, here in zip(parts(codes[source]), parts(codes[name]), strict=True):
        for code, row in zip(*np.unique(codes_of(part), return_index=True), strict=True):
            if code < 0:
                continue
            value = float(here[row])
            table += [None] * (code + 1 - len(table))
            empty = value != value or (value < 0 and is_label(codecs[name]))
            table[code] = None if empty else value
    return Lookup(name=name, source=source, codes=tuple(table), inverse=inverse)


def is_empty(code: np.ndarray, codec: Codec) -> np.ndarray:
    """Which cells (N,) hold nothing."""
    if not isinstance(codec, Categorical):
        return np.isnan(code)
    blank = codec.names.index(MISSING) if MISSING in codec.names else -1
    return np.isnan(code) | (code < 0) | (code == blank)


def is_label(codec: Codec) -> bool:
    return isinstance(codec, Categorical)


def leaks(target: str, inputs: Sequence[str], codes: Codes) -> list[str]:
    """The inputs of which the target is a function in all rows."""
    if codes[target].ndim != 1:
        return []
    found = []
    for name in inputs:
        column = codes[name]
        if column.ndim != 1 or not may_be_function(column[:FIRST], codes[target][:FIRST]):
            continue
        if is_function(column, codes[target]):
            found.append(name)
    return found


def may_be_function(source: np.ndarray, column: np.ndarray) -> bool:
    """Whether equal cells of one column stand beside equal cells of the other."""
    _, place = np.unique(as_ranks(source), return_inverse=True)
    table = np.zeros(len(source))
    table[place] = as_ranks(column)
    return np.array_equal(table[place], as_ranks(column))


@dataclass(frozen=True)
class Construction:
    """How constraints are met: by bounds, differences and formulas, the others by rejection."""

    bounds: Mapping[str, tuple[float | None, float | None]] = dataclass_field(default_factory=dict)
    orderings: tuple[tuple[str, str], ...] = ()  # (smaller, larger), a base before those above
    formulas: tuple[Formula, ...] = ()
    rejected: tuple[ColumnConstraint, ...] = ()


def construct(
    comparisons: Sequence[ColumnConstraint], codes: Codes, codecs: Mapping[str, Codec]
) -> Construction:
    """Sort constraints by how they are met."""
    formulas: dict[str, Formula] = {}
    bases: dict[str, str] = {}
    bounds: dict[str, tuple[float | None, float | None]] = {}
    rest: list[ColumnConstraint] = []
    for each in comparisons:
        if each.sign == "=":
            formula = formula_of(each, formulas)
            formulas[formula.name] = formula
    for each in comparisons:
        if (pair := each.ordering) and can_be_difference(*pair, bases, formulas, codes, codecs):
            bases[pair[1]] = pair[0]
        elif each.ordering or not (each.sign == "=" or each.bound):
            rest.append(each)
    for each in comparisons:
        if bound := each.bound:
            name, sign, value = bound
            inside = number_bound(sign, value, codecs[name])
            if name in bases or name in formulas or inside is None:
                rest.append(each)
                continue
            low, high = bounds.get(name, (None, None))
            below, above = inside
            low = below if low is None else low if below is None else max(low, below)
            high = above if high is None else high if above is None else min(high, above)
            bounds[name] = (low, high)
    return Construction(bounds, in_order(bases), ordered_formulas(formulas), tuple(rest))


def formula_of(comparison: ColumnConstraint, known: Mapping[str, Formula]) -> Formula:
    equation = comparison.equation
    if equation is None or equation[0] in known:
        raise UsageError(
            f"data.constraints: expected a column that no other equation computes on one side of "
            f"{comparison.text!r}, as in total=a+b; solve it for such a column"
        )
    name, right = equation
    return Formula(name=name, text=right.text, columns=right.columns)


def ordered_formulas(formulas: Mapping[str, Formula]) -> tuple[Formula, ...]:
    """Each after those that compute its columns."""
    found: list[Formula] = []
    left = dict(formulas)
    while left:
        ready = [name for name, each in left.items() if not {*each.columns} & {*left}]
        if not ready:
            raise UsageError(
                f"data.constraints: the equations of {listed(left)} need one another; solve them "
                "for columns that no equation computes"
            )
        found += [left.pop(name) for name in ready]
    return tuple(found)


def find_date_pairs(
    codes: Codes, codecs: Mapping[str, Codec], excluded: Collection[str]
) -> tuple[tuple[str, str], ...]:
    """The columns of dates that are never before another one (a start and an end), each with the
    one closest below it; (smaller, larger), a base before those above."""
    dates = [name for name in codes if isinstance(codecs[name], Date) and name not in excluded]
    numbers = {name: codes[name].astype(np.float64) + zero_of(codecs[name]) for name in dates}
    bases: dict[str, str] = {}
    for large in dates:
        below = []
        for small in dates:
            if small == large or not can_be_difference(small, large, bases, (), codes, codecs):
                continue
            distance = (numbers[large] - numbers[small])[~np.isnan(codes[large])]
            same_unit = unit_of(codecs[small]) == unit_of(codecs[large])
            ordered = len(distance) >= FEWEST_PAIRS and bool((distance >= 0).all())
            if same_unit and ordered and tells_order(numbers[small], numbers[large]):
                below.append((float(distance.mean()), small))
        if below:
            bases[large] = min(below)[1]
    return in_order(bases)


def tells_order(small: np.ndarray, large: np.ndarray) -> bool:
    """Whether rows would break small <= large if the columns were independent: births and
    appointments are in order without being the ends of anything."""
    small, large = (np.sort(column[~np.isnan(column)]) for column in (small, large))
    broken = 1 - np.searchsorted(small, large, "right") / max(len(small), 1)
    return float(broken.sum()) >= FEWEST_BROKEN


def can_be_difference(
    small: str,
    large: str,
    bases: Mapping[str, str],
    formulas: Collection[str],
    codes: Codes,
    codecs: Mapping[str, Codec],
) -> bool:
    """Whether `large` can be modelled as its distance above `small`."""
    below = small
    while below in bases:
        below = bases[below]
    free = large not in bases and below != large and not {small, large} & {*formulas}
    kinds = [getattr(codecs[name], "kind", "binary") for name in (small, large)]
    whole = kinds == ["counts", "counts"] or (kinds[1] == "real" and "binary" not in kinds)
    known = bool((~np.isnan(codes[small]) | np.isnan(codes[large])).all())
    return free and whole and known


def in_order(bases: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    left = dict(bases)
    while left:
        ready = [large for large, small in left.items() if small not in left]
        found += [(left.pop(large), large) for large in ready]
    return tuple(found)


def number_bound(
    sign: str, value: float, codec: Codec
) -> tuple[float | None, float | None] | None:
    """The lower and upper bound of the codes; None if the column cannot have bounds."""
    if not is_numeric(codec) or isinstance(codec, Binary):
        return None
    code = value - zero_of(codec)
    if getattr(codec, "kind", "") == "counts":
        above = sign[0] == ">"
        strict = len(sign) == 1 and code == np.rint(code)
        code = float(np.ceil(code) + strict if above else np.floor(code) - strict)
    return (code, None) if sign[0] == ">" else (None, code)
