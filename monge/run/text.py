"""Runs on text: continue a prompt, translate, cross-attention and text metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.abilities import HasAttention, HasLikelihood, HasMode
from ..core.batch import Batch
from ..core.errors import DataError, UsageError, shown
from ..core.metric import Metric
from ..data import frames
from ..data.codecs.scalar import listed
from ..data.codecs.tokens import Text
from ..data.readers.text import prompt as prompted
from ..evaluate.likelihood import HeldOutRows, RowLikelihoods, chunks, row_likelihoods
from ..evaluate.text import bleu, chrf, rouge, word_errors

if TYPE_CHECKING:
    from .run import Run


def codec_of(run: Run) -> Text:
    """The tokeniser of a run on text."""
    codec = run.view.text
    if codec is None:
        raise UsageError(f"expected a run on text, found one on {run.space}; remove --prompt")
    return codec


def continue_text(
    run: Run, prompt: str, n: int = 1, settings: Sequence[str] = (), seed: int = 0
) -> Iterator[list[str]]:
    """Stream n texts that begin with a prompt; the option `steps=` sets their number of tokens.
    Text longer than the context continues from the last half of it, repeatedly."""
    codec = codec_of(run)
    codes = prompted(codec, prompt, lambda _: "the prompt")
    context = codec.longest
    if len(codes) >= context:
        raise UsageError(
            f"the prompt has {len(codes)} tokens and the context of the run is "
            f"{context}; shorten it, or fit with data.context={2 * len(codes)}"
        )
    step_settings = [word for word in settings if word.startswith("steps=")]
    rest = [word for word in settings if word not in step_settings]
    total = read_steps(step_settings[-1]) if step_settings and not codec.ends else context
    token_rows = [list(codes) for _ in range(n)]
    for window in windows(run, token_rows, min(total, context), rest, seed):
        yield [codec.spell(row) for row in window]
    while len(token_rows[0]) < total and not codec.ends:
        overlap = context // 2
        size = min(context, overlap + total - len(token_rows[0]))
        heads, tails = (
            [row[:-overlap] for row in token_rows],
            [row[-overlap:] for row in token_rows],
        )
        seed += 1
        for window in windows(run, tails, size, rest, seed):
            yield [codec.spell(head + row) for head, row in zip(heads, window, strict=True)]
        token_rows[:] = [head + row for head, row in zip(heads, tails, strict=True)]


def read_steps(word: str) -> int:
    text = word.partition("=")[2]
    if not text.isdigit() or not int(text):
        raise UsageError(f"expected a positive number of tokens, found {word}; write steps=500")
    return int(text)


def windows(
    run: Run, token_rows: list[list[int]], size: int, settings: Sequence[str], seed: int
) -> Iterator[list[list[int]]]:
    """Continue the token rows to `size` tokens; they are updated in place."""
    rows = []
    alike = all(row == token_rows[0] for row in token_rows)
    for place, group in enumerate([token_rows] if alike else [[row] for row in token_rows]):
        begin = [f"prompt={','.join(map(str, group[0]))}"] if group[0] else []
        states = run.stream(
            len(group), None, f"steps={size}", *begin, *settings, seed=seed + place
        )
        for step, x in enumerate(states, 1):
            now = x.tolist()
            if alike and step > len(group[0]):
                yield [row[:step] for row in now]
        rows += now
    token_rows[:] = rows
    yield rows


def translate(run: Run, texts: Sequence[str], *settings: str) -> list[str]:
    """The most probable translation of each text."""
    name, model = source_of(run), run.require(HasMode)
    given = run.view.read_given(name, texts).to(run.compute.torch_device())
    options = run.model_class.SamplingConfig().override(*settings)  # type: ignore[attr-defined]
    return list(run.view.decode(model.mode({name: given}, options).cpu()))


def texts_in(run: Run, what: Any) -> list[str]:
    """The texts to translate: one, several, a column, or the column of a frame that is named as
    the source of the run, or its only one."""
    if isinstance(what, str):
        return [what]
    if frames.is_frame(what) and what.ndim == 2:
        names, source = list(what.columns), next(iter(run.space.given), "")
        if source not in names and len(names) != 1:
            raise DataError(
                f"expected a column {source!r} of texts to translate, found {listed(names)}; "
                "pass one column"
            )
        what = what[source if source in names else names[0]]
    texts = list(what)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str | os.PathLike):
            raise DataError(
                f"expected a text to translate, found {shown(text)} in row {number}; remove it"
            )
    return [os.fspath(text) for text in texts]


def like_texts(run: Run, found: list[str], what: Any) -> Any:
    """Translations in the form of the texts, with the index of a column or frame; a list if they
    are those of the files in a folder."""
    if isinstance(what, str) and len(found) == 1:
        return found[0]
    if isinstance(what, str) or len(found) != len(what):
        return found
    if isinstance(what, np.ndarray):
        return np.array(found, dtype=object)
    if not frames.is_frame(what):
        return found
    import pandas as pd

    column = pd.Series(found, what.index, str, name=run.view.event.fields[0].name)
    return column if what.ndim == 1 else column.to_frame()


def source_of(run: Run) -> str:
    """The text condition of a run that maps text to text."""
    names = [name for name, part in run.space.given.items() if part.kind == "tokens"]
    if run.view.text is None or len(names) != 1 or len(run.space.given) != 1:
        found = "".join(f", given {name}: {part}" for name, part in run.space.given.items())
        raise UsageError(
            f"expected a run that maps text to text, found one that models {run.space}{found}; "
            "fit one with `monge fit transformer` on pairs of sentences"
        )
    return names[0]


def reads_files(run: Run) -> bool:
    """Whether a run maps an image or a sound to text."""
    spaces = list(run.space.given.values())
    shown = len(spaces) == 1 and (spaces[0].is_image or bool(spaces[0].rate))
    return shown and run.view.text is not None


def translate_files(run: Run, files: Sequence[str], *settings: str) -> list[str]:
    """The most probable text of each image or sound, in a file or in a folder of them."""
    name = run.view.event.fields[0].name
    return [text for file in files for text in run.predict(file, *settings)[name]]


@torch.no_grad()
def cross_attention(run: Run, text: str, translation: str) -> tuple[list[str], list[str], Tensor]:
    """The tokens of a translation and of its source, and the attention weights between them,
    (T, S)."""
    model, name, codec = run.require(HasAttention), source_of(run), codec_of(run)
    source: Any = run.view.given[name].fields[0].codec
    given = run.view.read_given(name, [text])
    codes = torch.from_numpy(codec.codes([translation], lambda _: "the translation")[0]).long()
    weights = model.attention(Batch(codes[None], {name: given}).to(run.compute.torch_device()))[
        0
    ].cpu()
    return codec.pieces(codes.tolist()), source.pieces(given.x[0].tolist()), weights


def text_metrics(run: Run, what: Any = None, split: str | None = None) -> dict[str, Metric]:
    """Perplexity and bits per character, and BLEU, chrF, ROUGE and word errors."""
    if run.view.text is None:
        return {}
    rows = run.split(what, split)
    found: dict[str, Metric] = {}
    if isinstance(run.model, HasLikelihood):
        found |= perplexity(run, rows, row_likelihoods(run.model, chunks(rows), run.space.dims))
    if isinstance(run.model, HasMode) and len(run.space.given) == 1:
        translations, true = [], []
        for batch in chunks(rows):
            given = batch.to(run.compute.torch_device()).given
            translations += list(run.view.decode(run.model.mode(given).cpu()))
            true += texts_of(run, batch)
        found |= {
            "bleu": bleu(translations, true),
            "chrf": chrf(translations, true),
            **rouge(translations, true),
            "word_error_rate": word_errors(translations, true),
        }
    return found


def perplexity(run: Run, rows: HeldOutRows, known: RowLikelihoods) -> dict[str, Metric]:
    """exp(nats per token), and bits per character; the end of a line counts as one."""
    count = len(known.value)
    letters = sum(len(text) for batch in chunks(rows) for text in texts_of(run, batch))
    letters += count if codec_of(run).ends else 0
    nats = -known.mean.value * count
    share = known.mean.stderr / abs(known.mean.value or 1)
    perplexity = math.exp(nats / (known.dims * count))
    bits = nats / (letters * math.log(2))
    return {
        "perplexity": Metric(
            perplexity, known.kind, perplexity * share * nats / (known.dims * count), "per token"
        ),
        "nats_per_token": Metric(nats / (known.dims * count), "loss", 0.0, "nats"),
        "bits_per_character": Metric(bits, known.kind, bits * share, "bits"),
    }


def texts_of(run: Run, batch: Batch) -> list[str]:
    codec = codec_of(run)
    ends = (
        batch.length if batch.length is not None else torch.full((len(batch),), batch.x.shape[1])
    )
    return [
        codec.spell(row[:end]) for row, end in zip(batch.x.tolist(), ends.tolist(), strict=True)
    ]
