"""Pages: templates, errors as pages, and links that keep what a form says."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import FormData

from ..core.errors import MongeError, UsageError
from ..train.cost_description import duration, size
from . import charts

HERE = Path(__file__).parent
POLICY = {"referrer-policy": "same-origin"}
"""Without a referrer a browser sends the forms of a page with the origin null; other sites get
none."""
FRAGMENT = "x-fragment"
"""The header with which a script asks for a part of a page alone."""


@functools.cache
def environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": lambda value: "" if value is None else charts.number(float(value)),
        "cell": cell,
        "size": size,
        "duration": duration,
        "url": url_part,
        "short": lambda name: str(name).rpartition(":")[2],
        "code": with_code,
    }
    found.globals |= {"link": link, "with_stderr": with_stderr}
    return found


def url_part(text: Any) -> str:
    return quote(str(text), safe="")


def link(path: str, **query: Any) -> str:
    """A path with a query; entries that are None are left out."""
    known = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(known, doseq=True)}" if known else path


def cell(value: Any) -> str:
    """A cell of a table for people; an empty one is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return charts.number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    text = str(value)
    return "" if text in ("NaT", "<NA>") else text


def with_stderr(value: float, stderr: float | None, sign: str = "") -> Markup:
    """A value with its standard error of two digits, and no digit below them."""
    if not stderr or not math.isfinite(stderr) or not math.isfinite(value):
        return Markup("<strong>{}</strong>").format(charts.number(value))
    digits = max(1 - math.floor(math.log10(stderr)), 0)
    if digits > 6 or abs(value) >= 1e6:
        return Markup("<strong>{}</strong> ± {}").format(
            charts.number(value), charts.number(stderr)
        )
    form = f"{sign}.{digits}f"
    return Markup("<strong>{}</strong> ± {}").format(
        format(value, form), format(stderr, f".{digits}f")
    )


def with_code(text: Any) -> Markup:
    """A sentence in which what stands between backticks is set as code."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair
        return Markup.escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part
        for place, part in enumerate(parts)
    )


def wants_fragment(request: Request) -> bool:
    return FRAGMENT in request.headers


def render(
    request: Request, template: str, code: int = 200, headers: Any = None, **context: Any
) -> HTMLResponse:
    """A page, or the part of it that a script asked for."""
    known = {"request": request, "path": request.url.path, "fragment": wants_fragment(request)}
    text = environment().get_template(template).render(**{**known, **context})
    return HTMLResponse(text, code, {**POLICY, **(headers or {})})


def error_page(request: Request, sentence: str, status: int) -> Response:
    """The sentence of an error, as a page or as the part that a script asked for."""
    return render(request, "error.html", status, title="That did not work", sentence=sentence)


def failure(request: Request, error: Exception) -> Response:
    """What went wrong, in one sentence; the status says whose fault it is."""
    if isinstance(error, MongeError):
        return error_page(request, str(error), 422)
    if isinstance(error, OSError) and error.filename is not None:
        sentence = (
            f"cannot open or write {error.filename} ({error.strerror}); check the path, its "
            "permissions and the free disk space"
        )
    else:
        sentence = f"internal error ({type(error).__name__}: {error}); reload the page"
    return error_page(request, sentence, 500)


def texts_of(form: FormData) -> dict[str, str]:
    """What a form says, without its files."""
    return {key: value for key, value in form.items() if isinstance(value, str)}


def settings_of(query: Mapping[str, str], head: str = "set.") -> list[str]:
    """The settings that a form holds as `set.NAME`, empty ones left out."""
    return [
        f"{key.removeprefix(head)}={value.strip()}"
        for key, value in query.items()
        if key.startswith(head) and value.strip()
    ]


def whole(form: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number of a form; the default if there is none."""
    text = str(form.get(name) or default).strip()
    if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise UsageError(
            f"{name}: expected a whole number from {low} to {high}, found {text!r}; change it"
        )
    return int(text)
