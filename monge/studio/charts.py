"""Charts as SVG in the page: curves, fans, histograms, points, heat maps and waves.

A chart is drawn on the server, so that it reads without a script; `charts.js` adds the values
under the pointer. Colours come from the style sheet by class, so that both schemes work. Each has
a text alternative.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
"""Room for the labels of the axes."""
MAX_POINTS = 400
"""Points of a curve that are drawn; longer curves are thinned."""
MAX_MARKS = 700
"""Points of a scatter plot."""
COLOURS = 10
"""Classes s0 to s9 of the style sheet."""


@dataclass(frozen=True)
class Curve:
    """A named line, with the half-width of its interval where it has one."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    error: Sequence[float] | None = None


def number(value: float | None) -> str:
    """A number as people write it, with four digits."""
    if value is None or not math.isfinite(value):
        return "none"
    if 1000 <= abs(value) < 1e6:
        return f"{value:.0f}"
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.2e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two ends."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The axes of a chart: maps values to places."""

    x0: float
    x1: float
    y0: float
    y1: float
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT

    def x(self, value: float) -> float:
        part = (value - self.x0) / ((self.x1 - self.x0) or 1)
        return self.left + part * (self.width - self.left - RIGHT)

    def y(self, value: float) -> float:
        part = (value - self.y0) / ((self.y1 - self.y0) or 1)
        return self.height - BOTTOM - part * (self.height - TOP - BOTTOM)

    def axes(
        self,
        x_label: str,
        x_names: Sequence[tuple[float, str]] | None = None,
        vertical: bool = False,
    ) -> str:
        """Grid lines and labels; `vertical` if only x is a scale."""
        parts = []
        for value in () if vertical else ticks(self.y0, self.y1):
            y = self.y(value)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{self.width - RIGHT}" y1="{y:.1f}" '
                f'y2="{y:.1f}"/><text class="tick" x="{self.left - 8}" y="{y + 4:.1f}" '
                f'text-anchor="end">{number(value)}</text>'
            )
        marks = x_names or [(value, number(value)) for value in ticks(self.x0, self.x1, 6)]
        for value, name in marks:
            x = self.x(value)
            anchor = "end" if x > self.width - 40 else "start" if x < self.left + 8 else "middle"
            if vertical:
                parts.append(
                    f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" '
                    f'y2="{self.height - BOTTOM}"/>'
                )
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{self.height - BOTTOM + 19}" '
                f'text-anchor="{anchor}">{escape(name)}</text>'
            )
        parts.append(
            f'<text class="axis" x="{self.width - RIGHT}" y="{self.height - 3}" '
            f'text-anchor="end">{escape(x_label)}</text>'
        )
        return "".join(parts)


def svg(
    body: str,
    label: str,
    width: int,
    height: int,
    css: str = "",
    data: Any = None,
    scale: float | None = None,
) -> Markup:
    """An SVG image with its text alternative, as wide as its place or `scale` times its size."""
    extra = f' data-chart="{escape(json.dumps(data))}"' if data is not None else ""
    extra += f' width="{scale * width:.0f}"' if scale else ""
    return Markup(
        f'<svg class="chart {css}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}"{extra}>{body}</svg>'
    )


def thin(curve: Curve) -> list[tuple[float, float, float]]:
    """At most MAX_POINTS finite points (x, y, error); the last is always there."""
    errors = curve.error or [0.0] * len(curve.x)
    found = [
        (float(x), float(y), float(e or 0))
        for x, y, e in zip(curve.x, curve.y, errors, strict=True)
        if y is not None and math.isfinite(y)
    ]
    if len(found) <= MAX_POINTS:
        return found
    keep = np.unique(np.linspace(0, len(found) - 1, MAX_POINTS).round().astype(int))
    return [found[k] for k in keep]


def path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)


def curves(
    lines: Sequence[Curve], x_label: str, title: str, empty: str = "No values yet."
) -> Markup:
    """Lines over one axis; each with a band where it has errors."""
    drawn = [(place, line, thin(line)) for place, line in enumerate(lines)]
    drawn = [(place, line, points) for place, line, points in drawn if points]
    if not drawn:
        return Markup('<p class="quiet">{}</p>').format(empty)
    every = [point for *_, points in drawn for point in points]
    low, high = robust_range([y + side * e for _, y, e in every for side in (-1, 1)])
    x0, x1 = min(x for x, _, _ in every), max(x for x, _, _ in every)
    marks = None
    if x0 == x1:
        marks, x0, x1 = [(x0, number(x0))], x0 - 1, x1 + 1
    frame = Frame(x0, x1, low, high)
    body, data = [frame.axes(x_label, marks)], []
    clip = f"c{zlib.crc32(title.encode()):x}"
    body.append(
        f'<clipPath id="{clip}"><rect x="{LEFT - 4}" y="{TOP - 4}" '
        f'width="{WIDTH - LEFT - RIGHT + 8}" height="{HEIGHT - TOP - BOTTOM + 8}"/></clipPath>'
        f'<g clip-path="url(#{clip})">'
    )
    for place, line, points in drawn:
        colour = f"s{place % COLOURS}"
        if line.error is not None:
            upper = [(frame.x(x), frame.y(y + e)) for x, y, e in points]
            lower = [(frame.x(x), frame.y(y - e)) for x, y, e in reversed(points)]
            body.append(f'<path class="band {colour}" d="{path([*upper, *lower])}Z"/>')
        places = [(frame.x(x), frame.y(y)) for x, y, _ in points]
        body.append(f'<path class="line {colour}" d="{path(places)}"/>')
        if len(points) < 40:
            body += [
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
                for x, y in places
            ]
        data.append(
            {
                "name": line.name,
                "colour": place % COLOURS,
                "points": [
                    [round(a, 1), round(b, 1), number(x), number(y)]
                    for (a, b), (x, y, _) in zip(places, points, strict=True)
                ],
            }
        )
    body.append("</g>")
    said = "; ".join(
        f"{line.name} from {number(points[0][1])} to {number(points[-1][1])}"
        for _, line, points in drawn
    )
    chart = svg(
        "".join(body), f"{title} by {x_label}: {said}", WIDTH, HEIGHT, "curves", {"lines": data}
    )
    return chart + legend([(place, line.name) for place, line, _ in drawn])


def robust_range(values: Sequence[float]) -> tuple[float, float]:
    """The range of a vertical axis: a first few large values do not flatten the rest."""
    low, high = min(values), max(values)
    if len(values) >= 12:
        a, b = np.percentile(values, [3, 97])
        room = 2 * (b - a)
        low, high = max(low, a - room), min(high, b + room)
    if low == high:
        low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
    room = 0.06 * (high - low)
    return float(low - room), float(high + room)


def legend(names: Sequence[tuple[int, str]]) -> Markup:
    if len(names) < 2:
        return Markup("")
    items = Markup("").join(
        Markup('<li><span class="key s{}" aria-hidden="true"></span>{}</li>').format(
            place % COLOURS, name
        )
        for place, name in names
    )
    return Markup('<ul class="legend">{}</ul>').format(items)


def fan(
    past: Sequence[float],
    bands: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    middle: Sequence[float],
    names: Sequence[tuple[int, str]],
    title: str,
) -> Markup:
    """The end of a series, and the median and central intervals of its forecast."""
    start = len(past) - 1
    every = [*past, *middle, *(v for _, low, high in bands for v in (*low, *high))]
    low, high = min(every), max(every)
    room = 0.06 * ((high - low) or 1)
    frame = Frame(0, start + len(middle), low - room, high + room)
    body = [frame.axes("", [(float(place), name) for place, name in names])]
    last = past[-1]
    for depth, (_, lower, upper) in enumerate(bands):
        up = [(frame.x(start + k), frame.y(v)) for k, v in enumerate([last, *upper])]
        down = [(frame.x(start + k), frame.y(v)) for k, v in enumerate([last, *lower])]
        body.append(f'<path class="fan f{depth}" d="{path([*up, *reversed(down)])}Z"/>')
    body.append(
        f'<path class="line quiet" d="'
        f'{path([(frame.x(k), frame.y(v)) for k, v in enumerate(past)])}"/>'
    )
    ahead = [(frame.x(start + k), frame.y(v)) for k, v in enumerate([last, *middle])]
    body.append(f'<path class="line s0" d="{path(ahead)}"/>')
    x = frame.x(start)
    body.append(f'<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    widest = bands[0]
    said = (
        f"{title}: {len(past)} steps of the past, then a forecast of {len(middle)} steps whose "
        f"median goes from {number(middle[0])} to {number(middle[-1])}; the last {widest[0]} "
        f"interval is {number(widest[1][-1])} to {number(widest[2][-1])}"
    )
    return svg("".join(body), said, WIDTH, HEIGHT, "fan")


def histogram(counts: Sequence[float], label: str, names: Sequence[str] = ()) -> Markup:
    """Small bars without axes."""
    top = max(counts, default=0) or 1
    width, height = 120, 28
    step = width / max(len(counts), 1)
    gap = min(1.5, step * 0.2)
    body = "".join(
        f'<rect class="bar" x="{k * step:.2f}" y="{height - 1 - (height - 2) * c / top:.2f}" '
        f'width="{max(step - gap, 0.3):.2f}" height="{(height - 2) * c / top + 1:.2f}">'
        + (f"<title>{escape(names[k])}: {int(c)}</title>" if names else "")
        + "</rect>"
        for k, c in enumerate(counts)
    )
    return svg(body, label, width, height, "spark")


def distribution(values: np.ndarray, title: str, unit: str, bins: int = 40) -> Markup:
    """A histogram of finite numbers with its axes."""
    if len(values) < 2:
        return Markup('<p class="quiet">Too few rows for a histogram.</p>')
    counts, edges = np.histogram(values, bins)
    frame = Frame(float(edges[0]), float(edges[-1]), 0, float(counts.max()))
    foot = frame.y(0)
    bars = "".join(
        f'<rect class="bar" x="{frame.x(low) + 0.5:.1f}" y="{frame.y(count):.1f}" '
        f'width="{max(frame.x(high) - frame.x(low) - 1, 0.5):.1f}" '
        f'height="{foot - frame.y(count):.1f}">'
        f"<title>{number(low)} to {number(high)}: {count}</title></rect>"
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    )
    top = int(counts.argmax())
    said = (
        f"{title}: {len(values)} rows from {number(edges[0])} to {number(edges[-1])} {unit}, "
        f"most near {number((edges[top] + edges[top + 1]) / 2)}"
    )
    return svg(frame.axes(unit) + bars, said, WIDTH, HEIGHT, "distribution")


def intervals(rows: Sequence[tuple[str, float, float, float]], title: str, unit: str) -> Markup:
    """Named values with the ends of their intervals, a line each."""
    low, high = min(row[2] for row in rows), max(row[3] for row in rows)
    room = 0.04 * ((high - low) or 1)
    line, left = 26, 190
    height = TOP + line * len(rows) + BOTTOM
    frame = Frame(low - room, high + room, 0, 1, WIDTH, height, left)
    body = [frame.axes(unit, vertical=True)]
    for place, (name, value, lower, upper) in enumerate(rows):
        y = TOP + line * (place + 0.5)
        body.append(
            f'<text class="tick name" x="{left - 10}" y="{y + 4}" text-anchor="end">'
            f"{escape(name if len(name) < 27 else name[:25] + '…')}</text>"
            f'<line class="whisker" x1="{frame.x(lower):.1f}" x2="{frame.x(upper):.1f}" '
            f'y1="{y}" y2="{y}"/><circle class="dot s0" cx="{frame.x(value):.1f}" cy="{y}" r="4">'
            f"<title>{escape(name)}: {number(value)}, {number(lower)} to {number(upper)}</title>"
            "</circle>"
        )
    said = "; ".join(f"{n} {number(v)} ({number(a)} to {number(b)})" for n, v, a, b in rows)
    return svg("".join(body), f"{title}: {said}", WIDTH, height, "intervals")


def points(
    xy: np.ndarray, groups: Sequence[str] | None, title: str, css: str = "", data: Any = None
) -> Markup:
    """Points of the plane, coloured by group."""
    if len(xy) > MAX_MARKS:
        keep = np.linspace(0, len(xy) - 1, MAX_MARKS).astype(int)
        xy = xy[keep]
        groups = None if groups is None else [groups[k] for k in keep]
    if not len(xy):
        return Markup('<p class="quiet">No points.</p>')
    low, high = np.percentile(xy, 0.5, axis=0), np.percentile(xy, 99.5, axis=0)
    room = 0.08 * np.maximum(high - low, 1e-9)
    size = 480
    frame = Frame(
        low[0] - room[0], high[0] + room[0], low[1] - room[1], high[1] + room[1], size, size
    )
    kinds = list(dict.fromkeys(groups)) if groups is not None else [""]
    if len(kinds) <= 30:
        kinds = sorted(kinds, key=lambda name: (len(name), name))
    place = {name: k for k, name in enumerate(kinds)}
    marks = "".join(
        f'<circle class="mark s{place[groups[k]] % COLOURS if groups is not None else 0}" '
        f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3">'
        + (f"<title>{escape(groups[k])}</title>" if groups is not None else "")
        + "</circle>"
        for k, (x, y) in enumerate(xy)
        if frame.x0 <= x <= frame.x1 and frame.y0 <= y <= frame.y1
    )
    ends = {"x": [frame.x0, frame.x1], "y": [frame.y0, frame.y1]}
    info = {
        "box": [LEFT, TOP, size - RIGHT, size - BOTTOM],
        "ends": {axis: list(map(float, pair)) for axis, pair in ends.items()},
        **(data or {}),
    }
    named = f", in {len(kinds)} groups: {', '.join(kinds[:12])}" if groups is not None else ""
    chart = svg(frame.axes("") + marks, f"{title}: {len(xy)} points{named}", size, size, css, info)
    known = [(k, name) for name, k in place.items()][:12] if groups is not None else []
    return chart + legend(known)


def heat(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Markup:
    """A matrix of shares between 0 and 1, such as attention."""
    cell, left, top = 22, 92, 84
    width, height = left + cell * len(columns) + 4, top + cell * len(rows) + 4
    body = []
    for k, name in enumerate(columns):
        x = left + cell * k + cell / 2
        body.append(
            f'<text class="tick" x="{x}" y="{top - 6}" transform="rotate(-50 {x} {top - 6})">'
            f"{escape(name[:14])}</text>"
        )
    for r, name in enumerate(rows):
        y = top + cell * r
        body.append(
            f'<text class="tick" x="{left - 6}" y="{y + 15}" text-anchor="end">'
            f"{escape(name[:14])}</text>"
        )
        for k in range(len(columns)):
            share = float(weights[r, k])
            body.append(
                f'<rect class="cell" x="{left + cell * k}" y="{y}" width="{cell - 1}" '
                f'height="{cell - 1}" fill-opacity="{max(min(share, 1), 0.03):.3f}">'
                f"<title>{escape(name)} to {escape(columns[k])}: {share:.2f}</title></rect>"
            )
    strongest = ", ".join(
        f"{name} to {columns[int(weights[r].argmax())]}" for r, name in enumerate(rows[:12])
    )
    label = f"{title}: strongest from {strongest}"
    return svg("".join(body), label, width, height, "heat", scale=1.4)


def wave(samples: np.ndarray, title: str) -> Markup:
    """A sound or any sequence of numbers as its envelope."""
    width, height = 480, 72
    flat = np.asarray(samples, float).reshape(len(samples), -1)[:, 0]
    bins = np.array_split(flat, min(240, len(flat))) if len(flat) else []
    top = max(float(np.abs(flat).max()), 1e-12) if len(flat) else 1.0
    step = width / max(len(bins), 1)
    body = "".join(
        f'<rect class="bar" x="{k * step:.1f}" y="{(1 - b.max() / top) * height / 2:.1f}" '
        f'width="{step * 0.8:.2f}" '
        f'height="{max((b.max() - b.min()) / top * height / 2, 0.6):.1f}"/>'
        for k, b in enumerate(bins)
    )
    return svg(body, title, width, height, "wave")
