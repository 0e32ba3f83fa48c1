"""Data that is built in; or how a file is understood

Kinds, sizes, missing cells and constant columns of anything that `monge fit` would read.
"""

from __future__ import annotations

import click

from ._say import Voice, common


@click.command("data")
@click.argument("what", required=False)
@click.argument("words", nargs=-1)
@common
def command(voice: Voice, what: str | None, words: tuple[str, ...]) -> None:
    """List the built-in data, or tell how WHAT (a name, a file or a folder) is understood.

    WORDS are those of data.*, such as data.header=no, with or without the head.
    """
    from .. import data

    if what is None:
        rows = [{"name": name, "summary": summary} for name, summary in data.names()]
        voice.result(rows, voice.table(("name", "summary"), [list(r.values()) for r in rows])
                     + "\n\nOr a path: csv, npy, npz, idx, wav, txt, a folder of pictures, of "
                     "sounds, of text, of pairs of sentences (train.de, train.en), of splits."
                     + f"\n\n{words_of(voice)}")
        return
    source = data.open(what, *(word.removeprefix("data.") for word in words))
    fields = source.summary()
    splits = {name: len(source.view().rows(name)) for name in ("train", "valid", "test")}
    told = {"name": source.name, "splits": splits, "fingerprint": source.fingerprint,
            "event": str(source.view().space), "fields": fields, "notes": source.notes}
    head = list(fields[0])
    counts = ", ".join(f"{count} {name}" for name, count in splits.items())
    origin = "as given" if source.has_splits else "drawn by data.seed"
    voice.result(told, f"{source.name}: {told['event']}; rows {counts} ({origin})\n\n"
                 + voice.table(head, [[field[key] for key in head] for field in fields])
                 + "".join(f"\n\n{note}" for note in source.notes))


def words_of(voice: Voice) -> str:
    """The words that say how data are read."""
    from ..core.help import help_of
    from ..data.catalogue import listing
    from ..data.options import Options

    helps, plain = help_of(Options), Options()
    rows = [[f"data.{name}", str(getattr(plain, name)), text] for name, text in helps.items()]
    tables = [voice.table(("word", "default", ""), rows, wide=200)]
    for head, *modules in (("after a plus", "transform", "paired"),
                           ("data.augment", "geometry", "spoil")):
        found = [[name.replace("_", "-"), text] for module in modules
                 for name, text in listing(module)]
        tables.append(voice.table((head, ""), found, wide=200))
    return "\n\n".join(tables)
