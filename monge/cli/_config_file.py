"""Settings of a fit as a YAML file, with the keys of the command line.

    model: made
    data: people.csv
    budget: 60s
    given: [label]
    settings:
      width: 64
      train.lr: 1e-3

Every value is read as the text that it is, so that it means what it means on the command line:
YAML's own reading of `no`, `1e-3` or dates does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from ..core.errors import UsageError, nearest, shown
from ..run import storage

NAMES = ("model", "data")
SETTINGS = "settings"
OPTIONS = {
    "given": "given",
    "target": "target",
    "ensemble": "ensemble",
    "bag": "bag",
    "out": "out",
    "budget": "budget",
    "seed": "seed",
    "device": "device",
    "precision": "precision",
    "threads": "threads",
    "compile": "compiled",
    "workers": "workers",
    "shard": "shard",
    "track": "track",
}
"""Options that a file may set, with the parameters of the command."""
KEYS = (*NAMES, *OPTIONS, SETTINGS)


class PlainDumper(yaml.SafeDumper):
    """Writes text without quotes, which is read back as text."""

    yaml_implicit_resolvers: dict = {}


def read(path: Path) -> dict[str, Any]:
    """The keys of a file with their values: text, or lists of text; settings as `key=value`."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"expected YAML in {path}{line}, found text that cannot be read as such; write lines "
            "such as `budget: 60s`"
        ) from error
    if not isinstance(found, dict):
        raise UsageError(
            f"expected keys with values in {path}, found {shown(found)}; write lines such as "
            "`model: made`"
        )
    for key in found:
        if key not in KEYS:
            raise UsageError(
                f"{path}: expected an option of `monge fit`, found {shown(key)}"
                f"{nearest(str(key), KEYS)} (settings of the model stand under `settings:`)"
            )
    lists = {key: texts(path, key, value) for key, value in found.items() if key != SETTINGS}
    single = {
        key: value if key in ("given", "target") else only(path, key, value)
        for key, value in lists.items()
    }
    return single | {SETTINGS: list(settings(path, found.get(SETTINGS) or {}))}


def texts(path: Path, key: str, value: Any) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise UsageError(
            f"{path}: expected text for {key}, found {shown(value)}; write `{key}: VALUE`"
        )
    return entries


def only(path: Path, key: str, value: list[str]) -> str:
    if len(value) != 1:
        raise UsageError(f"{path}: expected one value for {key}, found {len(value)}; keep one")
    return value[0]


def settings(path: Path, value: Any, head: str = "") -> Iterator[str]:
    """`key=value` of each setting; nested keys are joined by dots, lists by commas."""
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{path}: expected keys with values under settings, found {shown(value)}; write "
            "lines such as `  width: 64`"
        )
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from settings(path, entry, f"{head}{key}.")
        else:
            yield f"{head}{key}={','.join(texts(path, key, entry))}"


def set_defaults(context: click.Context, path: Path) -> dict[str, Any]:
    """Options of the file become the defaults of the command, which its arguments override."""
    found = read(path)
    context.default_map = {
        name: found[key] for key, name in OPTIONS.items() if key in found
    } | dict(context.default_map or {})
    return found


def merge(
    found: Mapping[str, Any], words: Sequence[str]
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """MODEL, DATA and settings: the words of the command line before those of the file."""
    names = [word for word in words if "=" not in word]
    pairs = [word for word in words if "=" in word]
    model, data = [*names, None, None][:2]
    own = {word.partition("=")[0] for word in pairs}
    stored = [word for word in found[SETTINGS] if word.partition("=")[0] not in own]
    return model or found.get("model"), data or found.get("data"), (*stored, *pairs)


def write(
    path: Path, model: str, data: str, words: Sequence[str], options: dict[str, Any]
) -> None:
    """Write what a fit was asked for: its options by key, and its settings."""
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    content = {"model": model, "data": data} | {key: typed(each) for key, each in options.items()}
    content |= {SETTINGS: pairs} if pairs else {}
    text = yaml.dump(content, Dumper=PlainDumper, sort_keys=False, allow_unicode=True)
    storage.write(path, f"# monge fit --config {path.name}\n{text}")


def typed(value: Any) -> Any:
    """A value as one would type it."""
    if isinstance(value, tuple):
        return [typed(entry) for entry in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def scalar(text: str) -> str:
    """Text as a value of a file, quoted if it has to be."""
    return yaml.dump([text], Dumper=PlainDumper, default_flow_style=True, width=10**6).strip()[
        1:-1
    ]
