"""The best translation of a text, or of every line of stdin

Any run that tells text given text serves: translations, summaries, corrections.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ._output import Console, common
from ._writers import OUTPUT

if TYPE_CHECKING:
    from ..run.run import Run


@click.command("translate")
@click.argument("run")
@click.argument("text")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--attention", type=OUTPUT, help="Draw what each piece of the translation looks at, as a .png."
)
@common
def command(
    console: Console, run: str, text: str, settings: tuple[str, ...], attention: Path | None
) -> None:
    """Translate TEXT, or with - every line of stdin, under RUN. WORDS such as beams=10 penalty=0.6
    say how the best sentence is sought."""
    from ..core.overrides import Overrides
    from ..run import run as runs
    from ..run.text import translate

    texts = (
        [line for line in sys.stdin.read().split("\n") if line.strip()] if text == "-" else [text]
    )
    if not texts or not texts[0].strip():
        raise UsageError("there is no text to translate; give a sentence, or lines on stdin")
    if attention and len(texts) > 1:
        raise UsageError(f"--attention draws one sentence, and there are {len(texts)}; give one")
    found, overrides = runs.load(run), Overrides.parse(settings)
    said = translate(found, texts, *overrides.model, *overrides.sample)
    result = {"run": str(found.folder), "texts": texts, "translations": said}
    if attention:
        draw(found, texts[0], said[0], attention)
        result["file"] = str(attention)
    console.result(result, "\n".join([*said, *([str(attention)] if attention else [])]))


def draw(run: Run, text: str, said: str, path: Path) -> None:
    from ..plot.attention import write_map
    from ..run.text import cross_attention

    if path.suffix != ".png":
        raise UsageError(f"an attention map is a .png, not {path.suffix or 'without a suffix'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, columns, weights = cross_attention(run, text, said)
    write_map(path, weights.numpy(), rows, columns)
