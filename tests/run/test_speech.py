"""Speech to text: a folder of sounds with transcripts is fitted, evaluated and transcribed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import monge
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.space import Space
from monge.data.readers import wav
from monge.nn.inputs.sound import LogMel, SoundFrames, mel_filters

RATE = 2000


def tone(path: Path, hertz: float, steps: int, loud: float) -> None:
    s = loud * np.sin(2 * np.pi * hertz * np.arange(steps) / RATE)
    wav.save(path, wav.Clip((s * 30000).astype(np.int16), RATE, 16))


@pytest.fixture(scope="module")
def tones(tmp_path_factory) -> Path:
    """Tones of two pitches, of any length and loudness, called low and high."""
    folder, rng, lines = tmp_path_factory.mktemp("tones"), np.random.default_rng(0), []
    for i in range(60):
        word, hertz = ("low", 150) if i % 2 else ("high", 600)
        tone(folder / f"{i}.wav", hertz * rng.uniform(0.8, 1.2), rng.integers(300, 900), 0.9**i)
        lines.append(f"{i}.wav,{word} tone")
    (folder / "metadata.csv").write_text("\n".join(["file_name,transcript", *lines]))
    return folder


def test_words_are_read_from_sound(tones, tmp_path):
    run = monge.fit(
        "seq2seq",
        tones,
        "net.width=16",
        "train.warmup=5",
        "train.lr=1e-2",
        "dropout=0",
        given=["sound"],
        budget="60steps",
        out=tmp_path / "run",
    )
    assert run.view.event.name == "transcript"
    assert run.evaluate()["word_error_rate"].value < 5
    (tmp_path / "new").mkdir()
    tone(tmp_path / "new" / "a.wav", 160, 500, 0.5)
    tone(tmp_path / "new" / "b.wav", 580, 400, 0.01)
    found = run.predict(tmp_path / "new")
    assert list(found["transcript"]) == ["low tone", "high tone"]
    assert list(found["file_name"]) == ["a.wav", "b.wav"]
    assert run.translate(str(tmp_path / "new" / "a.wav")) == "low tone"
    with pytest.raises(DataError, match="transcript"):
        run.log_likelihood(tmp_path / "new")


def test_folders_of_splits_need_the_same_columns(tones, tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for i in range(4):
            tone(tmp_path / part / f"{i}.wav", 200, 300, 0.5)
    lines = [f"{i}.wav,word {i}" for i in range(4)]
    text = "\n".join(["file_name,transcript", *lines])
    (tmp_path / "train" / "metadata.csv").write_text(text)
    with pytest.raises(DataError, match="transcript"):
        monge.open(tmp_path)
    (tmp_path / "test" / "metadata.csv").write_text(text)
    found = monge.open(tmp_path)
    assert len(found.splits["test"]) == 4
    assert list(found.row_keys["file_name"][:5]) == ["0.wav", "1.wav", "2.wav", "3.wav", "0.wav"]


def space(levels: int = 65536, rate: int = 8000) -> Space:
    kind = "levels" if levels else "real"
    return Space(kind=kind, size=levels, shape=(8000,), varies=True, rate=rate)


def wave(hertz: float, steps: int = 4000) -> torch.Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(steps) / 8000)


def test_a_tone_is_loudest_in_its_band():
    mel = LogMel(space(0))
    for hertz in (300.0, 1000.0, 3000.0):
        frames, _ = mel(Batch(wave(hertz)[None]))
        centres = torch.arange(129) * 8000 / 256 @ mel.bands
        assert abs(float(centres[frames[0, 10].argmax()]) - hertz) < 150


def test_frames_do_not_depend_on_loudness_or_on_other_rows():
    x = 0.5 * wave(440) + 0.1 * wave(1500)
    mel, levels = LogMel(space(0)), LogMel(space())
    loud, count = mel(Batch(x[None]))
    quiet, _ = mel(Batch(0.01 * x[None]))
    torch.testing.assert_close(loud, quiet, atol=1e-3, rtol=0)
    coded, _ = levels(Batch((x[None] * 32768).round() + 32768))
    torch.testing.assert_close(loud, coded, atol=0.05, rtol=0)
    longer = torch.stack([x, wave(600)])
    short = torch.tensor([1601, 4000])
    net = SoundFrames(space(0), 8).eval()
    together, steps = net(Batch(longer, length=short))
    alone, _ = net(Batch(longer[:1, :1601], length=short[:1]))
    assert count.tolist() == [50]
    assert steps.tolist() == [6, 13]
    torch.testing.assert_close(together[0, :6], alone[0])
    assert not together[0, 6:].any()


def test_every_band_reads_something_at_any_rate():
    for rate, points in ((1000, 32), (8000, 256), (44100, 2048)):
        filters = mel_filters(rate, points, 40)
        torch.testing.assert_close(filters.sum(0), torch.ones(40))
        assert (filters >= 0).all()


def test_masks_hide_whole_bands_and_stretches_in_training_only():
    torch.manual_seed(0)
    net = SoundFrames(space(0), 8, mask=0.5)
    batch = Batch(wave(440)[None].expand(8, -1))
    first, second = net(batch)[0], net(batch)[0]
    assert not torch.equal(first, second)
    net.eval()
    assert torch.equal(net(batch)[0], net(batch)[0])
