"""How draws are asked for: words become the model's Sampling, and the runs that they name, such as
the classifier that guides diffusion, stand beside its law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.abilities import CanSample
from ..core.batch import Batch
from ..core.config import Config
from ..core.ensemble import Mixture
from ..core.errors import DataError, WordError, nearest
from ..core.model import Model
from ..core.overrides import said
from ..data.codecs.sequence import SequenceCodec as Uneven
from ..data.codecs.tokens import Text
from ..data.codecs.window import Window
from .setup import parts

if TYPE_CHECKING:
    from .run import Run



def asking(run: Run, words: Sequence[str]) -> Config:
    """The Sampling that words say; the laws of other runs it needs are loaded beside the run's."""
    how = said(run.able(CanSample).Sampling(), words)
    for field, part in parts(how):
        law = run.beside(part.run).model.requires_grad_(False)
        for model in members(run.model):
            model.parts[field] = law
    return how


def members(model: Model) -> list[Model]:
    return model.each if isinstance(model, Mixture) else [model]


def typed(run: Run, name: str, text: str, words: Sequence[str]) -> Batch:
    """A condition as a user types it: one of the run's, or the event of a run that words name."""
    if name not in run.view.given:
        named = list(parts(said(run.able(CanSample).Sampling(), words)))
        for _, part in named:
            other = run.beside(part.run)
            if other.space.name == name:
                return other.view.encode_word(other.view.event, name, text)
        if named:
            judges = " or ".join(f"{field}={part.run}" for field, part in named)
            raise DataError(f"{name}={text}: the run is not given {name!r}, nor does {judges} "
                            "judge it; name one that does")
    return run.view.encode_given(name, text)


def stated(run: Run, given: Mapping[str, Any] | None, words: Sequence[str]
           ) -> dict[str, Batch] | None:
    """Conditions as Python holds them: batches, one value for all draws, or one for each."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise WordError(f"given={given!r} says no name; write given={{'label': 3}}, and words "
                        "such as steps=5 behind it")
    return {name: value if isinstance(value, Batch) else meant(run, name, value, words)
            for name, value in given.items()}


def meant(run: Run, name: str, value: Any, words: Sequence[str]) -> Batch:
    """One value as if it were typed; rows in the form the data had."""
    if np.ndim(value) == 0:
        return typed(run, name, str(value), words).to(run.place.settle())
    if name not in run.view.given:
        raise DataError(f"given {name!r}: the run is not given it{nearest(name, run.view.given)}")
    group = run.view.given[name]
    codecs = [field.codec for field in group.fields]
    if isinstance(codecs[0], Text):
        return run.view.read_given(name, list(value)).to(run.place.settle())
    if not group.single or isinstance(codecs[0], Window | Uneven):
        raise DataError(f"{name} is more than one value a row; give a Batch of its rows")
    rows = codecs[0].encode(np.asarray(value), lambda row: f"{name}, row {row + 1}")
    batch = group.compact({group.fields[0].name: rows}).batch(torch.arange(len(value)), False)
    return batch.to(run.place.settle())
