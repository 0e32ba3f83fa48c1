"""Pages about data: what is there, uploads, and how a file is understood."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup
from torch import Tensor

from ..core.errors import DataError
from ..data import description
from ..data.codecs.scalar import Categorical
from ..data.dataset import Dataset
from ..data.schema import Field
from ..run.recommendation import recommend
from . import charts, loaded, showing, uploads
from .pages import link, render

router = APIRouter()
BINS = 24
EXAMPLES = 8
HISTOGRAM_ROWS = 20_000
"""Rows of which histograms are made."""


@router.get("/data")
def index(request: Request) -> Response:
    return render(
        request,
        "data.html",
        title="Data",
        places=loaded.available_data(),
        limit=uploads.MAX_UPLOAD >> 20,
        suffixes=", ".join((*uploads.TABLES, ".zip")),
    )


@router.post("/data/upload")
def upload(request: Request, file: Annotated[list[UploadFile], Form()]) -> Response:
    """Save files below the runs and show how the first is understood."""
    chosen = [each for each in file if each.filename]
    if not chosen:
        raise DataError("expected a file, found none; choose one")
    paths = [uploads.save(str(each.filename), each.file) for each in chosen]
    return RedirectResponse(link("/data/show", data=str(paths[0].resolve())), 303)


@router.get("/data/show")
def show(request: Request, data: str, settings: str = "") -> Response:
    """How some data is understood."""
    words = [word.removeprefix("data.") for word in settings.split()]
    source, problems, used = loaded.describe_data(data, *words)
    view = source.view()
    splits = {name: len(view.split(name)) for name in ("train", "valid", "test")}
    own = " ".join(f"data.{word}" for word in description.plain(used))
    data = description.transformed(data, used)
    return render(
        request,
        "data_show.html",
        title=source.name,
        data=data,
        settings=settings,
        used=own,
        source=source,
        headline=description.headline(source, splits).partition(": ")[2],
        columns=[describe(entry, source) for entry in description.columns(source)],
        notes=list(dict.fromkeys([*source.notes, *view.notes])),
        problems=problems,
        advice=recommend(source, data, description.plain(used)),
        examples=example_rows(source),
        picture=link("/data/rows.png", data=data, settings=own or None),
    )


def example_rows(source: Dataset, count: int = EXAMPLES) -> showing.Shown:
    view = source.view()
    rows = view.split("train")
    batch = rows.batch(torch.arange(min(len(rows), 64 if view.space.is_image else count)))
    if showing.form_of(view) == "points":
        batch = rows.batch(torch.arange(min(len(rows), charts.MAX_MARKS)))
    return showing.show(view, batch.x, batch.length)


@router.get("/data/rows.png")
def picture(data: str, settings: str = "", count: int = 32) -> Response:
    """The first pictures of the training split."""
    words = settings.split()
    source = loaded.open_data(data, *(word.removeprefix("data.") for word in words))
    view = source.view()
    if not view.space.is_image:
        raise DataError(f"expected pictures, found {view.space}; look at the rows as a table")
    rows = view.split("train")
    batch = rows.batch(torch.arange(min(len(rows), max(1, min(count, 64)))))
    return Response(showing.pictures(batch.x, view.space, 16), media_type="image/png")


def describe(entry: dict[str, Any], source: Dataset) -> dict[str, Any]:
    """A column with its histogram."""
    field = source.fields.get(entry["column"])
    return {**entry, "histogram": None if field is None else histogram(field, source)}


def histogram(field: Field, source: Dataset) -> Markup | None:
    """The distribution of a column of numbers or names; none of pictures or sequences."""
    codes = source.tensors[field.name]
    if not isinstance(codes, Tensor):
        return None
    codec, kind = field.codec, field.space.kind
    if isinstance(codec, Categorical) and codes.ndim == 1:
        known = codes[codes >= 0].long().numpy()
        counts = np.bincount(known, minlength=len(codec.names))[: len(codec.names)]
        order = np.argsort(-counts, kind="stable")[:BINS]
        names = [str(codec.names[k]) for k in order]
        said = ", ".join(f"{n} {counts[k]}" for n, k in zip(names[:4], order, strict=False))
        return charts.histogram(
            [float(counts[k]) for k in order], f"{field.name}: most frequent {said}", names
        )
    if kind == "label" or codes.ndim > 2:
        return None
    values = codes[:HISTOGRAM_ROWS].double().numpy()
    if codes.ndim == 2 and kind != "real":
        return None
    values = values[np.isfinite(values)]
    if kind == "binary":
        zeros, ones = float((values == 0).sum()), float((values == 1).sum())
        return charts.histogram(
            [zeros, ones], f"{field.name}: {zeros:g} times 0, {ones:g} times 1", ["0", "1"]
        )
    if not len(values):
        return None
    low, high = np.percentile(values, [0.5, 99.5])
    counts_, edges = np.histogram(values, BINS, (float(low), float(max(high, low + 1e-9))))
    top = int(counts_.argmax())
    return charts.histogram(
        counts_.tolist(),
        f"{field.name}: most values near {charts.number((edges[top] + edges[top + 1]) / 2)}",
    )


def field_choices(source: Dataset) -> list[str]:
    """The fields that may be conditions or targets."""
    keys = {key.name for key in source.schema.row_keys}
    return [name for name in source.fields if name not in keys]
