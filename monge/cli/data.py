"""List built-in data sets, or describe a file and recommend models for it

Columns, problems with a remedy each, and the commands to start with.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError, nearest
from ..core.memory import gigabytes
from ._output import Console, common, with_choices

if TYPE_CHECKING:
    from ..data.description import Problem
    from ..run.recommendation import Recommendation


@click.command("data")
@click.argument("what", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Folder NAME.monge that `monge data prepare` writes.",
)
@common
def command(
    console: Console, what: str | None, settings: tuple[str, ...], out: Path | None
) -> None:
    """List the built-in data sets, or describe WHAT (a name, a file or a folder): how each column
    is read, problems and what to do about them, and the models to start with.

    `monge data prepare FILE... -o NAME.monge` writes data of any size (a table in one file or
    several of the same columns, text, an array, a folder of images) as a folder whose rows are
    read when they are needed; use it as DATA. `monge data cache` lists what was prepared in the
    cache because it is large, `monge data cache clear [NAME...]` removes it.

    KEY=VALUE sets a data option such as data.header=no; the prefix data. may be left out.
    """
    if what is None:
        list_known(console)
        return
    if what == "prepare":
        prepare(console, settings, out)
        return
    if what == "cache" and not Path(what).exists():
        cache(console, settings)
        return
    if out is not None:
        raise UsageError(
            f"expected -o with `monge data prepare` alone, found -o {out}; remove it, or prepare "
            f"{what}"
        )
    from ..data import description
    from ..data.readers.base import SPLITS
    from ..run.recommendation import describe

    found = describe(what, *settings)
    source, problems, used, advice = (
        found.source,
        found.problems,
        found.settings,
        found.recommended,
    )
    columns = description.columns(source)
    view = source.view()
    splits = {name: view.count(name) for name in SPLITS}
    result = {
        "name": source.name,
        "splits": splits,
        "fingerprint": source.fingerprint,
        "event": str(view.space),
        "settings": list(used),
        "fields": source.summary(),
        "columns": columns,
        "notes": source.notes,
        "problems": [asdict(problem) for problem in problems],
        "recommended": [asdict(each) for each in advice],
    }
    head = [key for key in columns[0] if any(row[key] is not None for row in columns)]
    parts = [
        description.headline(source, splits),
        console.table(head, [[row[key] for key in head] for row in columns]),
        "\n".join(source.notes),
        problem_lines(problems),
        advice_lines(advice),
    ]
    console.result(result, "\n\n".join(filter(None, parts)))


def prepare(console: Console, words: tuple[str, ...], out: Path | None) -> None:
    """Write files as a prepared folder."""
    from ..data import loading

    files = [word for word in words if "=" not in word or Path(word).exists()]
    if not files or out is None:
        raise UsageError(
            "expected files and a folder, found "
            f"{'no files' if not files else 'no -o'}; write monge data prepare FILE... -o "
            "NAME.monge"
        )
    settings = [word.removeprefix("data.") for word in words if word not in files]
    found = loading.prepare(files, out, *settings)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    for note in found.notes:
        console.note(note)
    result = {
        "folder": str(out),
        "rows": len(found),
        "fields": len(found.fields),
        "bytes": size,
        "fingerprint": found.fingerprint,
    }
    console.result(result, f"{len(found)} rows, {len(found.fields)} fields, {size} bytes\n{out}")


def cache(console: Console, words: tuple[str, ...]) -> None:
    """List what is prepared in the cache, or remove it."""
    from datetime import datetime

    from ..data import prepared

    found = prepared.cached()
    if words and words[0] != "clear":
        raise UsageError(
            f"expected `monge data cache` or `monge data cache clear [NAME...]`, found {words[0]}"
        )
    names = [each.path.name for each in found]
    for name in words[1:]:
        if name not in names:
            raise UsageError(
                f"there is no {name} in {prepared.cache_root()}{nearest(name, names)}"
            )
    chosen = [each for each in found if not words[1:] or each.path.name in words[1:]]
    for each in chosen if words else ():
        prepared.remove(each)
    total = sum(each.bytes for each in chosen)
    rows = [
        [
            each.path.name,
            gigabytes(each.bytes),
            datetime.fromtimestamp(each.used).isoformat(" ", "minutes"),
            each.source if each.whole else "(not finished)",
        ]
        for each in chosen
    ]
    result = {
        "folder": str(prepared.cache_root()),
        "bytes": total,
        "removed": bool(words),
        "entries": [
            {"name": each.path.name, "bytes": each.bytes, "used": each.used, "of": each.source}
            for each in chosen
        ],
    }
    done = f"{gigabytes(total)} {'removed from' if words else 'in'} {prepared.cache_root()}"
    table = console.table(("name", "size", "last used", "of"), rows) if rows else ""
    console.result(result, "\n\n".join(filter(None, [table, done])))


def problem_lines(problems: list[Problem]) -> str:
    if not problems:
        return "No problems found."
    found = [f"- {problem.sentence}; {problem.remedy}" for problem in problems]
    return "\n".join([f"{len(found)} problem{'s' * (len(found) != 1)}:", *found])


def advice_lines(advice: list[Recommendation]) -> str:
    if not advice:
        from ..run.recommendation import NOTHING

        return NOTHING
    lines = ["Models for these data:"]
    lines += [f"- {each.does}: {', '.join(each.models)}" for each in advice]
    first = advice[0]
    return "\n".join([*lines, "", "Start with:", f"  {first.command}", f"  {first.then}"])


def list_known(console: Console) -> None:
    from ..data.builtin import catalogue

    rows = [{"name": name, "summary": summary} for name, summary in catalogue.names()]
    known = console.table(("name", "summary"), [list(row.values()) for row in rows])
    console.result(
        rows,
        f"{known}\n\nOr a path: csv, parquet, feather, npy, npz, idx, wav, txt, a folder of "
        "images, of audio, of text, of splits, or of sentence pairs (train.de, "
        f"train.en).\n\n{data_options(console)}",
    )


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
