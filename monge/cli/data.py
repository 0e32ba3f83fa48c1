"""List built-in data sets, or show how a file is read

Kinds, sizes, missing cells and constant columns of any data that `monge fit` reads.
"""

from __future__ import annotations

from typing import Any

import click

from ._output import Console, common, with_choices

UNIFORM = ("rows", "dropped")
"""Entries that are equal for all fields and shown once."""
MAX_NAMES = 4
"""Categories shown per field."""


@click.command("data")
@click.argument("what", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@common
def command(console: Console, what: str | None, settings: tuple[str, ...]) -> None:
    """List the built-in data sets, or show how WHAT (a name, a file or a folder) is read.

    KEY=VALUE sets a data option such as data.header=no; the prefix data. may be left out.
    """
    from .. import data

    if what is None:
        rows = [{"name": name, "summary": summary} for name, summary in data.names()]
        known = console.table(("name", "summary"), [list(row.values()) for row in rows])
        console.result(
            rows,
            f"{known}\n\nOr a path: csv, npy, npz, idx, wav, txt, a folder of "
            "images, of audio, of text, of splits, or of sentence pairs (train.de, "
            f"train.en).\n\n{data_options(console)}",
        )
        return
    source = data.open(what, *(setting.removeprefix("data.") for setting in settings))
    fields = source.summary()
    splits = {name: len(source.view().split(name)) for name in ("train", "valid", "test")}
    result = {
        "name": source.name,
        "splits": splits,
        "fingerprint": source.fingerprint,
        "event": str(source.view().space),
        "fields": fields,
        "notes": source.notes,
    }
    head = [
        key
        for key in fields[0]
        if key not in UNIFORM and any(has_value(field[key]) for field in fields)
    ]
    less = f"; {source.dropped} with missing cells dropped" if source.dropped else ""
    counts = ", ".join(f"{count} {name}" for name, count in splits.items())
    origin = "as given" if source.has_splits else "random, by data.seed"
    console.result(
        result,
        f"{source.name}: {result['event']}; rows {counts} ({origin}){less}\n\n"
        + console.table(head, [[brief(field[key]) for key in head] for field in fields])
        + "".join(f"\n\n{note}" for note in source.notes),
    )


def has_value(cell: Any) -> bool:
    """Whether a cell holds a value."""
    return cell is not None and cell is not False and cell != []


def brief(cell: Any) -> Any:
    """Yes or nothing for a flag, and the first few of many names."""
    if isinstance(cell, bool):
        return "yes" if cell else None
    if isinstance(cell, list) and len(cell) > MAX_NAMES and isinstance(cell[0], str):
        return [*cell[:MAX_NAMES], "…"]
    return cell


def data_options(console: Console) -> str:
    """Tables of the data options, transforms and augmentations."""
    from ..core.config_help import choices_of, help_of
    from ..data.builtin.catalogue import listing
    from ..data.options import Options

    helps, choices, plain = help_of(Options), choices_of(Options), Options()
    rows = [
        [f"data.{name}", str(getattr(plain, name)), with_choices(text, choices[name])]
        for name, text in helps.items()
    ]
    tables = [console.table(("option", "default", ""), rows)]
    for head, *modules in (
        ("transform (NAME+...)", "transforms/ops", "transforms/pair_ops"),
        ("data.augment", "augmentations/geometry", "augmentations/corruption"),
    ):
        found = [
            [name.replace("_", "-"), text] for module in modules for name, text in listing(module)
        ]
        tables.append(console.table((head, ""), found))
    return "\n\n".join(tables)
