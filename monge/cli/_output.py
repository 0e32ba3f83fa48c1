"""The options that every command shares, and its output for people and for programs."""

from __future__ import annotations

import functools
import glob
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..core.errors import MAX_SEED, UsageError
from ..core.files import is_stream
from ..run.storage import check_output_path


class Output(click.Path):
    """A file to write, outside the files that belong to a run, whose suffix names a format that
    the command writes; a device or pipe may have any name."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        out = check_output_path(Path(os.fsdecode(super().convert(value, param, ctx))))
        if out.suffix not in self.suffixes and not is_stream(out):
            raise UsageError(
                f"cannot write {out.suffix or 'a file without a suffix'}; "
                f"use {' or '.join(self.suffixes)}"
            )
        return out


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command: --json, -q, -v, --debug (which main removes)."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
    @click.option("-q", "--quiet", is_flag=True, help="Only print results and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Print more detail.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def wrapped(as_json: bool, quiet: bool, verbose: bool, debug: bool, **rest: Any) -> Any:
        console = Console(as_json, quiet, verbose)
        return command(console, **rest)

    return wrapped


class Console:
    """Results on stdout, everything else on stderr; with --json one value and nothing else."""

    def __init__(self, as_json: bool, quiet: bool, verbose: bool) -> None:
        self.as_json, self.verbose = as_json, verbose
        self.quiet = quiet or as_json

    @property
    def is_interactive(self) -> bool:
        """Whether stderr is a terminal, so that a progress bar may be shown."""
        return sys.stderr is not None and sys.stderr.isatty() and not self.quiet

    def note(self, text: str) -> None:
        """Print a remark on stderr, unless --quiet or --json is given."""
        if not self.quiet:
            click.echo(text, err=True)

    def result(self, value: Any, text: str | None = None) -> None:
        """Print the result on stdout: `value` as JSON with --json, `text` otherwise."""
        if self.as_json:
            click.echo(json.dumps(finite(value), ensure_ascii=False))
        elif text is not None:
            click.echo(text)

    def width(self, err: bool = False) -> int | None:
        """Characters per line of the terminal; None if the stream is a file or a pipe."""
        stream = sys.stderr if err else sys.stdout
        if stream is None or not stream.isatty():  # None: closed before the start
            return None
        from rich.console import Console as Terminal

        return Terminal(file=stream).width

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 1, err: bool = False
    ) -> str:
        """A table for stdout or stderr; if the terminal is too narrow for all columns, they are
        split into blocks that each repeat the first `keys` columns."""
        from ._table import format_table

        return format_table(head, rows, keys, self.width(err))


class Limited(click.ParamType):
    """A whole number from 0 to a limit that help does not show."""

    name = "integer"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= self.most:
            self.fail(
                f"expected a whole number from 0 to {self.most}, found {value!r}", param, ctx
            )
        return number


SEED = Limited(MAX_SEED)
THREADS = Limited(max(64, os.cpu_count() or 1))
"""A number of threads; absurd ones would end the process."""


def with_choices(text: str, choices: Sequence[str]) -> str:
    """A help text followed by the values that may be chosen."""
    return f"{text} [{' | '.join(choices)}]" if choices else text


def finite(value: Any) -> Any:
    """`value` with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def gather_files(
    console: Console, data: str | None, settings: tuple[str, ...]
) -> tuple[str | None, tuple[str, ...]]:
    """DATA and settings where a shell may have written out a pattern such as big/*.parquet: its
    files become one pattern again. Says so if a large table will be prepared first."""
    if data is None:
        return data, settings
    more = [word for word in settings if "=" not in word or os.path.isfile(word)]
    if more and os.path.isfile(data):
        data, settings = pattern_of([data, *more]), tuple(w for w in settings if w not in more)
    from ..data.loading import announcement

    options = [word.removeprefix("data.") for word in settings if word.startswith("data.")]
    if note := announcement(data, options):
        console.note(note)
    return data, settings


def pattern_of(files: list[str]) -> str:
    """The pattern that matches these files and no others."""
    first, last = min(files), max(files)
    start = os.path.commonprefix([first, last])  # noqa: RUF071
    end = os.path.commonprefix([name[len(start) :][::-1] for name in files])[::-1]  # noqa: RUF071
    for pattern in (f"{start}*{end}", f"{start}*{os.path.splitext(first)[1]}"):
        if sorted(glob.glob(pattern)) == sorted(files):
            return pattern
    raise UsageError(
        f"expected one file of data or those of one pattern, found {len(files)} files "
        f"({first}, ..., {last}); prepare those of one table with `monge data prepare "
        "FILES -o NAME.monge`, or join tables that refer to one another into one"
    )
