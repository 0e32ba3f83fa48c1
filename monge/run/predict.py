"""Predictions of targets as a table with the names and units of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import CanSample, HasMode
from ..core.ensemble import EnsembleMode
from ..core.errors import UsageError
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..data.codecs.array import Array
from ..data.codecs.base import Codec
from ..data.codecs.date import Date
from ..data.codecs.scalar import Offset, shortest
from ..data.frames import is_frame
from ..evaluate.likelihood import chunks
from ..evaluate.predictions import TargetPrediction, join
from ..evaluate.predictions import predict as predict_targets
from .writers import PART

if TYPE_CHECKING:
    import pandas as pd

    from ..data.batches import Split
    from ..data.dataset import View


By = Literal["mean", "mode", "sample", "vote"]
CLASSES = ("label", "binary")
"""Kinds of targets that members can vote on."""


def predict_parts(
    model: Model,
    view: View,
    rows: Split,
    by: By,
    interval: float,
    settings: Sequence[str],
    seed: int,
) -> Iterator[pd.DataFrame]:
    """The predicted targets of rows, some rows at a time."""
    assert isinstance(model, CanSample), "predictors can be sampled"
    if not 0 < interval < 1:
        raise UsageError(
            f"expected an interval between 0 and 1, found {interval:g}; use for example 0.9"
        )
    options = model.SamplingConfig().override(*settings)
    generator = make_generator(seed, device_of(model))
    return (
        predict_part(model, view, part, by, interval, options, generator)
        for part in rows.parts(PART)
    )


def predict(
    model: Model,
    view: View,
    rows: Split,
    by: By,
    interval: float,
    settings: Sequence[str],
    seed: int,
) -> pd.DataFrame:
    """The predicted targets of rows."""
    import pandas as pd

    parts = predict_parts(model, view, rows, by, interval, settings, seed)
    return pd.concat(parts, ignore_index=True)


@torch.no_grad()
def predict_part(
    model: Model,
    view: View,
    rows: Split,
    by: By,
    interval: float,
    options: Any,
    generator: torch.Generator,
) -> pd.DataFrame:
    assert isinstance(model, CanSample), "predictors can be sampled"
    if by == "vote":
        return table(view, [predict_by_vote(model, rows, interval, options)], by, None, rows.first)
    if view.text is not None:
        return predict_text(model, view, rows, by, options, generator)
    predictions = predict_targets(model, chunks(rows), interval, options, pad=True)
    sample = None
    if by == "sample":
        samples = [
            model.sample(len(batch), batch.to(device_of(model)).given, options, generator).cpu()
            for batch in chunks(rows)
        ]
        sample = torch.cat(samples).reshape(len(rows), -1)
    return table(view, predictions, by, sample, rows.first)


def can_vote(model: Model) -> bool:
    """Whether a model is an ensemble that predicts one class."""
    is_class = not model.space.shape and model.space.kind in CLASSES
    return isinstance(model, EnsembleMode) and is_class


def predict_by_vote(model: Model, rows: Split, interval: float, options: Any) -> TargetPrediction:
    """The class that most members of an ensemble predict, with shares of votes as probabilities
    (Breiman 1996)."""
    if not can_vote(model):
        raise UsageError(
            "expected an ensemble that predicts one class for a majority vote, found "
            f"{'one of ' + str(model.space) if isinstance(model, EnsembleMode) else 'one model'}; "
            "fit a classifier with --ensemble 5, or leave out by=vote (--by vote)"
        )
    assert isinstance(model, EnsembleMode)
    parts = []
    for batch in chunks(rows):
        given = batch.to(device_of(model)).given
        votes = model.votes(given, options)  # (B, size)
        (mean,) = predict_targets(model, [batch], interval, options)
        mode = model.majority(given, options, votes).cpu().to(mean.mode)
        shares = votes.cpu().to(mean.probabilities) / len(model.each)
        parts.append(replace(mean, mode=mode, probabilities=shares))
    return join(parts)


def predict_text(
    model: Model, view: View, rows: Split, by: By, options: Any, generator: torch.Generator
) -> pd.DataFrame:
    """One line per row: the most probable text that a search finds, or a sample."""
    import pandas as pd

    assert isinstance(model, CanSample), "it can be sampled"
    assert isinstance(model, HasMode), "it predicts text"
    texts: list[str] = []
    for batch in chunks(rows):
        given = batch.to(device_of(model)).given
        if by == "sample":
            found = model.sample(len(batch), given, options, generator)
        else:
            found = model.mode(given, options)
        texts += np.asarray(view.decode(found.cpu())).tolist()
    numbers = np.arange(1, len(rows) + 1) + rows.first
    name = view.event.fields[0].name
    return pd.DataFrame({"row": numbers, **rows.row_keys, name: texts})


def read_table(what: Any) -> Any:
    """The table in a file as a frame; a frame as it is."""
    if isinstance(what, str | Path) and Path(what).is_file():
        from ..data.options import Options
        from ..data.readers.delimited import read

        return read(Path(what), Options()).frame
    return what


def beside_inputs(inputs: Any, predictions: pd.DataFrame, rows: Split) -> pd.DataFrame:
    """Predictions beside the columns of the frame that they are of; a column of the same name
    becomes NAME_true."""
    if not is_frame(inputs) or inputs.ndim != 2 or len(inputs) != len(rows.event.rows):
        raise UsageError(
            "expected a frame or a table in a file with one row per prediction, found other data; "
            "leave out keep_columns (--keep-columns)"
        )
    own = inputs.iloc[rows.index.numpy()].set_axis(predictions.index)
    own = own.rename(columns={name: f"{name}_true" for name in own if name in predictions})
    return own.join(predictions.drop(columns="row"))


def table(
    view: View,
    predictions: Sequence[TargetPrediction],
    by: By = "mean",
    sample: Tensor | None = None,
    first: int = 0,
) -> pd.DataFrame:
    """One line per row: for a class its name and the probability of each; for a number its value
    and the ends of its central interval; with `sample` (N, D), that sample instead."""
    import pandas as pd

    columns: dict[str, Any] = {"row": np.arange(1, len(predictions[0].mode) + 1) + first}
    for place, (prediction, (name, codec)) in enumerate(
        zip(predictions, targets(view), strict=True)
    ):
        if sample is not None:
            columns[name] = decode(codec, sample[:, place])
        elif prediction.is_class:
            columns |= of_class(prediction, name, codec)
        else:
            columns |= of_number(prediction, name, codec, by)
    return pd.DataFrame(columns)


def targets(view: View) -> Iterator[tuple[str, Codec]]:
    """The name and codec of each entry of the event."""
    each = [field.codec for field in view.event.fields]
    codecs = each * view.space.dims if view.event.single else each
    yield from zip(view.columns, codecs, strict=True)


def of_class(prediction: TargetPrediction, name: str, codec: Codec) -> dict[str, Any]:
    probabilities = prediction.probabilities.double().numpy()  # (N, K)
    names = codec.decode(np.arange(probabilities.shape[1]))
    own = np.take_along_axis(probabilities, prediction.mode.long().numpy()[:, None], 1)[:, 0]
    columns = {name: decode(codec, prediction.mode), f"{name}_probability": own}
    return columns | {
        f"{name}_p_{one}": column for one, column in zip(names, probabilities.T, strict=True)
    }


def of_number(prediction: TargetPrediction, name: str, codec: Codec, by: By) -> dict[str, Any]:
    plain = by == "mean" and not isinstance(codec, Date | Offset)
    value = (
        shortest(prediction.mean.numpy())
        if plain
        else decode(codec, prediction.mean if by == "mean" else prediction.mode)
    )
    return {
        name: value,
        f"{name}_low": decode(codec, prediction.low),
        f"{name}_high": decode(codec, prediction.high),
    }


def decode(codec: Codec, x: Tensor) -> np.ndarray:
    return x.double().numpy() if isinstance(codec, Array) else codec.decode(x.numpy())
