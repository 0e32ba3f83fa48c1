"""One HTML page that holds all it shows: no network, readable in light and dark, on a phone and by
a screen reader."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881 }
* { box-sizing: border-box }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1rem }
h1 { line-height: 1.2; margin: 1rem 0 .5rem } h2 { margin-top: 2.2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
caption { text-align: left; padding: .3rem 0; opacity: .8 }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top }
td.number, th.number { text-align: right; white-space: nowrap }
tbody tr:nth-child(even) { background: var(--soft) }
figure { margin: 1rem 0 } figcaption { opacity: .8; font-size: .9rem }
img { max-width: 100%; height: auto; background: #fff; image-rendering: pixelated }
img.smooth { image-rendering: auto }
details { margin: .6rem 0; border: 1px solid var(--line); border-radius: .4rem;
          padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600 }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
pre { overflow-x: auto; background: var(--soft); padding: .7rem }
"""


def page(title: str, lead: str, *sections: str) -> str:
    """The whole document."""
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{escape(title)}</h1>\n<p>{escape(lead)}</p>\n" + "\n".join(sections)
            + "\n</main>\n</body>\n</html>\n")


def section(title: str, *parts: str) -> str:
    """A titled part of the page; nothing where there is nothing to say."""
    if not any(parts):
        return ""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def folded(title: str, *parts: str) -> str:
    """What is opened by whoever wants it."""
    return f"<details>\n<summary>{escape(title)}</summary>\n" + "\n".join(parts) + "\n</details>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def listing(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under a head; a column of numbers stands to the right."""
    numeric = [all(isinstance(row[i], int | float | None) for row in rows)
               for i in range(len(head))]

    def cell(kind: str, value: Any, i: int, scope: str = "") -> str:
        mark = ' class="number"' if numeric[i] else ""
        return f"<{kind}{scope}{mark}>{escape(shown(value))}</{kind}>"

    top = "".join(cell("th", name, i, ' scope="col"') for i, name in enumerate(head))
    body = "".join("<tr>" + "".join(
        cell("th" if i == 0 else "td", value, i, ' scope="row"' if i == 0 else "")
        for i, value in enumerate(row)) + "</tr>\n" for row in rows)
    return (f'<div class="wide"><table>\n<caption>{escape(caption)}</caption>\n'
            f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>")


def shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def picture(path: Path, told: str, smooth: bool = False) -> str:
    """A PNG file in the page itself, with what a person who does not see it should know."""
    inside = base64.b64encode(path.read_bytes()).decode()
    look = ' class="smooth"' if smooth else ""
    return (f'<figure><img{look} alt="{escape(told)}" src="data:image/png;base64,{inside}">'
            f"<figcaption>{escape(told)}</figcaption></figure>")
