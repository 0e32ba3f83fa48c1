"""Samples of a table that satisfy conditions on its columns: sex=female, age>60, pclass=1,2.

Rows are sampled and kept where every condition holds: exactly the distribution of the model given
the conditions, at the cost of the rows that are thrown away. Where few rows are kept, many more
would be of completed rows, and the model can complete rows, columns that are fixed to one value
are set, and the others are completed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import CanComplete
from ..core.batch import Batch
from ..core.errors import DataError, UsageError, nearest
from ..core.space import Space
from ..data.batches import filling_of
from ..data.codecs.base import Codec
from ..data.codecs.date import Date
from ..data.codecs.scalar import MISSING, Binary, Categorical, Number, listed
from ..data.dataset import View
from ..data.derived import Lookup
from ..evaluate.likelihood import RowLikelihoods
from ..evaluate.rejection import MAX_REPEATS, CompleteRows, complete_obeying
from .relations import RelatedCells

ComparisonSign = Literal["=", "!=", "<", "<=", ">", ">="]
SIGN = r"\s*(!=|<=|>=|=|<|>)\s*"
FLIPPED: Mapping[str, ComparisonSign] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
FIRST_TRY = 2000
"""Rows sampled to see how often the conditions hold."""
MAX_TRIES, TRIES_PER_ROW = 200_000, 100
"""Most rows that are sampled, or for each row that is asked for if that is more."""
MAX_CHUNK = 50_000
"""Rows sampled at once."""
PATIENCE = 10.0
"""Seconds of sampling without any row that is kept after which conditions are given up."""
RARE, FEW_TRIES = 0.02, 20_000
"""Share of kept rows below which fixed columns may be set and the rest completed, unless so many
sampled rows are likely to do."""
COMPLETION_COST = 100
"""Rows that may be sampled in the time that completing one takes: rows are completed where so many
times more of them are kept, or where too few sampled ones would be."""
ACCEPTANCE_SAMPLES = 10_000
"""Samples from which the share of those that obey the constraints is estimated."""

Where = Mapping[str, Any] | Sequence[str] | str


@dataclass(frozen=True)
class ColumnCondition:
    """A comparison of a column with one or, for = and !=, several values. An empty cell satisfies
    none."""

    name: str
    sign: ComparisonSign
    codes: tuple[float, ...]  # as the column is encoded
    text: str
    empty: float | None = None  # the code of an empty cell, if that is not NaN

    def holds(self, column: Tensor) -> Tensor:  # (n,) -> (n,)
        values = torch.tensor(self.codes, dtype=column.dtype, device=column.device)
        match self.sign:
            case "=":
                return torch.isin(column, values)
            case "!=":
                present = ~column.isnan() & (column != self.empty)
                return ~torch.isin(column, values) & present
            case "<":
                return column < values[0]
            case "<=":
                return column <= values[0]
            case ">":
                return column > values[0]
            case ">=":
                return column >= values[0]

    @property
    def fixed(self) -> float | None:
        return self.codes[0] if self.sign == "=" and len(self.codes) == 1 else None


@dataclass(frozen=True)
class ConditionalSamples:
    """Samples given conditions, and how they were made."""

    x: Tensor  # (n, D)
    tried: int
    kept: int
    method: str
    notes: tuple[str, ...] = ()

    @property
    def acceptance(self) -> float:
        return self.kept / self.tried if self.tried else 1.0


def parse_where(view: View, where: Where) -> list[ColumnCondition]:
    """Conditions on the columns of the event, each given as "age>60" or "20<=age<30", or as
    {"age": ">60"}, {"sex": "female"}, {"pclass": [1, 2]}."""
    if isinstance(where, str):
        where = [where]
    texts = (
        [as_text(view, *pair) for pair in where.items()] if isinstance(where, Mapping) else where
    )
    conditions = [
        of_modelled_column(view, parse_condition(view, end))
        for text in texts
        for end in ends_of(view, text)
    ]
    refuse_contradictions(view, conditions)
    return conditions


def as_text(view: View, name: str, value: Any) -> str:
    if isinstance(value, str):
        compares = value[:1] in "<>!" and value not in known_names(view, name)
        return f"{name}{value}" if compares else f"{name}={value}"
    if isinstance(value, list | tuple | set | np.ndarray):
        return f"{name}=" + ",".join(map(str, value))
    return f"{name}={value}"


def ends_of(view: View, text: str) -> list[str]:
    """A range such as 20<=age<30 as two conditions, and each with its column first."""
    name = any_of([*column_names(view), *fields_apart(view)])
    if re.fullmatch(rf"\s*{name}{SIGN}.*", text, re.S):
        return [text]
    for column in (name, r"([^<>=!]+?)"):
        found = re.fullmatch(
            rf"\s*([^<>=!]+?)\s*([<>]=?)\s*{column}(?:\s*([<>]=?)\s*([^<>=!]+?))?\s*", text
        )
        if found is not None and (found[4] or column == name):
            low, sign, column, other, high = found.groups()
            ends = [f"{column}{FLIPPED[sign]}{low}"]
            return [*ends, f"{column}{other}{high}"] if other else ends
    return [text]


def any_of(names: Sequence[str]) -> str:
    """A pattern of one of the names, as long as possible, as a group."""
    return "(" + "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) + ")"


def fields_apart(view: View) -> list[str]:
    """The columns that samples do not have or get anew."""
    return [*view.given, *(key.name for key in view.selection.schema.row_keys)]


def known_names(view: View, column: str) -> tuple[str, ...]:
    """The names of a column, but for that of an empty cell; none of a column of numbers."""
    if column not in column_names(view):
        return ()
    codec = view.selection.schema.field(column).codec
    names = codec.names if isinstance(codec, Categorical) else ()
    return tuple(name for name in names if name != MISSING)


def values_of(text: str, names: Sequence[str]) -> list[str]:
    """The values that commas separate; the names of a column may hold commas."""
    name = any_of(names)
    if names and re.fullmatch(rf"{name}(\s*,\s*{name})*", text):
        return [found[0] for found in re.finditer(rf"{name}(?=\s*(,|$))", text)]
    return [part.strip() for part in text.split(",")]


def parse_condition(view: View, text: str) -> ColumnCondition:
    names = column_names(view)
    found = re.fullmatch(rf"\s*{any_of([*names, *fields_apart(view)])}{SIGN}(.*?)\s*", text, re.S)
    found = found or re.fullmatch(rf"\s*(.+?){SIGN}(.*?)\s*", text, re.S)
    if found is None:
        name = text.strip() if text.strip() in names else names[0]
        raise UsageError(
            f"--where: expected a condition such as {name}=VALUE or {name}!=VALUE, "
            f"found {text!r}; write a comparison"
        )
    name, sign, value = found.groups()
    if name not in names:
        if name in view.given:
            raise UsageError(f"{name} is given to this model; use --given {name}={value}")
        if name in fields_apart(view):
            raise UsageError(f"--where: {name} is a key, which samples get anew; leave it out")
        raise UsageError(
            f"--where: {view.selection.schema.name} has no column {name!r}{nearest(name, names)}"
        )
    codec = view.selection.schema.field(name).codec
    known = known_names(view, name)
    values = values_of(value, known) if sign in ("=", "!=") else [value]
    if sign not in ("=", "!=") and isinstance(codec, Categorical):
        raise UsageError(f"--where: {name} holds names, which have no order; use {name}=VALUE")
    for one in values:
        if isinstance(codec, Categorical) and one not in known:
            raise UsageError(
                f"--where: {name}={one} does not occur in the data; choose from "
                f"{listed(known, 30)}{nearest(one, known) if len(known) > 30 else ''}"
            )
        if not one:
            raise UsageError(f"--where: expected a value of {name}, found none in {text!r}")
    if isinstance(codec, Number) and codec.kind == "counts" and sign not in ("=", "!="):
        codec = replace(codec, kind="real")  # ages above 17.5 are those from 18 on
    try:
        codes = codec.encode(np.array(values, object), lambda _: text)
    except DataError:
        ranges = "" if isinstance(codec, Binary) else f", or LOW<={name}<=HIGH"
        raise UsageError(
            f"--where: expected {kind_of_values(codec)} for {name}, found {text!r}; write "
            f"{name}{sign}VALUE with such a value{ranges}"
        ) from None
    assert isinstance(codes, np.ndarray), "a column of a table is one number per row"
    named = isinstance(codec, Categorical) and MISSING in codec.names
    return ColumnCondition(
        name,
        sign,  # type: ignore[arg-type]
        tuple(codes.astype(float).tolist()),
        text.strip(),
        codec.names.index(MISSING) if named else None,  # type: ignore[attr-defined]
    )


def of_modelled_column(view: View, condition: ColumnCondition) -> ColumnCondition:
    """A condition on a column that is a function of another, as one on the values of that."""
    lookups = {each.name: each for each in view.restored.derived if isinstance(each, Lookup)}
    while condition.name in lookups:
        lookup = lookups[condition.name]
        values = torch.tensor([math.nan if c is None else c for c in lookup.codes]).double()
        codes = condition.holds(values).nonzero()[:, 0].double().tolist()
        condition = ColumnCondition(lookup.source, "=", tuple(codes), condition.text)
    return condition


def column_names(view: View) -> list[str]:
    """The columns of samples: those of the event and those computed from them."""
    return [field.name for field in view.event.fields] + [
        each.name for each in view.restored.derived
    ]


def kind_of_values(codec: Codec) -> str:
    if isinstance(codec, Binary):
        return " or ".join(codec.values)
    if isinstance(codec, Date):
        return f"a date such as {codec.decode(np.zeros(1))[0]}"
    return "a whole number" if getattr(codec, "kind", "") == "counts" else "a number"


def refuse_contradictions(view: View, conditions: Sequence[ColumnCondition]) -> None:
    """A UsageError about the fewest conditions on one column that no value satisfies."""
    for name in dict.fromkeys(condition.name for condition in conditions):
        space = view.selection.schema.field(name).space
        here = [condition for condition in conditions if condition.name == name]
        groups = [[one] for one in here]
        groups += [[other, one] for i, one in enumerate(here) for other in here[:i]]
        for group in (*groups, here):
            if not satisfiable(group, space):
                texts = " and ".join(repr(one.text) for one in group)
                bounds = describe_values(space)
                raise UsageError(
                    f"--where: no value of {name}{bounds} satisfies {texts}; "
                    f"{'change it' if len(group) == 1 else 'remove one of them'}"
                )


def describe_values(space: Space) -> str:
    """The limits of a column, for a message."""
    ends = [
        *([] if space.lower is None else [f"at least {space.lower:g}"]),
        *([] if space.upper is None else [f"at most {space.upper:g}"]),
    ]
    return f", which is {' and '.join(ends)}," if ends else ""


def satisfiable(conditions: Sequence[ColumnCondition], space: Space) -> bool:
    """Whether some value of a column satisfies conditions: one of theirs, or one beside these."""
    if space.kind in ("label", "binary"):
        candidates = torch.arange(space.size or 2, dtype=torch.float64)
    else:
        ends = torch.tensor([code for one in conditions for code in one.codes]).double()
        ends = torch.cat([ends, ends - 1, ends + 1]).sort().values
        candidates = torch.cat([ends, (ends[1:] + ends[:-1]) / 2])
        if space.kind == "counts":
            candidates = torch.cat([candidates.floor(), candidates.ceil()])
        candidates = candidates.clamp(space.lower, space.upper) if bounded(space) else candidates
    every = torch.ones_like(candidates, dtype=torch.bool)
    for condition in conditions:
        every &= condition.holds(candidates)
    return bool(every.any())


def bounded(space: Space) -> bool:
    return space.lower is not None or space.upper is not None


def sample_where(
    model: Any,
    view: View,
    conditions: Sequence[ColumnCondition],
    n: int,
    sample: Callable[[int, torch.Generator], Tensor],
    complete: Callable[[Batch, torch.Generator], Tensor],
    generator: torch.Generator,
    observed: bool = False,
) -> ConditionalSamples:
    """n rows that satisfy the conditions and the constraints of the data and, if `observed`, lie
    in the range of the training rows; `sample` and `complete` are the model's own."""
    names = [field.name for field in view.event.fields]
    distances = {each.name for each in view.restored.differences}

    def holds(x: Tensor) -> Tensor:
        columns = view.codes(x) if conditions else {}
        every = view.obeys(x) if view.constraints else torch.ones(len(x), dtype=torch.bool)
        every &= in_observed_range(x, view.space) if observed else True
        for condition in conditions:
            every &= condition.holds(torch.from_numpy(columns[condition.name]))
        return every

    def add(found: ConditionalSamples, x: Tensor) -> ConditionalSamples:
        good = x[holds(x)]
        rows = torch.cat([found.x.to(good), good]) if found.tried else good
        return replace(found, x=rows[:n], tried=found.tried + len(x), kept=found.kept + len(good))

    def search(found: ConditionalSamples, draw: Callable[[int], Tensor]) -> ConditionalSamples:
        """Rows are drawn until n hold, or are not to be expected; at most as many at a time as
        were tried before, so that what never holds is known early."""
        started = time.perf_counter()
        while found.kept < n and found.tried < most and can_suffice(found, most, n):
            if not found.kept and time.perf_counter() - started > PATIENCE:
                break
            wanted = int(1.2 * (n - found.kept) / found.acceptance) + 1 if found.kept else most
            found = add(found, draw(min(wanted, found.tried, MAX_CHUNK, most - found.tried)))
        return found

    most = max(MAX_TRIES, TRIES_PER_ROW * n)
    fixed = {
        c.name: c.fixed
        for c in conditions
        if c.fixed is not None and c.name in names and c.name not in distances
    }
    seen = torch.tensor([name in fixed for name in names])

    def fill(size: int) -> Tensor:
        row = torch.tensor([fixed.get(name) or 0.0 for name in names])
        blank = torch.where(seen, row, filling_of(view.event))
        x = blank.to(torch.get_default_dtype()).repeat(size, 1)
        return complete(Batch(x, observed=seen.repeat(size, 1)), generator)

    def anew(size: int) -> Tensor:
        return sample(size, generator)

    nothing = ConditionalSamples(torch.empty(0), 0, 0, "rejection")
    found, draw = add(nothing, anew(FIRST_TRY)), anew
    rare = found.kept < n and found.acceptance < min(RARE, n / FEW_TRIES)
    if rare and fixed and isinstance(model, CanComplete) and completes(fill):
        other = replace(nothing, method="completion of the other columns")
        other = add(other, fill(min(n, FIRST_TRY)))
        often = (other.kept + 1) / other.tried > COMPLETION_COST * found.acceptance
        if often or not can_suffice(found, most, n):
            found, draw = other, fill
    found = search(found, draw)
    if found.kept < n:
        texts = [condition.text for condition in conditions] or [c.text for c in view.constraints]
        what = " and ".join(map(repr, [*texts, *([OBSERVED] if observed else [])]))
        few = f"only {found.kept}" if found.kept else "none"
        remedy = "relax or remove a condition" + ", or ask for fewer rows" * bool(found.kept)
        raise DataError(
            f"{few} of {found.tried} sampled rows satisfy {what}, where {n} are asked for; "
            f"{remedy}"
        )
    return replace(found, notes=notes(found, bool(conditions), bool(view.constraints), observed))


def can_suffice(found: ConditionalSamples, most: int, n: int) -> bool:
    """Whether `most` tries may give n rows, as far as those up to now tell: the share of rows that
    are kept is below this bound but for one case in four hundred."""
    bound = (found.kept + 3 + 3 * (found.kept + 1) ** 0.5) / found.tried
    return bound * most >= n


def notes(
    found: ConditionalSamples, conditions: bool, constraints: bool, observed: bool
) -> tuple[str, ...]:
    """What the rows were chosen by, and at what rate."""
    rules = [
        *(["satisfy the conditions"] if conditions else []),
        *(["obey the constraints"] if constraints else []),
        *(["lie in the observed range"] if observed else []),
    ]
    text = (
        f"{found.kept} of {found.tried} rows {listed(rules)} ({100 * found.acceptance:.3g} %), "
        f"sampled by {found.method}"
    )
    apart = f"{OBSERVED}: these samples are not of the distribution that is scored"
    return (text, apart) if observed else (text,)


OBSERVED = "range=observed"


def observed_range(settings: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The other sampling settings, and whether samples outside the range of the training rows are
    drawn again: range=observed."""
    own = [word for word in settings if word.removeprefix("sample.").startswith("range=")]
    for word in own:
        if word.removeprefix("sample.") not in (OBSERVED, "range=model"):
            raise UsageError(f"expected range=observed or range=model, found {word}; write one")
    rest = tuple(word for word in settings if word not in own)
    return rest, bool(own) and own[-1].endswith(OBSERVED)


def in_observed_range(x: Tensor, space: Space) -> Tensor:
    """Which rows x (N, *event) have all numbers between the smallest and the largest of the
    training rows; empty cells do."""
    kinds = [part.kind for part in space.columns] or [space.kind]
    if "tokens" in kinds:
        raise UsageError(f"{OBSERVED}: expected numbers, found {space}; leave it out")
    names = torch.tensor([kind == "label" for kind in kinds])
    low, high = space.statistic("low"), space.statistic("high")
    inside = ((x >= low) & (x <= high)) | x.isnan() | (names if space.columns else names[0])
    return inside.reshape(len(x), -1).all(1)


@dataclass(frozen=True)
class Acceptance:
    """The share of samples that obey constraints, estimated from `tried` of them."""

    kept: int
    tried: int

    @property
    def log(self) -> float:
        return math.log(self.kept / self.tried)

    @property
    def log_stderr(self) -> float:
        """The standard error of the log, by the delta method."""
        return math.sqrt((1 - self.kept / self.tried) / self.kept)


def given_constraints(found: RowLikelihoods, share: Acceptance | None) -> RowLikelihoods:
    """log p of rows given that they obey the constraints: minus the log of the share of samples
    that do."""
    if share is None:
        text = "a lower bound, as the share of samples that obey the constraints is not known"
        kind = found.kind if found.kind == "estimate" else "bound"
        return replace(found, kind=kind, description=joined(found.description, text))
    if not share.kept:
        raise DataError(
            f"none of {share.tried} samples obeys the constraints of the data, so that the "
            "log-likelihood given them is not known; train longer, or remove a constraint"
        )
    own = np.zeros(len(found.value)) if found.stderr is None else found.stderr
    text = (
        f"raised by {abs(share.log):.4g} ± {share.log_stderr:.2g}: {share.kept} of {share.tried} "
        "samples obey the constraints"
    )
    return replace(
        found,
        value=found.value - share.log,
        kind="estimate",
        stderr=np.hypot(own, share.log_stderr),
        description=joined(found.description, text),
    )


def joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def complete_given(
    view: View,
    complete: CompleteRows,
    every: Batch,
    related: RelatedCells,
) -> CompleteRows:
    """Completions of some of the rows of `every` that obey the constraints of the data and have
    the codes of computed columns that are known: numbers by construction (`related`), others are
    made again until they do."""
    first = int(every.row[0]) if every.row is not None and len(every) else 0
    names = {n: codes for n, codes in related.implied.items() if n not in related.known}

    def repeat(batch: Batch, count: int) -> Tensor:
        place = torch.arange(len(batch)) if batch.row is None else batch.row - first
        each = place.repeat_interleave(count)
        known = {name: codes[each] for name, codes in names.items()}

        def obeys(x: Tensor) -> Tensor:
            good = view.obeys(x) if view.constraints else torch.ones(len(x), dtype=torch.bool)
            codes = view.codes(x) if known else {}
            for name, wanted in known.items():
                good &= wanted.isnan() | (torch.from_numpy(codes[name]).double() == wanted)
            return good

        def related_rows(rows: Batch, times: int) -> Tensor:
            here = torch.arange(len(rows)) if rows.row is None else rows.row - first
            return related(rows, times, here, first) if related.known else complete(rows, times)

        x, wrong = complete_obeying(related_rows, batch, count, obeys)
        if not len(wrong):
            return x
        rules = [*(each.text for each in view.constraints), *(each for each in known)]
        raise DataError(
            f"none of {MAX_REPEATS} completions of row {int(place[wrong[0]]) + first + 1} obeys "
            f"the constraints and known values of {listed(rules)}; check its known cells"
        )

    return repeat


def completes(fill: Callable[[int], Tensor]) -> bool:
    """Whether the model can complete rows of which these columns are known."""
    try:
        fill(1)
    except (DataError, UsageError):
        return False
    return True
