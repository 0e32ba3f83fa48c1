"""What every verb shares: its common options, and how it speaks to people and to programs."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every verb: --json, -q, -v, --debug (which main takes off)."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")
    @click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more.")
    @click.option("--debug", is_flag=True, help="Show where an error comes from.")
    @functools.wraps(command)
    def wrapped(as_json: bool, quiet: bool, verbose: bool, debug: bool, **rest: Any) -> Any:
        voice = Console(as_json, quiet, verbose)
        return command(voice, **rest)

    return wrapped


class Console:
    """Results on stdout, everything else on stderr; with --json one value and nothing else."""

    def __init__(self, as_json: bool, quiet: bool, verbose: bool) -> None:
        self.as_json, self.verbose = as_json, verbose
        self.quiet = quiet or as_json

    @property
    def is_interactive(self) -> bool:
        """Whether a person watches, so that a bar may move."""
        return sys.stderr.isatty() and not self.quiet

    def note(self, text: str) -> None:
        """Something said on the way."""
        if not self.quiet:
            click.echo(text, err=True)

    def result(self, value: Any, text: str | None = None) -> None:
        """The outcome: `value` for programs, `text` for people."""
        if self.as_json:
            click.echo(json.dumps(finite(value), ensure_ascii=False))
        elif text is not None:
            click.echo(text)

    def room(self, err: bool = False) -> int | None:
        """Characters of a line of the terminal; None where a file or a program reads."""
        stream = sys.stderr if err else sys.stdout
        if not stream.isatty():
            return None
        from rich.console import Console

        return Console(file=stream).width

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 1, err: bool = False
    ) -> str:
        """A table for stdout or stderr; where a terminal is too narrow for all columns, the first
        `keys` of them stand in every block."""
        from ._table import written

        return written(head, rows, keys, self.room(err))


def choosing(text: str, choices: Sequence[str]) -> str:
    """Help with the words that may be chosen behind it."""
    return f"{text} [{' | '.join(choices)}]" if choices else text


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for both."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
