"""Tokenising: our byte-level BPE, data to tensors, against a bare `tokenizers` on the same merges.

python -m benchmarks.tokens [FILE]       # a text file; without one, generated words
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

from monge.data.codecs.tokens import Text, tokenizer

from .clock import alternate, measured, show
from .results import keep

ROUNDS = 5


def lines_of(path: Path | None) -> list[str]:
    if path:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(5000)]
    return [" ".join(rng.choices(words, k=12)) for _ in range(20_000)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path)
    lines = lines_of(parser.parse_args().file)
    codec = Text.fit("bpe", lines, lines, 4000, ends=True)
    bare = tokenizer(codec.merges)
    rows = codec.codes(lines, str)
    same = all(
        row[:-1].tolist() == own.ids
        for row, own in zip(rows[:500], bare.encode_batch_fast(lines[:500]), strict=True)
    )
    work = {
        "monge": lambda: codec.encode(codec.codes(lines, str), str),
        "tokenizers": lambda: [own.ids for own in bare.encode_batch_fast(lines)],
    }
    times, count = alternate(work, ROUNDS), sum(map(len, rows))
    print(f"{count} tokens, equal to those of tokenizers: {same}")
    show(
        times,
        {
            name: f"{count / statistics.median(spent) / 1e6:.2f} M tokens/s"
            for name, spent in times.items()
        },
        name="encode",
    )
    keep("tokens", measured, peers=["tokenizers"])


if __name__ == "__main__":
    main()
