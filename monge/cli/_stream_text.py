"""Text sampled from a run: streamed to the terminal as it is generated, or written to a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import UsageError
from ..core.files import replacing
from ._output import Console

if TYPE_CHECKING:
    from ..run.run import Run


REPLACEMENT = "\ufffd"
"""Decoded in place of a character whose bytes are not complete yet."""


def sample_text(
    console: Console,
    run: Run,
    prompt: str,
    count: int | None,
    out: Path | None,
    settings: Sequence[str],
    seed: int,
) -> None:
    """Texts that continue a prompt. One is streamed; several are printed when they are complete,
    each on a line of its own or, if texts have several lines, with a separator between them."""
    from ..run.text import codec_of, continue_text

    if out and out.suffix != ".txt":
        raise UsageError(f"expected a .txt file for text, found {out.name}; use -o NAME.txt")
    ends = codec_of(run).ends
    count = count or (16 if ends and not prompt else 1)
    of_model = [word for word in settings if not word.startswith("steps=")]  # which is read there
    for note in run.departures(*of_model):
        console.note(note)
    states = continue_text(run, prompt, count, settings, seed)
    streamed = out is None and count == 1 and not console.as_json
    texts = print_stream(states) if streamed else last(states)
    between = "\n" if ends else "\n\n---\n\n"
    result = {"run": str(run.folder), "n": count, "samples": texts}
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as fresh:
            fresh.write_text(between.join(texts) + "\n", encoding="utf-8")
        result |= {"file": str(out), "files": [str(out)]}
    console.result(result, str(out) if out else None if streamed else between.join(texts))


def print_stream(states: Iterator[list[str]]) -> list[str]:
    """Print the new part of the only text at each state."""
    done, text = 0, ""
    for (text,) in states:
        whole = text.rstrip(REPLACEMENT)
        click.echo(whole[done:], nl=False)
        done = max(done, len(whole))
    click.echo(text[done:])
    return [text]


def last(states: Iterator[list[str]]) -> list[str]:
    *_, texts = states
    return texts
