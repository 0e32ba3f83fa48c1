"""Digits coded as tones, transcribed by seq2seq with attention, evaluated by word errors (K23).

Every digit is a pair of tones of some length, as on a telephone; three to five of them with pauses
and noise are one recording. The network reads frames of 64 samples as spectra.

    python -m examples.dictate [--budget 60s]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from monge.core.batch import Batch
from monge.core.space import Space
from monge.data.codecs.tokens import Text
from monge.evaluate.likelihood import HeldOutScorer
from monge.evaluate.text import word_errors
from monge.models.sequence.seq2seq import Seq2Seq
from monge.nn.recurrent import GRU
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LOW, HIGH, FRAME = (697, 770, 852, 941), (1209, 1336, 1477), 64


def recording(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Log-spectra (T, 33) of a recording at 4 kHz, and its words."""
    digits = rng.integers(10, size=rng.integers(3, 6))
    parts = []
    for digit in digits:
        t = np.arange(FRAME * rng.integers(3, 6)) / 4000
        tones = np.sin(2 * np.pi * LOW[digit // 3] * t) + np.sin(2 * np.pi * HIGH[digit % 3] * t)
        parts += [tones, np.zeros(FRAME * rng.integers(1, 4))]
    sound = np.concatenate(parts)
    sound = sound + rng.normal(0, 0.5, len(sound))
    frames = sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME) * np.hanning(FRAME)
    spectra = np.log(np.abs(np.fft.rfft(frames)) + 0.1)
    return spectra.astype(np.float32), " ".join(NAMES[digit] for digit in digits)


class Recordings:
    """Spectra and words as rows."""

    def __init__(self, spectra: list[np.ndarray], words: list[str], codec: Text) -> None:
        rows = codec.encode(codec.codes(words, str), str)
        self.x, self.length = rows.pad(torch.arange(len(rows)), torch.int64)
        self.frames = torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, spectra)), True)
        self.frame_counts = torch.tensor([len(own) for own in spectra])
        self.lengths = torch.stack([self.length, self.frame_counts], 1)

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: torch.Tensor, train: bool = False) -> Batch:
        count = self.frame_counts[index]
        sound = Batch(self.frames[index, : int(count.max())], length=count)
        return Batch(self.x[index], {"sound": sound}, length=self.length[index], row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="60s")
    budget = Budget.read(parser.parse_args().budget)
    rng = np.random.default_rng(0)
    spectra, words = zip(*(recording(rng) for _ in range(3000)), strict=True)
    codec = Text.fit("words", list(words), list(words), 50, ends=True)
    train, test = (
        Recordings(list(spectra[part]), list(words[part]), codec)
        for part in (slice(300, None), slice(0, 300))
    )
    every = np.concatenate(spectra[300:])
    sound = Space(
        kind="real",
        shape=(int(train.frame_counts.max()), 33),
        varies=True,
        name="sound",
        mean=tuple(every.mean(0).tolist()),
        scale=tuple(every.std(0).tolist()),
    )
    space = Space(
        kind="tokens",
        shape=(train.x.shape[1],),
        size=codec.size,
        varies=True,
        end=codec.end,
        rows=len(train),
        given={"sound": sound},
    )
    torch.manual_seed(0)
    trainer = Trainer(
        Seq2Seq.Config(net=GRU.Config(width=96)).build(space),
        train,
        Seq2Seq.defaults(space).train,
    )
    for _ in fit(trainer, budget, HeldOutScorer(trainer.model, test)):
        pass
    found = list(codec.decode(trainer.model.eval().mode(test.whole().given).numpy()))
    score = word_errors(found, list(words[:300]))
    print(f"{words[0]}\n  -> {found[0]}")
    print(f"word errors {score.value:.1f} ± {score.stderr:.1f} % on {len(found)} recordings")


if __name__ == "__main__":
    main()
