"""Draw from a run, as a picture, a table or arrays

The suffix of -o decides: .png a grid of pictures or points, .csv rows, .npz arrays.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..core.error import WordError
from ._files import frame, write
from ._say import Voice, common


@click.command("sample")
@click.argument("run")
@click.argument("words", nargs=-1)
@click.option("-n", "count", type=click.IntRange(1), default=16, show_default=True,
              help="How many.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File: .png, .csv or .npz.")
@click.option("--given", multiple=True, metavar="NAME=VALUE", help="A condition for all draws.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same samples.")
@common
def command(voice: Voice, run: str, words: tuple[str, ...], count: int, out: Path | None,
            given: tuple[str, ...], seed: int) -> None:
    """Draw -n samples from RUN. WORDS such as temperature=0.8 say how.

    Without -o a table is printed as csv, and pictures go into the run's pictures/.
    """
    from .. import run as runs
    from ..core.words import Words

    found = runs.load(run)
    if out is None and found.space.is_picture:
        (found.folder / "pictures").mkdir(exist_ok=True)
        out = found.folder / "pictures" / "samples.png"
    spoken = Words.sort(words)
    conditions = {name: found.view.encode_given(name, text) for name, text in map(pair, given)}
    x = found.draw(count, conditions, *spoken.model, *spoken.how, seed=seed)
    if out is None:
        text = frame(found, x).to_csv(index=False).rstrip()
        voice.result({"run": str(found.folder), "n": count, "samples": x.tolist()}, text)
        return
    write(found, x, out)
    voice.result({"run": str(found.folder), "n": count, "file": str(out)}, str(out))


def pair(word: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not equals:
        raise WordError(f"--given {word!r} is not of the form name=value")
    return name, text
