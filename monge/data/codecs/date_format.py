"""How dates and times are written: the format of a column, found, parsed and written back.

A format has the directives of strftime and a few of GNU date: `%-d` without a leading zero, `%P`
for am and pm, `%^b` for JAN, `%q` for a quarter; `%3f` are three decimals of a second. A zone that
all cells share is part of the text; cells with different zones are parsed and written in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTH = "|".join(f"{name}|{name[:3]}" for name in MONTHS)
WEEKDAY = rf"(?:(?P<a>{'|'.join(f'{name}|{name[:3]}' for name in WEEKDAYS)}),? )?"
DATES = (
    r"(?P<Y>\d{4})[-/M](?P<m>\d{2})",
    r"(?P<m>\d{2})/(?P<Y>\d{4})",
    r"(?P<Y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})",
    r"(?P<first>\d{1,2})(?P<s>[-/.])(?P<second>\d{1,2})(?P=s)(?P<Y>\d{4})",
    r"(?P<first>\d{1,2})/(?P<second>\d{1,2})/(?P<y>\d{2})",
    r"(?P<first>\d{2})(?P<s>[-.])(?P<second>\d{2})(?P=s)(?P<y>\d{2})",
    rf"{WEEKDAY}(?P<d>\d{{1,2}})(?P<s>[- /.])(?P<b>{MONTH})\.?(?P=s)(?P<Y>\d{{4}})",
    rf"(?P<d>\d{{1,2}})(?P<s>[- /])(?P<b>{MONTH})(?P=s)(?P<y>\d\d)",
    rf"{WEEKDAY}(?P<b>{MONTH})\.? (?P<d>\d{{1,2}}),? (?P<Y>\d{{4}})",
    rf"(?P<b>{MONTH})[ -](?P<Y>\d{{4}})",
    rf"(?P<b>{MONTH})-(?P<y>\d\d)",
    r"(?P<Y>\d{4})[- ]?Q(?P<q>[1-4])",
    r"Q(?P<q>[1-4])[- ](?P<Y>\d{4})",
)
CLOCK = (
    r"(?:(?:T|,? )(?P<H>\d{1,2}):(?P<M>\d{2})(?::(?P<S>\d{2})(?:\.(?P<f>\d{1,6}))?)?"
    r"(?: ?(?P<p>[AP]M))?)?"
)
ZONE = r"(?: ?(?P<z>Z|UTC|GMT|[-+]\d{2}:?\d{2}|(?<=:\d{2})[-+]\d{2}))?"
YEAR_LAST = (
    rf"{WEEKDAY}(?P<b>{MONTH}) (?P<d>\d{{1,2}}) (?P<H>\d{{1,2}}):(?P<M>\d{{2}}):(?P<S>\d{{2}})"
    rf"{ZONE} (?P<Y>\d{{4}})"
)
PATTERNS = tuple(
    re.compile(each, re.IGNORECASE) for each in (*(d + CLOCK + ZONE for d in DATES), YEAR_LAST)
)
DIRECTIVE = re.compile(r"%(?:\^[bBaA]|-[mdHI]|\d?f|:z|[YymdHIMSpPbBaAzq])")
QUARTER = re.compile(r"(?<=[Qq])[1-4]")
FEW = 50
"""Cells that a format is tried on before all."""


def is_date(cell: Any) -> bool:
    """Whether one cell looks like a date."""
    return isinstance(cell, str) and any(each.fullmatch(cell.strip()) for each in PATTERNS)


def without_zone(cell: str) -> str:
    """A date without its zone, as the clock of that zone shows it."""
    for pattern in PATTERNS:
        if found := pattern.fullmatch(cell.strip()):
            start, end = found.span("z")
            return (
                found.string if start < 0 else found.string[:start].rstrip() + found.string[end:]
            )
    return cell


def find_format(cells: Sequence[Any]) -> str | None:
    """The format of all these cells, one that writes each as it is where there is one; None if
    they are not dates. Where the order of day and month cannot be told, the month comes first,
    but not between full stops."""
    if not len(cells) or not all(is_date(cell) for cell in cells[:FEW]):
        return None
    texts = np.array([cell.strip() if isinstance(cell, str) else "" for cell in cells], object)
    for zones in (False, True):
        for plain, forms in grouped(formats(texts[0], zones)).items():
            if not (fits(texts[:FEW], plain) and fits(texts, plain)):
                continue
            times = parse_times(texts, plain)
            few = [form for form in forms if is_written(texts[:FEW], times[:FEW], form)]
            return next((form for form in few if is_written(texts, times, form)), forms[0])
    return None


def grouped(forms: Iterable[str]) -> dict[str, list[str]]:
    """Formats by what they parse."""
    found: dict[str, list[str]] = {}
    for form in forms:
        found.setdefault(parsed_form(form), []).append(form)
    return found


def parsed_form(form: str) -> str:
    """The format with directives that pandas parses."""
    return re.sub(r"%[-^:\d]?P?", lambda found: "%p" if "P" in found[0] else "%", form)


def is_written(texts: np.ndarray, times: np.ndarray, form: str) -> bool:
    return bool((write_times(times, form) == texts).all())


def is_ambiguous(cells: Sequence[Any], form: str) -> bool:
    """Whether day and month of all cells may also be meant the other way round."""
    if not re.match(r"%-?[md].%-?[md].%[Yy]", form):
        return False
    swapped = re.sub(r"[md]", lambda found: {"m": "d", "d": "m"}[found[0]], form[:7]) + form[7:]
    return fits(np.array([str(cell).strip() for cell in cells], object), swapped)


def fits(texts: np.ndarray, form: str) -> bool:
    return not np.isnat(parse_times(texts, form)).any()


def formats(text: str, zones: bool = False) -> Iterator[str]:
    """The formats that one text may have; with `zones`, zones differ from cell to cell."""
    for pattern in PATTERNS:
        found = pattern.fullmatch(text)
        if not found:
            continue
        groups = dict.fromkeys(("b", "a", "s", "first", "p", "f")) | found.groupdict()
        orders = [("m", "d"), ("d", "m")] if groups["first"] else [("", "")]
        orders = orders[::-1] if groups["s"] == "." else orders
        months = directives(groups["b"], "b", MONTHS)
        padding = product(("", "-"), repeat=3)
        for (first, second), month, dashes in product(orders, months, padding):
            parts: dict[str, str | None] = {
                "first": f"%{dashes[0]}{first}",
                "second": f"%{dashes[1]}{second}",
                "m": f"%{dashes[0]}m",
                "d": f"%{dashes[1]}d",
                "H": f"%{dashes[2]}{'I' if groups['p'] else 'H'}",
                "p": "%P" if groups["p"] and groups["p"].islower() else "%p",
                "f": f"%{len(groups['f'] or '')}f",
                "b": month,
                "a": directives(groups["a"], "a", WEEKDAYS)[0],
                "z": ("%:z" if ":" in (groups["z"] or "") else "%z") if zones else None,
            }
            yield substituted(text, found, parts)


def directives(name: str | None, letter: str, names: Sequence[str]) -> list[str]:
    """The directives that a month or a weekday may have; May may be short or not."""
    if not name:
        return [""]
    upper = "^" * name.isupper()
    full, short = name.title() in names, len(name) == 3
    return [f"%{upper}{letter}"] * short + [f"%{upper}{letter.upper()}"] * full


def substituted(text: str, found: re.Match, parts: dict[str, str | None]) -> str:
    """The text with each part of the match replaced by its directive."""
    places = [
        (found.span(group), parts.get(group, f"%{group}"))
        for group, value in found.groupdict().items()
        if value is not None and group != "s"
    ]
    for (start, end), directive in sorted(places, reverse=True):
        if directive is not None:
            text = text[:start] + directive + text[end:]
    return text


def parse_times(cells: Any, form: str) -> np.ndarray:
    """Times (N,) in seconds, or in microseconds if the format has decimals; NaT for cells of
    another format."""
    import pandas as pd

    plain = parsed_form(form)
    if "%q" in plain:  # by the first month
        cells = [QUARTER.sub(first_month, c) if isinstance(c, str) else c for c in cells]
        plain = plain.replace("%q", "%m")
    zones = "%z" in plain
    found = pd.to_datetime(cells, format=plain, errors="coerce", utc=zones)
    times = pd.DatetimeIndex(found)
    times = times.tz_localize(None) if times.tz is not None else times
    return times.to_numpy().astype("datetime64[us]" if "%f" in plain else "datetime64[s]")


def first_month(quarter: re.Match) -> str:
    """The number of the first month of a quarter."""
    return f"{3 * int(quarter[0]) - 2:02}"


def write_times(times: Any, form: str) -> np.ndarray:
    """Times (N,) as text."""
    pieces, end = [], 0
    for found in DIRECTIVE.finditer(form):
        pieces += [[form[end : found.start()]] * len(times), written(times, found[0])]
        end = found.end()
    pieces.append([form[end:]] * len(times))
    rows = ["".join(row) for row in zip(*pieces, strict=True)]
    return np.array([*rows, None], object)[:-1]


def written(times: Any, directive: str) -> list[str]:
    """What one directive stands for in each time."""

    def count(unit: str) -> np.ndarray:
        return times.astype(f"datetime64[{unit}]").astype(np.int64)

    match directive[-1]:
        case "Y":
            return [f"{each + 1970:04}" for each in count("Y")]
        case "y":
            return [f"{(each + 1970) % 100:02}" for each in count("Y")]
        case "b" | "B" as letter:
            return cased([MONTHS[each % 12] for each in count("M")], letter, directive)
        case "a" | "A" as letter:  # 1 January 1970 was a Thursday
            return cased([WEEKDAYS[(each + 3) % 7] for each in count("D")], letter, directive)
        case "p" | "P" as letter:
            marks = ("AM", "PM") if letter == "p" else ("am", "pm")
            return [marks[each % 24 // 12] for each in count("h")]
        case "f":
            return [f"{each:06}"[: int(directive[1:-1] or 6)] for each in count("us") % 10**6]
        case "z":
            return ["+00:00" if ":" in directive else "+0000"] * len(times)
        case "q":
            return [f"{each % 12 // 3 + 1}" for each in count("M")]
        case "m":
            value = count("M") % 12 + 1
        case "d":
            first = times.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
            value = count("D") - first + 1
        case "I":
            value = (count("h") + 11) % 12 + 1
        case _:
            unit, cycle = {"H": ("h", 24), "M": ("m", 60), "S": ("s", 60)}[directive[-1]]
            value = count(unit) % cycle
    return [f"{each}" if "-" in directive else f"{each:02}" for each in value]


def cased(names: list[str], letter: str, directive: str) -> list[str]:
    short = [name if letter.isupper() else name[:3] for name in names]
    return [name.upper() for name in short] if "^" in directive else short
