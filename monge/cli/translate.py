"""Translate a text, or every line of stdin, or tell what a picture shows or a sound says

Works with any run that maps text to text (translation, summaries, corrections), and with one that
maps images or sounds to text: TEXT is then a file, or a folder of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ._output import Console, Output, common

if TYPE_CHECKING:
    from ..run.run import Run


@click.command("translate")
@click.argument("run")
@click.argument("text")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--attention",
    type=Output(".png"),
    help="File (.png) for a plot of the attention from each output token to the source.",
)
@common
def command(
    console: Console, run: str, text: str, settings: tuple[str, ...], attention: Path | None
) -> None:
    """Translate TEXT (- for every line of stdin), or tell the text of a file, with RUN. KEY=VALUE
    sets a search option such as beams=10 or penalty=0.6."""
    from ..core.config import Overrides
    from ..run import run as runs

    texts = read_stdin() if text == "-" else [text]
    if not texts or not texts[0].strip():
        raise UsageError(
            "expected a text to translate, found none; give a sentence, or lines on stdin"
        )
    if attention and len(texts) > 1:
        raise UsageError(f"--attention plots one sentence, found {len(texts)}; give one")
    found, overrides = runs.load(run), Overrides.parse(settings)
    translations = found.translate(texts, *overrides.model, *overrides.sample)
    result = {"run": str(found.folder), "texts": texts, "translations": translations}
    if attention:
        plot_attention(found, texts[0], translations[0], attention)
        result["file"] = str(attention)
    console.result(result, "\n".join([*translations, *([str(attention)] if attention else [])]))


def read_stdin() -> list[str]:
    """The lines of standard input that are not blank."""
    try:
        lines = [] if sys.stdin is None else sys.stdin.read().split("\n")
    except (UnicodeDecodeError, ValueError) as error:  # ValueError: it is closed
        raise UsageError(
            f"expected UTF-8 text on standard input, found other bytes ({error}); convert it first"
        ) from error
    return [line for line in lines if line.strip()]


def plot_attention(run: Run, text: str, translation: str, path: Path) -> None:
    from ..plot.attention import write_map
    from ..run.text import cross_attention

    path.parent.mkdir(parents=True, exist_ok=True)
    rows, columns, weights = cross_attention(run, text, translation)
    write_map(path, weights.numpy(), rows, columns)
