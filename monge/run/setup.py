"""What a run begins with: data opened, fields chosen, configuration and recipe settled.

A model's `suit` proposes, the words decide; with `start=RUN` the network of that run is proposed
instead, since its weights are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import data, registry
from ..compatibility import check_compatible
from ..core.config import Config, RunRef
from ..core.ensemble import Ensemble, as_ensemble
from ..core.errors import UsageError
from ..core.model import Model
from ..core.overrides import Overrides
from ..core.space import Space
from ..core.train_config import TrainConfig
from . import storage


@dataclass(frozen=True)
class RunSetup:
    """A run before its folder."""

    title: str  # what the folder is called where nobody says
    view: data.View
    config: Config
    recipe: TrainConfig
    about: dict[str, Any]  # what run.json keeps of it


def resolve_setup(
    model: str | Config,
    what: Any,
    spoken: Overrides,
    event: str | None,
    given: Sequence[str],
    target: str | Sequence[str] | None,
    ensemble: int,
    bag: bool,
) -> RunSetup:
    """Everything settled that needs no seed, no folder and no device."""
    for command in ("sample", "score"):
        if late := getattr(spoken, command):
            raise UsageError(
                f"{command}.{late[0]} is a setting of `monge {command}`; give it there"
            )
    if isinstance(model, Ensemble.Config):
        ensemble, bag, model = model.members, model.bag, model.member
    name = model if isinstance(model, str) else registry.name_of(model)
    entry, owner = registry.describe(name), registry.find(name)
    short = entry.name.partition(".")[2]
    source = data.open(what, *spoken.data)
    if entry.is_predictor and not (event or target):
        target = default_target(entry.name, source)
    view = source.view(event, given, target)
    if target:
        view.vary()
    check_compatible(short, owner, view.space)
    suit = owner.defaults(view.space)
    source, proposed = source.with_defaults(*suit.data)
    view = source.view(event, given, target)
    proposal = inherited(suit.config, spoken.model) if isinstance(model, str) else model
    proposal, words = preset(short, owner, view.space, proposal, spoken.model)
    config, recipe = as_ensemble(
        proposal.override(*words), suit.recipe.override(*spoken.train), ensemble, bag
    )
    origin = {
        "what": str(what) if isinstance(what, str | Path) else None,
        "name": source.name,
        "words": [*spoken.data, *proposed],
        "fingerprint": source.fingerprint,
    }
    about = {
        "model": name if name.endswith(".py") else entry.name,
        "config": config.to_dict(),
        "recipe": recipe.to_dict(),
        "space": view.space.to_dict(),
        "data": origin,
        "event": event,
        "given": list(given),
        "target": list(view.terms.event) if target else None,
        "ensemble": ensemble,
    }
    return RunSetup(f"{short}-{source.name}", view, config, recipe, about)


def inherited(config: Config, words: Sequence[str]) -> Config:
    """The configuration of the run that `start` names, where it is of the same model."""
    named = [word.partition("=")[2] for word in words if word.startswith("start=")]
    if not named:
        return config
    other = Config.from_dict(storage.read(storage.locate(named[-1]), "run.json")["config"])
    if type(other) is not type(config):
        return config
    return replace(other, **{field: None for field, _ in submodels(other)})


def preset(
    short: str, owner: type[Model], space: Space, proposal: Config, words: Sequence[str]
) -> tuple[Config, Sequence[str]]:
    """The configuration that preset=NAME asks for instead of the proposal, and the other words."""
    head = "preset="
    named = [word.removeprefix(head) for word in words if word.startswith(head)]
    if not named:
        return proposal, words
    if named[-1] not in owner.presets:
        known = f"; choose from {', '.join(owner.presets)}" if owner.presets else "; leave it out"
        raise UsageError(f"{short} has no preset {named[-1]!r}{known}")
    return (owner.preset(named[-1], space), [word for word in words if not word.startswith(head)])


def default_target(model: str, source: data.Dataset) -> str:
    """The field that a predicting model takes as its event where nobody says."""
    if source.target is None:
        names = ", ".join(list(source.fields)[:8])
        raise UsageError(
            f"{model} predicts a field of {source.name} from the others, and the data "
            f"do not say which; name it with --target ({names})"
        )
    return source.target


def submodels(config: Config) -> Iterator[tuple[str, RunRef]]:
    """The fields of a configuration, or of its members', that name other runs."""
    config = member(config)
    for field in config.__dataclass_fields__:
        if isinstance(part := getattr(config, field), RunRef):
            yield field, part


def member(config: Config) -> Config:
    """The settings of each member of an ensemble, or those of the one model."""
    return config.member if isinstance(config, Ensemble.Config) else config
