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
from ..compatibility import admit
from ..core.config import Config, Part
from ..core.ensemble import Mixture, gather
from ..core.errors import WordError
from ..core.model import Model
from ..core.overrides import Words
from ..core.space import Space
from ..core.train_config import Recipe
from . import storage


@dataclass(frozen=True)
class Outset:
    """A run before its folder."""

    title: str  # what the folder is called where nobody says
    view: data.View
    config: Config
    recipe: Recipe
    about: dict[str, Any]  # what run.json keeps of it


def outset(model: str | Config, what: Any, spoken: Words, event: str | None, given: Sequence[str],
           target: str | Sequence[str] | None, ensemble: int, bag: bool) -> Outset:
    """Everything settled that needs no seed, no folder and no device."""
    if spoken.how:
        raise WordError(f"how.{spoken.how[0]} concerns sampling and scoring; give it there")
    if isinstance(model, Mixture.Config):
        ensemble, bag, model = model.members, model.bag, model.member
    name = model if isinstance(model, str) else registry.name_of(model)
    entry, owner = registry.describe(name), registry.find(name)
    short = entry.name.partition(".")[2]
    source = data.open(what, *spoken.data)
    if entry.predicts and not (event or target):
        target = aim(entry.name, source)
    view = source.view(event, given, target)
    if target:
        view.vary()
    admit(short, owner, view.space)
    suit = owner.suit(view.space)
    source, proposed = source.suited(*suit.data)
    view = source.view(event, given, target)
    proposal = inherited(suit.config, spoken.model) if isinstance(model, str) else model
    proposal, words = preset(short, owner, view.space, proposal, spoken.model)
    config, recipe = gather(proposal.override(*words), suit.recipe.override(*spoken.train),
                            ensemble, bag)
    origin = {"what": str(what) if isinstance(what, str | Path) else None, "name": source.name,
              "words": [*spoken.data, *proposed], "fingerprint": source.fingerprint}
    about = {"model": name if name.endswith(".py") else entry.name, "config": config.to_dict(),
             "recipe": recipe.to_dict(), "space": view.space.to_dict(), "data": origin,
             "event": event, "given": list(given),
             "target": list(view.terms.event) if target else None, "ensemble": ensemble}
    return Outset(f"{short}-{source.name}", view, config, recipe, about)


def inherited(config: Config, words: Sequence[str]) -> Config:
    """The configuration of the run that `start` names, where it is of the same model."""
    named = [word.partition("=")[2] for word in words if word.startswith("start=")]
    if not named:
        return config
    other = Config.from_dict(storage.read(storage.locate(named[-1]), "run.json")["config"])
    if type(other) is not type(config):
        return config
    return replace(other, **{field: None for field, _ in parts(other)})


def preset(short: str, owner: type[Model], space: Space, proposal: Config, words: Sequence[str]
           ) -> tuple[Config, Sequence[str]]:
    """The configuration that preset=NAME asks for instead of the proposal, and the other words."""
    head = "preset="
    named = [word.removeprefix(head) for word in words if word.startswith(head)]
    if not named:
        return proposal, words
    if named[-1] not in owner.presets:
        known = f"; choose from {', '.join(owner.presets)}" if owner.presets else "; leave it out"
        raise WordError(f"{short} has no preset {named[-1]!r}{known}")
    return (owner.preset(named[-1], space),
            [word for word in words if not word.startswith(head)])


def aim(model: str, source: data.Source) -> str:
    """The field that a predicting model takes as its event where nobody says."""
    if source.target is None:
        names = ", ".join(list(source.fields)[:8])
        raise WordError(f"{model} predicts a field of {source.name} from the others, and the data "
                        f"do not say which; name it with --target ({names})")
    return source.target


def parts(config: Config) -> Iterator[tuple[str, Part]]:
    """The fields of a configuration, or of its members', that name other runs."""
    config = member(config)
    for field in config.__dataclass_fields__:
        if isinstance(part := getattr(config, field), Part):
            yield field, part


def member(config: Config) -> Config:
    """The settings of each member of an ensemble, or those of the one model."""
    return config.member if isinstance(config, Mixture.Config) else config
