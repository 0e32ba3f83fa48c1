"""Sampling options and conditions as users write them.

Options may name other runs, such as the classifier that guides diffusion; those are loaded as
submodels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.abilities import CanSample
from ..core.batch import Batch
from ..core.config import Config
from ..core.ensemble import Ensemble
from ..core.errors import DataError, UsageError, nearest
from ..core.model import Model
from ..core.overrides import apply_overrides
from ..data.codecs.sequence import SequenceCodec as Uneven
from ..data.codecs.tokens import Text
from ..data.codecs.window import Window
from .setup import submodels

if TYPE_CHECKING:
    from .run import Run


def sampling_options(run: Run, words: Sequence[str]) -> Config:
    """The sampling options that overrides set; the runs that they name are loaded."""
    options = apply_overrides(run.require(CanSample).SamplingConfig(), words, "sample")
    for field, part in submodels(options):
        law = run.load_sibling(part.run).model.requires_grad_(False)
        for model in members(run.model):
            model.parts[field] = law
    return options


def members(model: Model) -> list[Model]:
    return model.each if isinstance(model, Ensemble) else [model]


def parse_condition(run: Run, name: str, text: str, words: Sequence[str]) -> Batch:
    """Encode a typed condition: one of the run's, or the event of a run that options name."""
    if name not in run.view.given:
        named = list(
            submodels(apply_overrides(run.require(CanSample).SamplingConfig(), words, "sample"))
        )
        for _, part in named:
            other = run.load_sibling(part.run)
            if other.space.name == name:
                return other.view.encode_word(other.view.event, name, text)
        if named:
            guides = " or ".join(f"{field}={part.run}" for field, part in named)
            raise DataError(
                f"this run was not conditioned on {name!r} and {guides} does not predict it; "
                f"refit with --given {name}, or name a run that predicts it"
            )
    return run.view.encode_given(name, text)


def encode_conditions(
    run: Run, given: Mapping[str, Any] | None, words: Sequence[str]
) -> dict[str, Batch] | None:
    """Encode Python conditions: batches, one value for all samples, or one for each."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(
            f"`given` must be a dict such as {{'label': 3}}, found {given!r}; pass options such "
            "as 'steps=5' as extra arguments"
        )
    return {
        name: value if isinstance(value, Batch) else encode_condition(run, name, value, words)
        for name, value in given.items()
    }


def encode_condition(run: Run, name: str, value: Any, words: Sequence[str]) -> Batch:
    """Encode one value as if it were typed, or one value per row in the form of the data."""
    if np.ndim(value) == 0:
        return parse_condition(run, name, str(value), words).to(run.compute.torch_device())
    if name not in run.view.given:
        raise DataError(f"this run was not conditioned on {name!r}{nearest(name, run.view.given)}")
    group = run.view.given[name]
    codecs = [field.codec for field in group.fields]
    if isinstance(codecs[0], Text):
        return run.view.read_given(name, list(value)).to(run.compute.torch_device())
    if not group.single or isinstance(codecs[0], Window | Uneven):
        raise DataError(f"{name} has more than one value per row; pass a Batch of its rows")
    rows = codecs[0].encode(np.asarray(value), lambda row: f"{name}, row {row + 1}")
    batch = group.compact({group.fields[0].name: rows}).batch(torch.arange(len(value)), False)
    return batch.to(run.compute.torch_device())
