"""The resolved setup of a new run: data opened, fields chosen, model and training configured.

The model's `defaults` come first and the overrides of the user replace them; with `start=RUN` the
network of that run replaces the default one, because its weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from .. import registry
from ..core.config import Config, Overrides, RunRef, hints
from ..core.ensemble import Ensemble, as_ensemble
from ..core.errors import DataError, UsageError
from ..core.model import Model
from ..core.space import Space
from ..core.train_config import TrainConfig
from ..data.builtin import catalogue
from ..data.dataset import Dataset, View
from ..data.loading import open as open_data
from . import storage
from .saved import submodels


@dataclass(frozen=True)
class RunSetup:
    """Everything a run needs before its directory exists."""

    title: str  # default name of the directory
    view: View
    config: Config
    train_config: TrainConfig
    metadata: dict[str, Any]  # the part that run.json stores


def resolve_setup(
    model: str | Config,
    what: Any,
    overrides: Overrides,
    event: str | None,
    given: Sequence[str],
    target: str | Sequence[str] | None,
    ensemble: int,
    bag: bool,
    workers: int = 1,
) -> RunSetup:
    """Resolve everything that needs no seed, no directory and no device; a batch has as many
    shards as there are processes unless the overrides set another number."""
    for command in ("sample", "score"):
        if late := getattr(overrides, command):
            raise UsageError(
                f"{command}.{late[0]} is a setting of `monge {command}`; give it there"
            )
    if isinstance(model, Ensemble.Config):
        ensemble, bag, model = model.members, model.bag, model.member
    name = model if isinstance(model, str) else registry.name_of(model)
    entry, model_class = registry.describe(name), registry.find(name)
    short = entry.name.partition(".")[2]
    source = open_data(what, *overrides.data)
    if entry.is_predictor and not target:
        event, target = None, event or default_target(entry.name, source)
    unlabelled = model_class.uses_unlabelled
    view = source.view(event, given, target, unlabelled)
    if target:
        view.check_target_varies()
    registry.check_compatible(short, model_class, view.space)
    chosen = chosen_settings(model, overrides.model)
    defaults = model_class.defaults_with(view.space, chosen)
    opened, default_options = source.with_defaults(*defaults.data)
    if opened is not source:
        source, view = opened, opened.view(event, given, target, unlabelled)
    proposed = inherited(defaults.config, overrides.model) if isinstance(model, str) else model
    proposed, settings = preset(short, model_class, view.space, proposed, overrides.model)
    config = proposed.override(*settings)
    train_config = replace(defaults.train, shards=workers).override(*overrides.train)
    if ensemble or bag:
        config, train_config = as_ensemble(config, train_config, ensemble, bag)
    origin = {
        "what": str(what) if isinstance(what, str | Path) else None,
        "path": catalogue.absolute(str(what)) if isinstance(what, str | Path) else None,
        "bytes": os.path.getsize(what) if os.path.isfile(str(what)) else None,
        "name": source.name,
        "overrides": [*overrides.data, *default_options],
        "fingerprint": source.fingerprint,
    }
    metadata = {
        "model": name if name.endswith(".py") else entry.name,
        "config": config.to_dict(),
        "train": train_config.to_dict(),
        "space": view.space.to_dict(),
        "data": origin,
        "event": event,
        "given": list(given),
        "target": list(view.selection.event) if target else None,
        "ensemble": ensemble,
    }
    return RunSetup(f"{short}-{source.name}", view, config, train_config, metadata)


def chosen_settings(model: str | Config, settings: Sequence[str]) -> dict[str, str]:
    """The settings that a caller chose by name: of a configuration all its fields, those that are
    configurations by the names of their tags."""
    named = {} if isinstance(model, str) else model.to_dict()
    parts = {name: getattr(model, name, None) for name in named}
    held = {
        name: part.tag.partition("/")[2] if isinstance(part, Config) else named[name]
        for name, part in parts.items()
    }
    given = dict(word.split("=", 1) for word in settings if "=" in word)
    return {name: str(value) for name, value in (held | given).items()}


def inherited(config: Config, settings: Sequence[str]) -> Config:
    """The configuration of the run that `start` names, if that run has the same model and `start`
    is a run in its configuration."""
    named = [word.partition("=")[2] for word in settings if word.startswith("start=")]
    kinds = hints(type(config))  # type: ignore[arg-type]
    if not named or RunRef not in get_args(kinds.get("start")):
        return config
    other = Config.from_dict(storage.read(storage.locate(named[-1]), "run.json")["config"])
    if type(other) is not type(config):
        return config
    return replace(other, **{field: None for field, _ in submodels(other)})


def preset(
    short: str, model_class: type[Model], space: Space, proposed: Config, settings: Sequence[str]
) -> tuple[Config, Sequence[str]]:
    """The configuration that preset=NAME selects, and the other overrides."""
    head = "preset="
    named = [word.removeprefix(head) for word in settings if word.startswith(head)]
    if not named:
        return proposed, settings
    if named[-1] not in model_class.presets:
        known = (
            f"; choose from {', '.join(model_class.presets)}"
            if model_class.presets
            else "; leave it out"
        )
        raise UsageError(f"{short} has no preset {named[-1]!r}{known}")
    return (
        model_class.preset(named[-1], space),
        [word for word in settings if not word.startswith(head)],
    )


def default_target(model: str, source: Dataset) -> str:
    """The field that a predictor models by default: the target that the dataset declares."""
    if source.target is None:
        one = source.view(target=source.main[-1]).space if len(source.main) > 1 else None
        reason = registry.find(model).unsupported_reason(one) if one else None
        if reason:  # such as no series to forecast: a target is not what is missing
            raise DataError(reason)
        names = ", ".join(list(source.fields)[:8])
        raise UsageError(
            f"{model} predicts one field of {source.name} and the dataset declares no target; "
            f"choose it with --target ({names})"
        )
    return source.target
