"""Every model: the data and conditions it takes, and what it does; or one model in full

Without a name nothing is imported: the table is read from the files themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click

from .. import registry
from ._output import Console, with_choices, common


@click.command("models")
@click.argument("name", required=False)
@common
def command(console: Console, name: str | None) -> None:
    """List every model, or tell all about NAME: its law, and its fields with help and defaults."""
    if name is None:
        rows = [entry.to_dict() for entry in registry.entries()]
        console.result(rows, listing(console, registry.entries()))
        return
    entry, owner = registry.describe(name), registry.find(name)
    fields = list(described(owner.Config, ""))
    console.result(
        entry.to_dict()
        | {"law": inspect.getdoc(owner), "fields": fields, "presets": dict(owner.presets)},
        page(console, entry, owner, fields),
    )


def listing(console: Console, entries: Sequence[registry.Entry]) -> str:
    """A line for each model."""
    body = [
        [
            entry.name,
            ", ".join(entry.events),
            ", ".join(entry.givens) or "none",
            ", ".join(entry.abilities),
            entry.summary,
        ]
        for entry in entries
    ]
    return console.table(("model", "takes", "conditions", "does", "summary"), body)


def described(config: Any, head: str, chosen: Any = None) -> Any:
    """Every field with its default, or what is chosen, and its help, nested parts included."""
    from ..core.config import Config
    from ..core.config_help import choices_of, help_of

    helps, choices = help_of(config), choices_of(config)
    for field in config.__dataclass_fields__.values():
        default = field.default_factory() if callable(field.default_factory) else field.default
        default = default if chosen is None else getattr(chosen, field.name)
        nested = isinstance(default, Config)
        whose = getattr(type(default), "owner", type(default))
        shown = whose.__name__.lower() if nested else default
        yield {
            "field": head + field.name,
            "default": shown,
            "help": helps[field.name],
            "choices": list(choices[field.name]),
        }
        if nested:
            yield from described(type(default), f"{head}{field.name}.", default)


def page(console: Console, entry: registry.Entry, owner: Any, fields: list[dict]) -> str:
    """What a person reads about one model."""
    lines = [
        f"{entry.name}: {entry.summary}",
        "",
        inspect.getdoc(owner) or "",
        "",
        console.table(
            ("about", ""),
            [
                ["takes", ", ".join(entry.events)],
                ["conditions", ", ".join(entry.givens) or "none"],
                ["missing values", "marginalised" if entry.supports_missing else "refused"],
                [
                    "lengths",
                    "of each row" if entry.supports_variable_length else "one for all rows",
                ],
                ["does", ", ".join(entry.abilities)],
            ],
        ),
    ]
    if owner.presets:
        told = [[f"preset={name}", line] for name, line in owner.presets.items()]
        lines += ["", console.table(("presets", ""), told)]
    for title, rows in (("fields", fields), *chosen(owner, console.verbose)):
        body = [
            [row["field"], str(row["default"]), with_choices(row["help"], row["choices"])]
            for row in rows
        ]
        if body:
            lines += ["", console.table((title, "default", ""), body)]
    lines += ["", "Defaults are chosen anew for the data at hand; `monge fit ... -v` shows them."]
    if not console.verbose:
        lines += [
            f"The words of training, train.*, are the same for all models: `monge models "
            f"{entry.name} -v` lists them."
        ]
    return "\n".join(lines)


def chosen(owner: Any, training: bool) -> Any:
    """What can be chosen when the model is used, and when it is trained."""
    from ..core.abilities import CanSample, HasLikelihood
    from ..core.train_config import TrainConfig

    if issubclass(owner, CanSample):
        yield "when sampling", list(described(owner.SamplingConfig, "sample."))
    if issubclass(owner, HasLikelihood):
        yield "when scoring", list(described(owner.LikelihoodConfig, "score."))
    if training:
        yield "training", list(described(TrainConfig, "train."))
