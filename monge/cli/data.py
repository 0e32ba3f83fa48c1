"""Data that is built in; or how a file is understood

Kinds, sizes, missing cells and constant columns of anything that `monge fit` would read.
"""

from __future__ import annotations

from typing import Any

import click

from ._output import Console, with_choices, common

UNIFORM = ("rows", "dropped")
"""What is the same of every field and told of all."""
LISTED = 4
"""Names that a line shows."""


@click.command("data")
@click.argument("what", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@common
def command(console: Console, what: str | None, settings: tuple[str, ...]) -> None:
    """List the built-in data, or tell how WHAT (a name, a file or a folder) is understood.

    WORDS are those of data.*, such as data.header=no, with or without the head.
    """
    from .. import data

    if what is None:
        rows = [{"name": name, "summary": summary} for name, summary in data.names()]
        known = console.table(("name", "summary"), [list(row.values()) for row in rows])
        console.result(
            rows,
            f"{known}\n\nOr a path: csv, npy, npz, idx, wav, txt, a folder of "
            "pictures, of sounds, of text, of splits, of pairs of sentences (train.de, "
            f"train.en).\n\n{words_of(console)}",
        )
        return
    source = data.open(what, *(word.removeprefix("data.") for word in settings))
    fields = source.summary()
    splits = {name: len(source.view().rows(name)) for name in ("train", "valid", "test")}
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
        if key not in UNIFORM and any(shown(field[key]) for field in fields)
    ]
    less = f"; {source.dropped} with missing cells dropped" if source.dropped else ""
    counts = ", ".join(f"{count} {name}" for name, count in splits.items())
    origin = "as given" if source.has_splits else "drawn by data.seed"
    console.result(
        result,
        f"{source.name}: {result['event']}; rows {counts} ({origin}){less}\n\n"
        + console.table(head, [[brief(field[key]) for key in head] for field in fields])
        + "".join(f"\n\n{note}" for note in source.notes),
    )


def shown(cell: Any) -> bool:
    """Whether a cell says anything."""
    return cell is not None and cell is not False and cell != []


def brief(cell: Any) -> Any:
    """Yes or nothing for what is so or not, and the first few of many names."""
    if isinstance(cell, bool):
        return "yes" if cell else None
    if isinstance(cell, list) and len(cell) > LISTED and isinstance(cell[0], str):
        return [*cell[:LISTED], "…"]
    return cell


def words_of(console: Console) -> str:
    """The words that say how data are read."""
    from ..core.config_help import choices_of, help_of
    from ..data.builtin.catalogue import listing
    from ..data.options import Options

    helps, choices, plain = help_of(Options), choices_of(Options), Options()
    rows = [
        [f"data.{name}", str(getattr(plain, name)), with_choices(text, choices[name])]
        for name, text in helps.items()
    ]
    tables = [console.table(("word", "default", ""), rows)]
    for head, *modules in (
        ("after a plus", "transforms/ops", "transforms/pair_ops"),
        ("data.augment", "augmentations/geometry", "augmentations/corruption"),
    ):
        found = [
            [name.replace("_", "-"), text] for module in modules for name, text in listing(module)
        ]
        tables.append(console.table((head, ""), found))
    return "\n\n".join(tables)
