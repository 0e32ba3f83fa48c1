"""Sound: wav files there and back, what is wrong with them, mu-law, labels from names."""

import struct
import tracemalloc
import wave

import numpy as np
import pytest
import torch

from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.data import loading as data
from monge.data.codecs.sound import compress, expand
from monge.data.readers import wav
from monge.data.readers.wav import Clip

RANGES = {8: (0, 256, np.uint8), 16: (-(2**15), 2**15, np.int16), 24: (-(2**23), 2**23, np.int32)}


def noise(bits, length, channels=1):
    low, high, dtype = RANGES[bits]
    shape = (length,) if channels == 1 else (length, channels)
    return np.random.default_rng(length).integers(low, high, shape).astype(dtype)


def fill(folder, clips):
    """Files by name; returns the samples in the order they are read."""
    for name, clip in clips.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        wav.save(folder / name, clip)
    return [clips[name].samples for name in sorted(clips)]


def write_sounds(folder, bits=16, channels=1, rate=8000, lengths=(30, 41, 12, 30, 25, 19, 33, 20)):
    names = [
        f"{digit}_{who}_{take}.wav"
        for digit in (0, 1)
        for who in ("ann", "bob")
        for take in (0, 1)
    ]
    return fill(
        folder,
        {
            name: Clip(noise(bits, length, channels), rate, bits)
            for name, length in zip(names, lengths, strict=True)
        },
    )


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("bits", [8, 16, 24])
def test_files_come_back_exactly(tmp_path, bits, channels):
    sounds = write_sounds(tmp_path, bits, channels, rate=11025)
    view = data.open(tmp_path).view()
    space = view.space
    assert (space.kind, space.size, space.varies) == ("levels", 2**bits, True)
    assert space.shape == ((41,) if channels == 1 else (41, 2))
    batch = view.split("all").whole()
    decoded = view.decode(batch.x)
    for found, length, samples in zip(decoded, batch.length.tolist(), sounds, strict=True):
        assert found.dtype == samples.dtype
        assert np.array_equal(found[:length], samples)
        wav.save(tmp_path / "again.wav", view.sound.clip(found[:length]))
        with wave.open(str(tmp_path / "again.wav")) as file:  # the standard library agrees
            assert (
                file.getframerate(),
                file.getsampwidth(),
                file.getnchannels(),
                file.getnframes(),
            ) == (11025, bits // 8, channels, length)
        assert np.array_equal(wav.load(tmp_path / "again.wav").samples, samples)


def test_levels_are_in_the_order_of_the_amplitude(tmp_path):
    for bits, dtype in ((8, np.uint8), (16, np.int16), (24, np.int32)):
        low, high, _ = RANGES[bits]
        path = tmp_path / str(bits) / "ends.wav"
        fill(
            path.parent,
            {f"{i}.wav": Clip(np.array([low, high - 1], dtype), 8000, bits) for i in range(3)},
        )
        assert data.open(path.parent).view().split("all").whole().x[0].tolist() == [0, 2**bits - 1]


def test_what_the_standard_library_wrote_is_read(tmp_path):
    samples = noise(16, 50, 2)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(samples.tobytes())
    clip = wav.load(tmp_path / "a.wav")
    assert (clip.rate, clip.bits, clip.channels) == (44100, 16, 2)
    assert np.array_equal(clip.samples, samples)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_of_a_file_come_back_exactly(tmp_path, dtype, channels):
    shape = (13,) if channels == 1 else (13, channels)
    samples = np.random.default_rng(3).normal(size=shape).astype(dtype)
    wav.save(tmp_path / "a.wav", Clip(samples, 44100, 8 * samples.itemsize))
    clip = wav.load(tmp_path / "a.wav")
    assert (clip.rate, clip.bits, clip.channels) == (44100, 8 * samples.itemsize, channels)
    assert clip.samples.dtype == dtype
    assert np.array_equal(clip.samples, samples)


@pytest.mark.parametrize("bits", [8, 24])
def test_chunks_of_odd_length_are_padded(tmp_path, bits):
    wav.save(tmp_path / "a.wav", Clip(noise(bits, 5), 8000, bits))
    content = (tmp_path / "a.wav").read_bytes()
    assert len(content) == 8 + struct.unpack_from("<I", content, 4)[0] == 44 + 5 * bits // 8 + 1
    assert len(wav.load(tmp_path / "a.wav").samples) == 5


def test_floats_of_both_sizes_stand_beside_one_another(tmp_path):
    sounds = [np.random.default_rng(n).normal(size=6) / 4 for n in range(3)]
    fill(
        tmp_path,
        {
            f"{i}.wav": Clip(s.astype(dtype), 8000, 8 * np.dtype(dtype).itemsize)
            for i, (s, dtype) in enumerate(zip(sounds, ("f4", "f8", "f8"), strict=True))
        },
    )
    view = data.open(tmp_path).view()
    assert view.sound.bits == 32
    assert np.array_equal(view.decode(view.split("all").whole().x)[1], np.float32(sounds[1]))
    fill(tmp_path, {"2.wav": Clip(np.array([0.5, 1e300]), 8000, 64)})
    with pytest.raises(DataError, match=r"row 3 of 2\.wav"):
        data.open(tmp_path)


def test_memory_is_bounded_by_the_file_whatever_its_header_claims(tmp_path):
    content = header()
    place = content.index(b"data") + 4
    (tmp_path / "a.wav").write_bytes(
        content[:place] + struct.pack("<I", 2**31 - 2) + content[place + 4 :]
    )
    tracemalloc.start()
    with pytest.raises(DataError, match="2147483646"):
        wav.load(tmp_path / "a.wav")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_floats_are_real_and_other_chunks_are_passed_over(tmp_path):
    sounds = [np.random.default_rng(n).normal(size=n).astype(np.float32) / 4 for n in (9, 5, 7)]
    fill(tmp_path, {f"{i}.wav": Clip(s, 8000, 32) for i, s in enumerate(sounds)})
    view = data.open(tmp_path).view()
    assert view.space.kind == "real"
    assert np.array_equal(view.decode(view.split("all").whole().x)[1][:5], sounds[1])
    content = (tmp_path / "0.wav").read_bytes()
    odd = wav.chunk(b"LIST", b"INFOdata!")  # padded to an even length, and names another chunk
    head = (
        struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 32000, 4, 32, 22, 32, 0)
        + struct.pack("<H", 3)
        + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    )
    sound = content.index(b"data")
    body = b"WAVE" + odd + wav.chunk(b"fmt ", head) + content[sound:]
    (tmp_path / "odd.wav").write_bytes(wav.chunk(b"RIFF", body))
    assert np.array_equal(wav.load(tmp_path / "odd.wav").samples, sounds[0])
    streamed = content[: sound + 4] + struct.pack("<I", 0xFFFFFFFF) + content[sound + 8 :]
    (tmp_path / "streamed.wav").write_bytes(streamed)
    assert np.array_equal(wav.load(tmp_path / "streamed.wav").samples, sounds[0])


def test_floats_that_are_no_amplitudes_are_refused(tmp_path):
    loud = {f"{i}.wav": Clip(np.array([0.5, 1.5, -0.25], np.float32), 8000, 32) for i in range(3)}
    fill(tmp_path / "loud", loud)
    with pytest.raises(DataError, match=r"\+mulaw.* 1\.5"):
        data.open(f"{tmp_path / 'loud'}+mulaw")
    fill(tmp_path / "bad", loud | {"1.wav": Clip(np.array([0.5, np.nan], np.float32), 8000, 32)})
    with pytest.raises(DataError, match=r"row 2 of 1.wav"):
        data.open(tmp_path / "bad")


def header(code=1, channels=1, rate=8000, block=2, bits=16, body=b"\0" * 20):
    fmt = wav.chunk(
        b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits)
    )
    return wav.chunk(b"RIFF", b"WAVE" + fmt + wav.chunk(b"data", body))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"ID3\x04 this is no wav at all", r"RIFF.*ffmpeg -i bad.wav"),
        (b"RIFF", "RIFF"),
        (header()[:12], "bad.wav"),
        (header()[:-7], r"20 bytes.* 13"),
        (header(body=b"\0" * 21, block=2), "21 bytes.* 2, found 21"),
        (header(body=b""), "has no samples"),
        (header(code=0x11, bits=4), r"holds ADPCM.*ffmpeg -i bad.wav -c:a pcm_s16le bad-pcm.wav"),
        (header(code=0x55, bits=0), "holds MP3"),
        (header(code=7, bits=8, block=1), "holds mu-law"),
        (header(code=0x1234), "the form 0x1234"),
        (header(bits=12), "12-bit PCM"),
        (header(bits=32, block=4), "32-bit PCM"),
        (header(rate=0), "wrong header"),
        (header(block=7), "wrong header"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, content, sentence):
    (tmp_path / "bad.wav").write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        data.open(tmp_path / "bad.wav")
    assert "\n" not in str(caught.value)


def test_files_that_differ_are_refused_with_the_word_that_mends_them(tmp_path):
    def mixed(name, other):
        clips = {f"{i}.wav": Clip(noise(16, 400), 8000, 16) for i in range(3)}
        fill(tmp_path / name, clips | {"9.wav": other})
        return tmp_path / name

    rates = mixed("rates", Clip(noise(16, 800), 16000, 16))
    with pytest.raises(DataError, match=r"8000 Hz and 9.wav has 16000.*rates\+resample8000"):
        data.open(rates)
    assert data.open(f"{rates}+resample8000").view().space.shape == (400,)
    sides = mixed("sides", Clip(noise(16, 400, 2), 8000, 16))
    with pytest.raises(DataError, match=r"1 channels and 9.wav has 2.*sides\+mono"):
        data.open(sides)
    assert data.open(f"{sides}+mono").view().space.shape == (400,)
    with pytest.raises(DataError, match=r"16 bits and 9.wav has 8; .*ffmpeg"):
        data.open(mixed("bits", Clip(noise(8, 400), 8000, 8)))


def test_mono_and_resample_keep_a_tone(tmp_path):
    time = np.arange(16000) / 16000
    tone = (8000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16)
    fill(tmp_path, {f"{i}.wav": Clip(np.stack([tone, tone], 1), 16000, 16) for i in range(3)})
    view = data.open(f"{tmp_path}+mono+resample8000").view()
    assert (view.sound.rate, view.space.shape) == (8000, (8000,))
    found = view.decode(view.split("all").whole().x)[0]
    assert np.abs(found[50:-50] - tone[::2][50:-50]).max() <= 100
    assert np.abs(np.fft.rfft(found)).argmax() == 440


def test_mulaw_is_the_curve_and_comes_back(tmp_path):
    codes = torch.arange(256)
    assert torch.equal(compress(expand(codes)).long(), codes)
    assert compress(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)).tolist() == [0, 128, 255]
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    gap = (expand(compress(s)) - s).abs()
    slope = (1 + 255 * s.abs()) * np.log(256) / 255
    assert (gap <= 1.03 * slope / 255).all()  # half a cell of the curve
    sounds = write_sounds(tmp_path)
    view = data.open(f"{tmp_path}+mulaw").view()
    assert (view.space.kind, view.space.size) == ("levels", 256)
    assert data.open(f"{tmp_path}+mulaw").tensors["sound"].flat.dtype == torch.uint8
    batch = view.split("all").whole()
    back = view.decode(batch.x)[0][: len(sounds[0])]
    assert back.dtype == np.int16
    half = 1.03 * 2**15 * 256 * np.log(256) / 255 / 255
    assert np.abs(back.astype(float) - sounds[0]).max() <= half
    other = tmp_path.parent / "decoded"  # codes survive a file of 16 bits
    fill(
        other,
        {
            f"{i}.wav": Clip(view.decode(batch.x)[i][:n], 8000, 16)
            for i, n in enumerate(batch.length.tolist())
        },
    )
    assert torch.equal(data.open(f"{other}+mulaw").view().split("all").whole().x, batch.x)


def test_names_of_files_are_labels(tmp_path):
    write_sounds(tmp_path)
    source = data.open(tmp_path)
    assert list(source.fields) == ["sound", "part1", "part2", "part3"]
    assert source.fields["part2"].codec.names == ("ann", "bob")
    view = source.view(given=["part2"])
    assert view.split("all").whole().given["part2"].x.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert view.encode_given("part2", "bob").x.tolist() == [1]
    named = data.open(tmp_path, "parts=digit,speaker,take")
    assert list(named.fields) == ["sound", "digit", "speaker", "take"]
    with pytest.raises(UsageError, match=r"names 2 parts and 0_ann_0.wav has 3"):
        data.open(tmp_path, "parts=digit,speaker")
    fill(tmp_path / "ids", {f"take_{i}.wav": Clip(noise(16, 9 + i), 8000, 16) for i in range(4)})
    assert list(data.open(tmp_path / "ids").fields) == ["sound"]  # neither constant nor numbering


def test_folders_are_labels_and_splits(tmp_path):
    for split, n in (("train", 4), ("test", 2)):
        for label in ("cat", "dog"):
            fill(
                tmp_path / "a" / split / label,
                {f"{i}.wav": Clip(noise(16, 10 + i), 8000, 16) for i in range(n)},
            )
    source = data.open(tmp_path / "a")
    assert source.has_splits
    assert source.target == "label"
    assert source.fields["label"].codec.names == ("cat", "dog")
    assert len(source.splits["test"]) == 4
    assert source.view(target="label").space.given["sound"].varies
    fill(tmp_path / "a" / "train", {"loose.wav": Clip(noise(16, 9), 8000, 16)})
    with pytest.raises(DataError, match="class folders"):
        data.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("transforms", "error", "sentence"),
    [
        ("+mulaw+resample4000", DataError, r"\+resample4000 .*mu-law"),
        ("+mulaw+mulaw", DataError, r"\+mulaw .*mu-law"),
        ("+binarise", DataError, r"\+binarise .*levels"),
        ("+resample", UsageError, r"\+resample64"),
        ("+mulow", UsageError, " mulaw"),
    ],
)
def test_words_that_do_not_fit(tmp_path, transforms, error, sentence):
    write_sounds(tmp_path)
    with pytest.raises(error, match=sentence):
        data.open(f"{tmp_path}{transforms}")
    with pytest.raises(DataError, match="needs sound"):
        data.open("digits+mulaw")


def test_other_sound_is_read_in_the_terms_of_a_run(tmp_path):
    write_sounds(tmp_path / "a")
    kept = data.open(f"{tmp_path / 'a'}+mulaw").view().to_dict()
    same = data.open(f"{tmp_path / 'a'}+mulaw", fields=kept)
    assert same.view().space.shape == (41,)
    with pytest.raises(DataError, match=r"16-bit.*\+mulaw"):
        data.open(tmp_path / "a", fields=kept)
    write_sounds(tmp_path / "fast", rate=16000)
    with pytest.raises(DataError, match=r"16000 Hz.* 8000 Hz.*\+resample8000"):
        data.open(f"{tmp_path / 'fast'}+mulaw", fields=kept)
    write_sounds(tmp_path / "long", lengths=(30, 99, 12, 30, 25, 19, 33, 20))
    with pytest.raises(DataError, match=r"99 steps.* 41.*\+cut41"):
        data.open(f"{tmp_path / 'long'}+mulaw", fields=kept)
    assert len(data.open(f"{tmp_path / 'long'}+mulaw+cut41", fields=kept)) == 8
    named = data.open(tmp_path / "a", "parts=digit,speaker,take").view(given=["speaker"]).to_dict()
    again = data.open(tmp_path / "a", fields=named).view(given=["speaker"])  # named as in the run
    assert again.split("all").whole().given["speaker"].x.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    fill(tmp_path / "bare", {f"{i}.wav": Clip(noise(16, 20), 8000, 16) for i in range(3)})
    with pytest.raises(DataError, match="lacks speaker"):
        data.open(tmp_path / "bare", fields=named)
    assert len(data.open(f"{tmp_path / 'bare'}+mulaw", fields=kept)) == 3
    with pytest.raises(DataError, match="not sound"):
        data.open([np.zeros(4), np.zeros(5), np.zeros(3)], fields=kept)


def test_data_and_sample_on_the_command_line(tmp_path, capsys):
    def monge(*args):
        code = attempt([str(arg) for arg in args])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    write_sounds(tmp_path / "a")
    summary = monge("data", tmp_path / "a")
    assert "12 to 41 steps" in summary
    assert "8000 Hz, 16 bits, mono" in summary
    write_sounds(tmp_path / "b", rate=22050, lengths=[16] * 8)
    run = tmp_path / "run"
    monge(
        "fit",
        "baseline.independent",
        f"{tmp_path / 'b'}+mulaw",
        "--out",
        run,
        "--budget",
        "5steps",
        "--threads",
        1,
    )
    monge("sample", run, "-n", 3, "-o", tmp_path / "out" / "x.wav")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "x-1.wav",
        "x-2.wav",
        "x-3.wav",
    ]
    clip = wav.load(tmp_path / "out" / "x-2.wav")
    assert (clip.rate, clip.bits, clip.samples.shape) == (22050, 16, (16,))
    monge("sample", run, "-n", 1, "-o", tmp_path / "one.wav")
    assert (tmp_path / "one.wav").exists()
    monge("sample", run, "-n", 2)
    assert (run / "figures" / "samples-2.wav").exists()
    assert (run / "figures" / "samples.png").stat().st_size > 1000


def test_sounds_are_completed_each_to_its_own_length(tmp_path, capsys):
    sounds = write_sounds(tmp_path / "a")
    np.save(tmp_path / "hide.npy", np.arange(41) >= 10)
    run, out = tmp_path / "run", tmp_path / "out.wav"
    for args in (
        ("fit", "wavenet", tmp_path / "a", "--out", run, "--budget", "2steps"),
        ("complete", run, tmp_path / "a", "--hide", tmp_path / "hide.npy", "-o", out),
    ):
        assert attempt([str(arg) for arg in args]) == 0, capsys.readouterr().err
    for place, samples in enumerate(sounds, 1):
        found = wav.load(tmp_path / f"out-{place}.wav").samples
        assert found.shape == samples.shape
        assert np.array_equal(found[:10], samples[:10])
