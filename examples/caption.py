"""Captions of synthetic scenes by seq2seq with attention over patches, evaluated by BLEU (K24).

A scene is a 16x16 image with one or two shapes; its caption names shape and side of each.

    python -m examples.caption [--budget 60s]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from monge.core.batch import Batch
from monge.core.space import Space
from monge.data.codecs.tokens import Text
from monge.evaluate.likelihood import HeldOutScorer
from monge.evaluate.text import bleu
from monge.models.sequence.seq2seq import Seq2Seq
from monge.nn.recurrent import GRU
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

SHAPES, SIDES = ("square", "cross", "ring", "bar"), ("left", "right")


def paint(shape: str, size: int = 6) -> np.ndarray:
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    shapes = {
        "square": np.ones((size, size), bool),
        "cross": (abs(x) < 1) | (abs(y) < 1),
        "ring": np.maximum(abs(x), abs(y)) > 1.9,
        "bar": abs(y) < 1,
    }
    return shapes[shape].astype(np.float32)


def scene(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """An image (1, 16, 16) with some noise, and its caption."""
    image, phrases = rng.normal(0, 0.1, (1, 16, 16)).astype(np.float32), []
    sides = SIDES if rng.random() < 0.5 else (rng.choice(SIDES),)
    for side in sides:
        shape = str(rng.choice(SHAPES))
        top, start = rng.integers(0, 10), (0 if side == "left" else 8) + rng.integers(0, 3)
        image[0, top : top + 6, start : start + 6] += paint(shape)
        phrases.append(f"a {shape} on the {side}")
    return image, " and ".join(phrases)


class Scenes:
    """Images and captions as rows."""

    lengths = None

    def __init__(self, images: np.ndarray, captions: list[str], codec: Text) -> None:
        rows = codec.encode(codec.codes(captions, str), str)
        x, self.length = rows.pad(torch.arange(len(rows)), torch.int64)
        self.x, self.images = x, torch.from_numpy(images)

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: torch.Tensor, train: bool = False) -> Batch:
        return Batch(
            self.x[index],
            {"image": Batch(self.images[index])},
            length=self.length[index],
            row=index,
        )

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="60s")
    budget = Budget.read(parser.parse_args().budget)
    rng = np.random.default_rng(0)
    images, captions = zip(*(scene(rng) for _ in range(3000)), strict=True)
    codec = Text.fit("words", list(captions), list(captions), 50, ends=True)
    train, test = (
        Scenes(np.stack(images[part]), list(captions[part]), codec)
        for part in (slice(300, None), slice(0, 300))
    )
    space = Space(
        kind="tokens",
        shape=(train.x.shape[1],),
        size=codec.size,
        varies=True,
        end=codec.end,
        rows=len(train),
        given={
            "image": Space(
                kind="real", shape=(1, 16, 16), name="image", mean=(0.15,), scale=(0.4,)
            )
        },
    )
    train_config = Seq2Seq.defaults(space).train
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq.Config(net=GRU.Config(width=96)).build(space), train, train_config)
    for _ in fit(trainer, budget, HeldOutScorer(trainer.model, test)):
        pass
    model = trainer.model.eval()
    found = list(codec.decode(model.mode(test.whole().given).numpy()))
    score = bleu(found, list(captions[:300]))
    print(f"{captions[0]}\n  -> {found[0]}")
    print(f"BLEU {score.value:.1f} ± {score.stderr:.1f} on {len(found)} scenes")


if __name__ == "__main__":
    main()
