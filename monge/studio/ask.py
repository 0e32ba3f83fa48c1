"""Pages that ask a run, by what its model can do: complete, condition, encode, forecast,
translate, enlarge, transfer, predict, and the film of its samples.

Each tool is a form whose address holds what was asked, so that an answer can be linked and
repeated; a picture has an address of its own beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from fastapi.responses import Response
from torch import Tensor

from ..core.abilities import (
    CanComplete,
    CanDecode,
    CanEncode,
    CanEnlarge,
    CanSample,
    CanStream,
    CanTransfer,
    HasAttention,
    HasMarginals,
    HasMode,
)
from ..core.batch import Batch
from ..core.errors import DataError, MongeError, UsageError
from ..core.rng import make_generator
from ..data.codecs.scalar import MISSING, Binary, Categorical
from ..data.codecs.window import Window
from ..data.schema import Field
from ..plot.animation import is_plane
from ..plot.animation import sheet as film_sheet
from ..plot.image_grid import as_bytes, grid
from ..run import latent
from ..run.forecast import forecast
from ..run.run import Run
from ..run.text import cross_attention, translate
from . import charts, forms, loaded, sampling, showing
from .pages import link, render, settings_of, whole
from .run_state import page_state, sample_form
from .showing import plain

router = APIRouter()
PARTS = ("lower half", "upper half", "left half", "right half", "middle")
"""Parts of a picture that can be hidden without a brush."""
MAP_ROWS = 1500
"""Rows whose codes a map shows."""
MAX_SLIDERS = 12
FILM_FRAMES = 40
FILM_SAMPLES = 16
BANDS = (0.9, 0.5)
"""Central intervals of a fan."""
MARK = re.compile(r"_+")
"""Unknown tokens of a text: an underscore each."""


@dataclass(frozen=True)
class Tool:
    """A question that a run answers."""

    key: str
    title: str
    lead: str


def tools(run: Run) -> list[Tool]:
    """What can be asked of a run."""
    model, view, found = run.model, run.view, []
    is_series = any(isinstance(f.codec, Window) for f in view.selection.schema.fields)
    if isinstance(model, CanComplete) and not is_series:
        lead = {
            "pictures": "Paint over what the model is to fill in.",
            "texts": "Write an underscore for each unknown token.",
        }.get(showing.form_of(view), "Clear the cells that the model is to fill in.")
        found.append(Tool("complete", "Complete", lead))
    if is_series and not run.space.given.keys() - {"past", "known", "calendar"}:
        found.append(Tool("forecast", "Forecast", "Median and intervals of the next steps."))
    if isinstance(model, HasMarginals) and not is_series:
        found.append(Tool("predict", "Predict", "The target of test rows, beside the true one."))
    texts = [space.kind == "tokens" for space in run.space.given.values()]
    if isinstance(model, HasMode) and view.text is not None and texts == [True]:
        found.append(Tool("translate", "Translate", "The most probable translation of a text."))
    if isinstance(model, CanSample) and (
        view.given or view.selection.schema.table or sampling.is_text(run)
    ):
        found.append(Tool("condition", "Condition", "Samples under conditions of your choice."))
    if isinstance(model, CanEncode):
        found.append(
            Tool("map", "Map", "Codes of test rows in the plane; a click decodes a place.")
        )
    if isinstance(model, CanDecode) and not isinstance(model, CanEnlarge):
        found.append(Tool("sliders", "Sliders", "Move single codes of a row and decode them."))
        found.append(Tool("between", "Interpolate", "From the code of one row to another's."))
        if latent_labels(run):
            found.append(Tool("sums", "Arithmetic", "Sums of the mean codes of labels."))
    if isinstance(model, CanEnlarge):
        found.append(Tool("enlarge", "Enlarge", "Small pictures, and samples of large ones."))
    if isinstance(model, CanTransfer):
        found.append(Tool("transfer", "Transfer", "The code of a row under others' conditions."))
    if isinstance(model, CanStream) and (run.space.is_image or is_plane(run.space)):
        found.append(Tool("film", "Film", "How samples come to be, step by step."))
    return found


def latent_labels(run: Run) -> list[str]:
    """The labels by which codes can be summed."""
    for field in run.view.selection.schema.fields:
        if isinstance(field.codec, Categorical) and field.name not in run.metadata["given"]:
            if field.name in run.view.selection.event:
                continue
            return [str(name) for name in field.codec.names if name != MISSING][:30]
    return []


@router.get("/runs/{name}/ask")
def page(request: Request, name: str, tool: str = "") -> Response:
    """The tools of a run, one of them open."""
    state = page_state(name)
    run = loaded.load(name)
    known = tools(run)
    chosen = next((each for each in known if each.key == tool), known[0] if known else None)
    if tool and (chosen is None or chosen.key != tool):
        raise UsageError(
            f"{run.metadata['model']} has no tool {tool!r}; choose from "
            f"{', '.join(each.key for each in known) or 'none'}"
        )
    query = dict(request.query_params)
    context: dict[str, Any] = {}
    if chosen is not None:
        context = FORMS.get(chosen.key, lambda run, query: {})(run, query)
    options = sampling.option_inputs(run) if isinstance(run.model, CanSample) else []
    return render(
        request,
        "ask.html",
        **state,
        tools=known,
        chosen=chosen,
        query=query,
        asked=whole(query, "go", 0, 0, 1) == 1,
        run=run,
        form_of=showing.form_of(run.view),
        address=link(f"/runs/{name}/ask", **query),
        picture=link(f"/runs/{name}/ask/{chosen.key}.png", **query) if chosen else "",
        sample=sample_form(name, request.query_params)
        if chosen and chosen.key == "condition"
        else None,
        options=options,
        context=context,
        section="ask",
    )


@router.get("/runs/{name}/ask/{tool}.png")
def picture(request: Request, name: str, tool: str) -> Response:
    """The picture of an answer."""
    run = loaded.load(name)
    if tool not in PICTURES:
        raise UsageError(f"expected one of {', '.join(PICTURES)}, found {tool!r}")
    with loaded.computing(), torch.no_grad():
        content = PICTURES[tool](loaded.with_data(run), dict(request.query_params))
    return Response(content, media_type="image/png")


# Rows of the data


def test_rows(run: Run) -> Any:
    return loaded.with_data(run).split(None, "test", every=True)


def row_number(run: Run, query: Mapping[str, str]) -> int:
    """The test row that a form names, from 0."""
    return (whole(query, "row", 1, 1, 10**9) - 1) % max(len(test_rows(run)), 1)


def test_row(run: Run, query: Mapping[str, str]) -> Batch:
    return test_rows(run).batch(torch.tensor([row_number(run, query)]))


def test_table(run: Run, count: int) -> Any:
    """The first test rows of a table as a frame."""
    rows = test_rows(run)
    return run.view.decode(rows.batch(torch.arange(min(count, len(rows)))).x)


def seed_of(query: Mapping[str, str]) -> int:
    return whole(query, "seed", 0, 0, 2**31 - 1)


def draws_of(query: Mapping[str, str], default: int = 4) -> int:
    return whole(query, "draws", default, 1, 16)


# Complete


def complete_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    form, space = showing.form_of(run.view), run.space
    found: dict[str, Any] = {"rows": len(test_rows(run)), "row": row_number(run, query) + 1}
    if form == "pictures":
        height, width = space.shape[1:]
        return found | {
            "form": form,
            "height": height,
            "width": width,
            "parts": PARTS,
            "source": link(
                f"/runs/{loaded.name_of(run.folder)}/ask/row.png", row=query.get("row", "1")
            ),
        }
    if form == "texts":
        text = query.get("text")
        if text is None:
            text = example_text(run, query)
        answer = completed_texts(run, text, query) if query.get("go") else None
        return found | {"form": form, "text": text, "answer": answer}
    cells = table_cells(run, query)
    answer = completed_table(run, cells, query) if query.get("go") else None
    return found | {"form": "table", "cells": cells, "answer": answer}


def table_cells(run: Run, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """An input for each column that the model generates, and in a table for each condition: as
    typed, or as in a test row. Keys and computed columns have none."""
    is_table, fields = run.view.selection.schema.table, {}
    names, values = full_row(run, run.view.decode(test_row(run, query).x))
    if is_table:
        fields = {str(f.key or f.name): f for f in run.view.event.fields}
        values = [value for name, value in zip(names, values, strict=True) if name in fields]
        names = [name for name in names if name in fields]
        for field, value in given_cells(run, row_number(run, query)):
            fields[str(field.key or field.name)] = field
            names, values = [*names, str(field.key or field.name)], [*values, value]
    cells = []
    for name, value in zip(names, values, strict=True):
        choices = cell_choices(fields[name].codec) if is_table else []
        typed = None if query.get("reset") else query.get(f"cell.{name}")
        text = "" if value is None else forms.written(value)
        if isinstance(value, float) and not is_table:
            text = f"{value:.7g}"  # the digits of a single-precision number
        cells.append(
            {
                "name": name,
                "value": text if typed is None else typed.strip(),
                "choices": choices,
                "numeric": isinstance(value, int | float) and not choices,
            }
        )
    return cells


def given_cells(run: Run, row: int) -> Iterator[tuple[Field, Any]]:
    """The columns that are conditions, each with its value in a test row."""
    place, source = test_rows(run).index[row], loaded.with_data(run).opened
    assert source is not None
    for group in run.view.given.values():
        for field in group.fields:
            codes: Any = source.dataset.tensors[field.name]
            yield field, plain(field.codec.decode(codes[place : place + 1].numpy())[0])


def cell_choices(codec: Any) -> list[str]:
    """The values among which a cell is chosen; none for numbers."""
    if isinstance(codec, Categorical):
        return [str(name) for name in codec.names if name != MISSING]
    if isinstance(codec, Binary):
        is_truth = not codec.is_text and codec.dtype == "bool"
        return ["false", "true"] if is_truth else list(codec.values)
    return []


def full_row(run: Run, decoded: Any) -> tuple[list[str], list[Any]]:
    if not isinstance(decoded, np.ndarray):
        return [str(c) for c in decoded.columns], [plain(v) for v in decoded.iloc[0]]
    flat = decoded.reshape(-1)
    names = list(run.view.columns)
    if len(names) != len(flat):
        names = [f"x{place}" for place in range(1, len(flat) + 1)]
    return names, [plain(value) for value in flat]


def typed_cell(cell: Mapping[str, Any]) -> Any:
    """The value of a cell; None where it is empty."""
    text = cell["value"]
    if not text:
        return None
    if cell["numeric"]:
        try:
            return float(text)
        except ValueError:
            raise DataError(
                f"{cell['name']}: expected a number, found {text!r}; change the cell"
            ) from None
    return text


def completed_table(
    run: Run, cells: list[dict[str, Any]], query: Mapping[str, str]
) -> dict[str, Any]:
    """Rows whose empty cells the model fills in."""
    values = [typed_cell(cell) for cell in cells]
    hidden = [value is None for value in values]
    if not any(hidden):
        raise DataError("no cell is empty; clear the cells that the model is to fill in")
    draws, seed = draws_of(query, 8), seed_of(query)
    settings = sampling.check_settings(settings_of(query))
    names = [cell["name"] for cell in cells]
    known = {str(f.key or f.name) for g in run.view.given.values() for f in g.fields}
    if given := [n for n, empty in zip(names, hidden, strict=True) if empty and n in known]:
        raise DataError(f"{given[0]} is a condition of the model and is empty; give it a value")
    with loaded.computing(), torch.no_grad():
        if run.view.selection.schema.table:
            import pandas as pd

            frame = pd.DataFrame({n: pd.Series([v]) for n, v in zip(names, values, strict=True)})
            frame = frame.dropna(axis=1, how="all").reindex(columns=names)
            made = run.complete(frame, *settings, draws=draws, seed=seed)
            rows = [[plain(v) for v in made.iloc[k]] for k in range(len(made))]
            names_out = [str(c) for c in made.columns]
            filled = [name in names and hidden[names.index(name)] for name in names_out]
        else:
            row = test_row(run, query)
            x = torch.tensor([[v if v is not None else 0.0 for v in values]])
            x = x.reshape(1, *run.space.shape).to(row.x.dtype)
            seen = ~torch.tensor(hidden).reshape(1, *run.space.shape)
            batch = Batch(x, dict(row.given), observed=seen)
            done = run.complete_batch(batch, *settings, draws=draws, seed=seed)
            rows = [[plain(v) for v in one] for one in done.x.reshape(draws, -1).numpy()]
            names_out, filled = names, hidden
        method = run.require(CanComplete).completion
    return {"head": names_out, "rows": rows, "filled": filled, "method": method}


def example_text(run: Run, query: Mapping[str, str]) -> str:
    batch = test_row(run, query)
    codec = run.view.text
    assert codec is not None
    end = int(batch.length[0]) if batch.length is not None else batch.x.shape[1]
    codes = batch.x[0, : min(end, 40)].tolist()
    text = codec.spell(codes)
    return text[: max(len(text) - 2, 1)] + "__"


def completed_texts(run: Run, text: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Texts whose unknown tokens, an underscore each, the model fills in."""
    codec = run.view.text
    assert codec is not None
    if not MARK.search(text):
        raise DataError("no token is unknown; write an underscore for each unknown token")
    codes: list[int] = []
    seen: list[bool] = []
    place = 0
    for found in [*MARK.finditer(text), None]:
        piece = text[place : found.start() if found else len(text)]
        if piece:
            own = codec.codes([piece], lambda _: "the text")[0].tolist()
            own = [c for c in own if not (codec.ends and c == run.space.end)]
            codes, seen = codes + own, seen + [True] * len(own)
        if found:
            count = found.end() - found.start()
            codes, seen = codes + [0] * count, seen + [False] * count
            place = found.end()
    if run.space.end is not None and seen[-1]:
        codes, seen = [*codes, run.space.end], [*seen, True]
    if len(codes) > run.space.shape[0]:
        raise DataError(
            f"the text has {len(codes)} tokens and the model takes {run.space.shape[0]}; "
            "shorten it"
        )
    x, known, length = torch.tensor([codes]), torch.tensor([seen]), torch.tensor([len(codes)])
    varies = length if run.space.varies else None
    if varies is None and len(codes) < run.space.shape[0]:
        pad = run.space.shape[0] - len(codes)
        x = torch.nn.functional.pad(x, (0, pad))
        known = torch.nn.functional.pad(known, (0, pad), value=False)
    batch = Batch(x, observed=known, length=varies)
    settings = sampling.check_settings(settings_of(query))
    with loaded.computing(), torch.no_grad():
        done = run.complete_batch(batch, *settings, draws=draws_of(query, 6), seed=seed_of(query))
    texts = []
    for row in done.x[:, : len(codes)].tolist():
        parts = [(codec.spell([c]), s) for c, s in zip(row, seen, strict=True)]
        texts.append([(piece, not s) for piece, s in parts if piece])
    return {"texts": texts, "method": run.require(CanComplete).completion}


def hidden_mask(query: Mapping[str, str], height: int, width: int) -> Tensor:
    """True where a picture is painted over, (H, W): from the brush, or a part by name."""
    text = query.get("mask", "")
    if text:
        if not re.fullmatch(r"[0-9a-f]+", text) or len(text) != -(-height * width // 4):
            raise UsageError(
                f"mask: expected {-(-height * width // 4)} hexadecimal digits for {height}x"
                f"{width} pixels, found {len(text)} characters; paint it again"
            )
        bits = [int(c, 16) >> shift & 1 for c in text for shift in (3, 2, 1, 0)]
        return torch.tensor(bits[: height * width], dtype=torch.bool).reshape(height, width)
    hidden = torch.zeros(height, width, dtype=torch.bool)
    part = query.get("part") or PARTS[0]
    if part not in PARTS:
        raise UsageError(f"part: expected one of {', '.join(PARTS)}, found {part!r}")
    top, left = slice(None), slice(None)
    if part == PARTS[0]:
        top = slice(height // 2, height)
    elif part == PARTS[1]:
        top = slice(0, height // 2)
    elif part == PARTS[2]:
        left = slice(0, width // 2)
    elif part == PARTS[3]:
        left = slice(width // 2, width)
    else:
        top = slice(height // 4, height - height // 4)
        left = slice(width // 4, width - width // 4)
    hidden[top, left] = True
    return hidden


def complete_picture(run: Run, query: dict[str, str]) -> bytes:
    """The masked picture, its completions and the true one."""
    height, width = run.space.shape[1:]
    hidden = hidden_mask(query, height, width).expand(run.space.shape)
    if not bool(hidden.any()):
        raise DataError("nothing is painted over; paint over what the model is to fill in")
    row, draws = test_row(run, query), draws_of(query)
    batch = replace(row, observed=row.observed_mask & ~hidden)
    settings = sampling.check_settings(settings_of(query))
    done = run.complete_batch(batch, *settings, draws=draws, seed=seed_of(query))
    images = as_bytes(torch.cat([row.x, done.x, row.x]).numpy(), run.space)
    images = images if images.ndim == 4 else np.repeat(images[..., None], 3, -1)
    cover = hidden[0].numpy()
    images[0][cover] = (images[0][cover] * 0.15 + np.array([222, 120, 40]) * 0.85).astype(np.uint8)
    return showing.png(grid(images, len(images), max(1, 112 // max(height, width))))


def row_picture(run: Run, query: dict[str, str]) -> bytes:
    """One test row, a pixel a pixel."""
    return showing.png(as_bytes(test_row(run, query).x.numpy(), run.space)[0])


# Predict


def predict_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    rows = test_rows(run)
    n = whole(query, "n", 12, 1, 200)
    rows.index = rows.index[:n]
    with loaded.computing(), torch.no_grad():
        table = run.predict()
    table = table.iloc[:n]
    head = [str(name) for name in table.columns]
    truth = run.view.decode(rows.whole().x)
    values = truth if isinstance(truth, np.ndarray) else truth.iloc[:, 0].to_numpy()
    return {
        "head": ["row", "true", *head],
        "rows": [
            [k + 1, plain(values[k]), *(plain(v) for v in table.iloc[k])]
            for k in range(len(table))
        ],
    }


# Codes


@dataclass(frozen=True)
class Codes:
    """Codes of test rows, with the plane in which they differ most."""

    z: Tensor  # (N, *latent)
    labels: list[str] | None
    centre: Tensor  # (d,)
    directions: Tensor  # (2, d)

    @property
    def plane(self) -> np.ndarray:
        return ((self.z.flatten(1).double() - self.centre) @ self.directions.T).numpy()

    def at(self, a: float, b: float) -> Tensor:
        """The code at a place of the plane, (1, *latent)."""
        place = torch.tensor([a, b], dtype=torch.float64) @ self.directions + self.centre
        return place.reshape(1, *self.z.shape[1:]).to(self.z.dtype)


CODES = loaded.Cache(4)


def codes(run: Run) -> Codes:
    key = (run.folder, loaded.stamp(run.folder / "best.safetensors"))
    return CODES.get(key, lambda: read_codes(run))


def read_codes(run: Run) -> Codes:
    source, rows = latent.own_rows(loaded.with_data(run), None, "test")
    rows.index = rows.index[:MAP_ROWS]
    with torch.no_grad():
        if isinstance(run.model, CanEncode):
            z, labels = latent.encoded(run, rows), None
            if name := latent.label_field(source):
                labels = [str(each) for each in latent.names_of(source, name, rows)]
        else:
            shape = run.require(CanDecode).latent.shape
            z = torch.randn(MAP_ROWS, *shape, generator=make_generator(0))
            labels = None
    flat = z.flatten(1).double()
    if flat.shape[1] <= 2:
        directions = torch.eye(flat.shape[1], dtype=torch.float64)
        directions = torch.nn.functional.pad(directions, (0, 0, 0, 2 - flat.shape[1]))
        return Codes(z, labels, torch.zeros(flat.shape[1], dtype=torch.float64), directions)
    centre = flat.mean(0)
    _, _, found = torch.linalg.svd(flat - centre, full_matrices=False)
    return Codes(z, labels, centre, found[:2])


def given_like(run: Run, row: int, n: int) -> dict[str, Batch]:
    rows = test_rows(run)
    return dict(rows.batch(torch.full((n,), row % len(rows))).given)


def map_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    with loaded.computing():
        known = codes(run)
    spread = known.plane
    can_decode = isinstance(run.model, CanDecode)
    a, b = (number(query.get(key)) for key in ("a", "b"))
    title = "Codes of test rows" if isinstance(run.model, CanEncode) else "Codes of the prior"
    return {
        "chart": charts.points(spread, known.labels, title, "map", {"click": can_decode}),
        "can_decode": can_decode,
        "dims": int(known.z[0].numel()),
        "a": 0.0 if a is None else a,
        "b": 0.0 if b is None else b,
        "decoded": decoded_part(run, query) if can_decode and query.get("go") else None,
        "low": [round(float(v), 3) for v in spread.min(0)],
        "high": [round(float(v), 3) for v in spread.max(0)],
    }


def number(text: str | None) -> float | None:
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if np.isfinite(value) and abs(value) < 1e6 else None


def asked_code(run: Run, query: Mapping[str, str]) -> Tensor:
    """The code that a form names: a place of the map, or a row's with single codes moved."""
    known = codes(run)
    a, b = number(query.get("a")), number(query.get("b"))
    if a is not None and b is not None:
        return known.at(a, b)
    z = known.z[whole(query, "row", 1, 1, len(known.z)) - 1].flatten().clone()
    for place in range(len(z)):
        if (value := number(query.get(f"z.{place + 1}"))) is not None:
            z[place] = value
    return z.reshape(1, *known.z.shape[1:])


def decoded_event(run: Run, query: Mapping[str, str]) -> Tensor:
    row = whole(query, "row", 1, 1, 10**9) - 1
    with loaded.computing(), torch.no_grad():
        return latent.decoded(run, asked_code(run, query), given_like(run, row, 1))


def decoded_part(run: Run, query: dict[str, str]) -> showing.Shown:
    if run.space.is_image:
        return showing.Shown("pictures", 1)
    return showing.show(run.view, decoded_event(run, query))


def decoded_picture(run: Run, query: dict[str, str]) -> bytes:
    x = decoded_event(run, query)
    zoom = max(1, 224 // max(run.space.shape[1:]))
    return showing.pictures(x, run.space, 1, zoom)


def sliders_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    """The codes in which rows differ most, as sliders."""
    with loaded.computing():
        known = codes(run)
    flat = known.z.flatten(1)
    chosen = flat.var(0, correction=0).argsort(descending=True)[:MAX_SLIDERS].sort()[0]
    row = whole(query, "row", 1, 1, len(flat)) - 1
    ends = flat.quantile(torch.tensor([0.01, 0.99]).to(flat), 0)
    sliders = []
    for place in chosen.tolist():
        own, typed = float(flat[row, place]), number(query.get(f"z.{place + 1}"))
        low, high = min(float(ends[0, place]), own), max(float(ends[1, place]), own)
        value = own if typed is None or query.get("reset") else typed
        sliders.append(
            {
                "place": place + 1,
                "low": round(low, 3),
                "high": round(high, 3),
                "value": round(value, 3),
            }
        )
    return {
        "sliders": sliders,
        "rows": len(flat),
        "row": row + 1,
        "dims": flat.shape[1],
        "decoded": decoded_part(run, query),
    }


def between_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    lines, steps = whole(query, "lines", 4, 1, 16), whole(query, "steps", 9, 2, 24)
    found: dict[str, Any] = {"lines": lines, "steps": steps, "shown": None}
    if not run.space.is_image:
        with loaded.computing(), torch.no_grad():
            sheet = latent.interpolate(loaded.with_data(run), None, "test", lines, steps)
        found["shown"] = showing.show(run.view, sheet.x)
    return found


def between_picture(run: Run, query: dict[str, str]) -> bytes:
    lines, steps = whole(query, "lines", 4, 1, 16), whole(query, "steps", 9, 2, 24)
    sheet = latent.interpolate(run, None, "test", lines, steps, seed_of(query))
    return showing.pictures(sheet.x, run.space, sheet.columns)


def default_sum(run: Run, query: Mapping[str, str]) -> str:
    labels = latent_labels(run)
    return query.get("sum") or f"+{labels[0]} -{labels[-1]} +{labels[len(labels) // 2]}"


def sums_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    labels = latent_labels(run)
    text = default_sum(run, query)
    found: dict[str, Any] = {"labels": labels, "sum": text, "shown": None}
    if query.get("go") and not run.space.is_image:
        with loaded.computing(), torch.no_grad():
            sheet = latent.arithmetic(loaded.with_data(run), text)
        found["shown"] = showing.show(run.view, sheet.x)
    return found


def sums_picture(run: Run, query: dict[str, str]) -> bytes:
    sheet = latent.arithmetic(run, default_sum(run, query))
    return showing.pictures(sheet.x, run.space, sheet.columns, 6)


# Forecast, translate, enlarge, transfer, film


def forecast_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    """The fan chart of the next steps, one for each channel."""
    horizon = whole(query, "horizon", 0, 0, 1000) or None
    settings = sampling.check_settings(settings_of(query))
    with loaded.computing(), torch.no_grad():
        found = forecast(loaded.with_data(run), horizon, None, settings, 400, seed_of(query))
    steps = found.paths.shape[1]
    past = min(len(found.series), max(3 * steps, 24))
    times = [str(t) for t in found.times]
    before = found.series.clock.written(np.array([float(len(found.series) - past)]))
    names = [(0, str(before[0])), (past, times[0]), (past + steps - 1, times[-1])]
    fans = []
    for place, channel in enumerate(found.series.channels[:8]):
        paths = found.paths[:, :, place]
        bands = [
            (f"{share:.0%}", *np.quantile(paths, [(1 - share) / 2, (1 + share) / 2], axis=0))
            for share in BANDS
        ]
        middle = np.median(paths, axis=0)
        fan = charts.fan(
            found.series.values[-past:, place].astype(float).tolist(),
            [(n, low.tolist(), high.tolist()) for n, low, high in bands],
            middle.tolist(),
            names,
            str(channel),
        )
        fans.append((str(channel), fan))
    table = found.table(BANDS[0])
    return {
        "fans": fans,
        "horizon": steps,
        "head": [str(name) for name in table.columns],
        "rows": [[plain(v) for v in table.iloc[k]] for k in range(len(table))],
        "bands": [f"{share:.0%}" for share in BANDS],
    }


def translate_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    text = query.get("text", "").strip()
    found: dict[str, Any] = {"text": text, "answer": None, "attention": None}
    if not text:
        found["text"] = example_source(run)
        return found
    settings = sampling.check_settings(settings_of(query))
    with loaded.computing(), torch.no_grad():
        found["answer"] = translate(run, [text], *settings)[0]
        if isinstance(run.model, HasAttention) and found["answer"]:
            rows, columns, weights = cross_attention(run, text, found["answer"])
            found["attention"] = charts.heat(
                weights.numpy(), rows, columns, "Attention of each translated token to the source"
            )
    return found


def example_source(run: Run) -> str:
    try:
        rows = test_rows(run)
        ((name, group),) = run.view.given.items()
        codec: Any = group.fields[0].codec
        batch = rows.batch(torch.tensor([0])).given[name]
        end = int(batch.length[0]) if batch.length is not None else batch.x.shape[1]
        return codec.spell(batch.x[0, :end].tolist())
    except (MongeError, ValueError):
        return ""


def rows_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"n": whole(query, "n", 6, 1, 12), "shown": None}
    if not run.space.is_image and isinstance(run.model, CanTransfer):
        with loaded.computing(), torch.no_grad():
            sheet = latent.transfer(loaded.with_data(run), None, "test", found["n"])
        found["shown"] = showing.show(run.view, sheet.x)
    return found


def enlarge_picture(run: Run, query: dict[str, str]) -> bytes:
    """Small pictures, samples of large ones, and the true ones, a line each."""
    model, n = run.require(CanEnlarge), whole(query, "n", 6, 1, 12)
    rows = test_rows(run)
    batch = rows.batch(torch.arange(min(n, len(rows))))
    small = batch.given[model.source].x
    factor = run.space.shape[-1] // small.shape[-1]
    first = small.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    draws = draws_of(query, 4)
    given = batch.to(run.compute.torch_device()).given
    settings = sampling.check_settings(settings_of(query))
    made = [
        run.sample_tensor(len(batch), given, *settings, seed=seed_of(query) + k)
        for k in range(draws)
    ]
    x = torch.stack([first.to(batch.x.dtype), *made, batch.x], 1).flatten(0, 1)
    return showing.pictures(x, run.space, draws + 2)


def transfer_picture(run: Run, query: dict[str, str]) -> bytes:
    sheet = latent.transfer(run, None, "test", whole(query, "n", 6, 1, 12))
    return showing.pictures(sheet.x, run.space, sheet.columns)


def film_form(run: Run, query: dict[str, str]) -> dict[str, Any]:
    return {"frames": FILM_FRAMES, "n": FILM_SAMPLES, "conditions": sampling.conditions(run)}


FILMS = loaded.Cache(3)


def film_picture(run: Run, query: dict[str, str]) -> bytes:
    """One frame of a film; the others are kept for the next requests."""
    asked = sampling.Asked.of({k: v for k, v in query.items() if k != "frame"}, FILM_SAMPLES)
    key = (run.folder, loaded.stamp(run.folder / "best.safetensors"), str(asked))

    def make() -> list[Tensor]:
        count = 2000 if is_plane(run.space) else min(asked.count, 64)
        given = sampling.given_of(run, asked, count)
        states = list(run.stream(count, given, *asked.settings, seed=asked.seed))
        keep = np.linspace(0, len(states) - 1, min(len(states), FILM_FRAMES)).round()
        return [states[int(k)] for k in keep]

    frames = FILMS.get(key, make)
    frame = min(whole(query, "frame", FILM_FRAMES - 1, 0, FILM_FRAMES - 1), len(frames) - 1)
    zoom = 6 if is_plane(run.space) else None
    return showing.png(film_sheet(frames[frame], run.space, zoom))


FORMS: dict[str, Callable[[Run, dict[str, str]], dict[str, Any]]] = {
    "complete": complete_form,
    "predict": predict_form,
    "map": map_form,
    "sliders": sliders_form,
    "between": between_form,
    "sums": sums_form,
    "forecast": forecast_form,
    "translate": translate_form,
    "enlarge": rows_form,
    "transfer": rows_form,
    "film": film_form,
}
PICTURES: dict[str, Callable[[Run, dict[str, str]], bytes]] = {
    "complete": complete_picture,
    "row": row_picture,
    "map": decoded_picture,
    "sliders": decoded_picture,
    "between": between_picture,
    "sums": sums_picture,
    "enlarge": enlarge_picture,
    "transfer": transfer_picture,
    "film": film_picture,
}
