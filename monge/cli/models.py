"""List models with the data and conditions they take, or describe one model

The list imports nothing: it is read from the source files.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import click

from .. import registry
from ..core.errors import UsageError
from ._output import Console, common, with_choices


@click.command("models")
@click.argument("name", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--data", "what", help="Data for which --layers describes the network.")
@click.option(
    "--layers",
    is_flag=True,
    help="List the layers of a predictor from images: shapes, parameters, receptive fields.",
)
@common
def command(
    console: Console, name: str | None, settings: tuple[str, ...], what: str | None, layers: bool
) -> None:
    """List every model, or describe NAME: its definition and its settings with defaults. With
    --data and --layers, describe the layers that NAME has for these data and settings."""
    if layers or settings or what:
        if not (layers and name and what):
            raise UsageError(
                "settings and --data belong to --layers, which expects a model and data; "
                "give for example `monge models cnn --data digits --layers`"
            )
        layer_table(console, name, what, settings)
        return
    if name is None:
        rows = [entry.to_dict() for entry in registry.entries()]
        console.result(rows, listing(console, registry.entries()))
        return
    entry, owner = registry.describe(name), registry.find(name)
    fields = list(field_rows(owner.Config, ""))
    console.result(
        entry.to_dict()
        | {"description": inspect.getdoc(owner), "fields": fields, "presets": dict(owner.presets)},
        page(console, entry, owner, fields),
    )


def layer_table(console: Console, name: str, what: str, settings: Sequence[str]) -> None:
    """Print the layers from an image to its features."""
    from dataclasses import asdict

    from ..core.config import Overrides
    from ..models.predict._images import ImagePredictor, find_image
    from ..nn.layers.specs import describe_layers, format_shape
    from ..run.setup import resolve_setup

    owner = registry.find(name)
    if not issubclass(owner, ImagePredictor):
        raise UsageError(
            f"--layers expects a predictor from images, found {name}; choose predict.cnn or "
            "predict.resnet"
        )
    setup = resolve_setup(name, what, Overrides.parse(settings), None, (), None, 0, False)
    _, image = find_image(setup.view.space)
    rows = describe_layers(owner.layer_spec(setup.config), image.shape)
    side = max(image.shape[1:])
    body = [
        [row.layer, format_shape(row.shape), row.parameters, min(row.field, side)] for row in rows
    ]
    total = sum(row.parameters for row in rows)
    table = console.table(("layer", "output", "parameters", "receptive field"), body)
    console.result(
        {
            "layers": [asdict(row) | {"field": int(min(row.field, side))} for row in rows],
            "parameters": total,
        },
        f"{table}\n\n{total} parameters from {format_shape(image.shape)} to features",
    )


def listing(console: Console, entries: Sequence[registry.Entry]) -> str:
    """A table with a line per model."""
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
    return console.table(("model", "data", "conditions", "can", "summary"), body)


def field_rows(config: Any, head: str, chosen: Any = None) -> Any:
    """Every field with its default (or its value in `chosen`) and help, nested included."""
    from ..core.config import Config, name_of
    from ..core.config_help import choices_of, help_of

    helps, choices = help_of(config), choices_of(config)
    for field in config.__dataclass_fields__.values():
        default = field.default_factory() if callable(field.default_factory) else field.default
        default = default if chosen is None else getattr(chosen, field.name)
        nested = isinstance(default, Config)
        shown = name_of(type(default)) if nested else default
        yield {
            "field": head + field.name,
            "default": shown,
            "help": helps[field.name],
            "choices": list(choices[field.name]),
        }
        if nested:
            yield from field_rows(type(default), f"{head}{field.name}.", default)


def page(console: Console, entry: registry.Entry, owner: Any, fields: list[dict]) -> str:
    """The description of one model as text."""
    lines = [
        f"{entry.name}: {entry.summary}",
        "",
        inspect.getdoc(owner) or "",
        "",
        console.table(
            ("property", ""),
            [
                ["data", ", ".join(entry.events)],
                ["conditions", ", ".join(entry.givens) or "none"],
                ["missing values", "supported" if entry.supports_missing else "not supported"],
                ["rows without a label", unlabelled(entry)],
                [
                    "lengths",
                    "variable" if entry.supports_variable_length else "equal for all rows",
                ],
                ["can", ", ".join(entry.abilities)],
            ],
        ),
    ]
    if owner.presets:
        presets = [[f"preset={name}", line] for name, line in owner.presets.items()]
        lines += ["", console.table(("presets", ""), presets)]
    for title, rows in (("settings", fields), *option_rows(owner, console.verbose)):
        body = [
            [row["field"], str(row["default"]), with_choices(row["help"], row["choices"])]
            for row in rows
        ]
        if body:
            lines += ["", console.table((title, "default", ""), body)]
    lines += ["", "Defaults depend on the data; `monge fit ... -v` prints those of a run."]
    if not console.verbose:
        lines += [
            "Training settings (train.*) are the same for all models: "
            f"`monge models {entry.name} -v` lists them."
        ]
    return "\n".join(lines)


def unlabelled(entry: registry.Entry) -> str:
    """What a model does with training rows without a label."""
    return "learned from" if entry.uses_unlabelled else "left out"


def option_rows(owner: Any, training: bool) -> Any:
    """The options of sampling and scoring and, if `training`, the training settings."""
    from ..core.abilities import CanSample, HasLikelihood
    from ..core.train_config import TrainConfig

    if issubclass(owner, CanSample):
        yield "when sampling", list(field_rows(owner.SamplingConfig, "sample."))
    if issubclass(owner, HasLikelihood):
        yield "when scoring", list(field_rows(owner.LikelihoodConfig, "score."))
    if training:
        yield "training", list(field_rows(TrainConfig, "train."))
