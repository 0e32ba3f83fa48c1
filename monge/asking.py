"""How draws are asked for: words become the model's Sampling, and the runs that they name, such as
the classifier that guides diffusion, stand beside its law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .core.abilities import CanSample
from .core.batch import Batch
from .core.config import Config
from .core.mixture import Mixture
from .core.model import Model
from .outset import parts

if TYPE_CHECKING:
    from .run import Run


def asking(run: Run, words: Sequence[str]) -> Config:
    """The Sampling that words say; the laws of other runs it needs are loaded beside the run's."""
    how = run.able(CanSample).Sampling().override(*words)
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
        for _, part in parts(run.able(CanSample).Sampling().override(*words)):
            other = run.beside(part.run)
            if other.space.name == name:
                return other.view.encode_word(other.view.event, name, text)
    return run.view.encode_given(name, text)
