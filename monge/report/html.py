"""One HTML page that holds all it shows: no network, readable in light and dark, on a phone and by
a screen reader."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --quiet: #5c6370; --mark: #1f5fbf;
        --ground: #fff }
html { background: var(--ground) }
@media (prefers-color-scheme: dark) { :root { --quiet: #a4acb8; --mark: #8ab4f8;
  --ground: #14171c } html { color: #e4e7ec } img { filter: brightness(.9) } }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem }
h1 { line-height: 1.2; margin: 1rem 0 .4rem } h2 { margin: 2.4rem 0 .6rem; line-height: 1.25 }
h3 { margin: 1.4rem 0 .4rem } summary :is(h3, h4) { display: inline; margin: 0; font-size: 1rem }
h4 { margin: 1.2rem 0 .3rem }
p { max-width: 46rem } header p { color: var(--quiet); margin-top: 0 }
a { color: var(--mark) } :focus-visible { outline: 2px solid var(--mark); outline-offset: 2px }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; list-style: none }
.wide { overflow-x: auto; margin: .6rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
caption { text-align: left; padding: .3rem 0; color: var(--quiet) }
th, td { padding: .32rem .55rem; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top }
thead th { vertical-align: bottom; border-bottom-width: 2px } tbody th { font-weight: 600 }
.number { text-align: right } td.number { white-space: nowrap }
tbody th { position: sticky; left: 0; background: var(--ground); white-space: nowrap }
tbody tr:nth-child(even) td { background: var(--soft) } tr.apart { font-style: italic }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr));
           gap: 1rem } .gallery figure { margin: 0 } .gallery img { width: 100% }
figure { margin: 1rem 0 } figcaption { color: var(--quiet); font-size: .9rem }
img { max-width: 100%; height: auto; background: #fff; image-rendering: pixelated;
      border-radius: .3rem }
img.smooth { image-rendering: auto }
.chart svg { width: 100%; height: auto; max-height: 15rem; font-size: 12px; fill: currentColor }
.chart .real { fill: var(--mark); opacity: .4 } .chart .axis { stroke: var(--quiet) }
.chart .new { fill: none; stroke: currentColor; stroke-width: 1.3 }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: .4rem;
          padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600 }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow-x: auto; white-space: pre-wrap; background: var(--soft); padding: .7rem;
  border-radius: .3rem }
@media print { details { border: 0 } nav { display: none } }
"""
NUMBER = re.compile(r"[-+]?\d[\d.e+-]*( ± [\d.e+-]+)?")


def page(title: str, lead: str, sections: Mapping[str, Sequence[str]]) -> str:
    """The whole document; a section without content is left out."""
    full = {name: parts for name, parts in sections.items() if any(parts)}
    links = "".join(f'<li><a href="#{anchor(name)}">{escape(name)}</a></li>' for name in full)
    body = "\n".join(
        f'<section id="{anchor(name)}" aria-labelledby="{anchor(name)}-title">\n'
        f'<h2 id="{anchor(name)}-title">{escape(name)}</h2>\n' + "\n".join(parts) + "\n</section>"
        for name, parts in full.items()
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(title)}</h1>\n<p>{escape(lead)}</p>\n</header>\n"
        f'<nav aria-label="Parts of this page">\n<ul>{links}</ul>\n</nav>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def part(title: str, *parts: str, level: int = 3) -> str:
    """A titled part of a section; empty if it has no content."""
    if not any(parts):
        return ""
    return f"<h{level}>{escape(title)}</h{level}>\n" + "\n".join(parts)


def folded(title: str, *parts: str, level: int = 3) -> str:
    """What is opened by whoever wants it."""
    return (
        f"<details>\n<summary><h{level}>{escape(title)}</h{level}></summary>\n"
        + "\n".join(parts)
        + "\n</details>"
    )


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def preformatted(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def listing(items: Sequence[str]) -> str:
    return (
        "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""
    )


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]], apart: int = 0) -> str:
    """Rows under a head, the last `apart` of them set off; a column of numbers stands to the
    right, and the first names its row. A wide table scrolls in its own box."""
    numeric = [
        any(row[i] not in (None, "") for row in rows) and all(is_number(row[i]) for row in rows)
        for i in range(len(head))
    ]

    def cell(kind: str, value: Any, i: int, scope: str = "") -> str:
        mark = ' class="number"' if numeric[i] else ""
        return f"<{kind}{scope}{mark}>{escape(shown(value))}</{kind}>"

    top = "".join(cell("th", name, i, ' scope="col"') for i, name in enumerate(head))
    body = "".join(
        ('<tr class="apart">' if number >= len(rows) - apart else "<tr>")
        + "".join(
            cell("th" if i == 0 else "td", value, i, ' scope="row"' if i == 0 else "")
            for i, value in enumerate(row)
        )
        + "</tr>\n"
        for number, row in enumerate(rows)
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(caption)}" tabindex="0"><table>'
        f"\n<caption>{escape(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table></div>"
    )


def is_number(value: Any) -> bool:
    """Whether a cell is a number, with or without its error, or empty."""
    return (
        value is None
        or value == ""
        or isinstance(value, int | float)
        or (isinstance(value, str) and NUMBER.fullmatch(value) is not None)
    )


def shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def embed_image(path: Path, caption: str, smooth: bool = False) -> str:
    """A PNG file in the page itself, with what a person who does not see it should know."""
    inside = base64.b64encode(path.read_bytes()).decode()
    css_class = ' class="smooth"' if smooth else ""
    return (
        f'<figure><img{css_class} alt="{escape(caption)}" src="data:image/png;base64,{inside}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def chart(
    caption: str,
    real: Sequence[float],
    new: Sequence[float],
    names: Sequence[str],
    named: bool = False,
) -> str:
    """Shares of real rows (filled) and of new ones: a histogram between two ends, or a bar for
    each of the names."""
    most = max([*real, *new, 1e-9])
    marks = bar_marks(real, new, names, most) if named else step_marks(real, new, names, most)
    height = 22 * len(names) + 4 if named else 130
    return (
        f'<figure class="chart"><figcaption>{escape(caption)}</figcaption>'
        f'<svg viewBox="0 0 320 {height}" role="img" aria-label="{escape(caption)}">{marks}</svg>'
        "</figure>"
    )


def step_marks(
    real: Sequence[float], new: Sequence[float], ends: Sequence[str], most: float
) -> str:
    width = 320 / len(real)
    filled = "".join(
        f'<rect class="real" x="{i * width:.1f}" y="{108 - 104 * share / most:.1f}" '
        f'width="{width:.1f}" height="{104 * share / most:.1f}"/>'
        for i, share in enumerate(real)
    )
    points = " ".join(
        f"{(i + side) * width:.1f},{108 - 104 * share / most:.1f}"
        for i, share in enumerate(new)
        for side in (0, 1)
    )
    return (
        f'{filled}<polyline class="new" points="{points}"/>'
        f'<line class="axis" x1="0" y1="108" x2="320" y2="108"/>'
        f'<text x="0" y="124">{escape(ends[0])}</text>'
        f'<text x="320" y="124" text-anchor="end">{escape(ends[1])}</text>'
    )


def bar_marks(
    real: Sequence[float], new: Sequence[float], names: Sequence[str], most: float
) -> str:
    marks = ""
    for i, (name, a, b) in enumerate(zip(names, real, new, strict=True)):
        top, short = 22 * i, name if len(name) <= 16 else f"{name[:15]}…"
        marks += (
            f'<text x="104" y="{top + 15}" text-anchor="end">{escape(short)}</text>'
            f'<rect class="real" x="110" y="{top + 2}" width="{160 * a / most:.1f}" height="9"/>'
            f'<rect class="new" x="110" y="{top + 11}" width="{160 * b / most:.1f}" height="8"/>'
            f'<text x="{114 + 160 * max(a, b) / most:.1f}" y="{top + 15}">{100 * a:.0f} '
            f"/ {100 * b:.0f}</text>"
        )
    return marks


def gallery(figures: Sequence[str]) -> str:
    """Figures side by side, as many as there is room for."""
    return f'<div class="gallery">{"".join(figures)}</div>' if figures else ""
