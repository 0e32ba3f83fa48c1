"""Text as data: tokens there and back, blocks and lines, pairs, splits, and what is refused."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monge.core.errors import DataError
from monge.data import loading as data
from monge.data.codecs.tokens import Text, tokenizer
from monge.data.dataset import View
from monge.data.options import Options
from monge.data.readers.base import ReadFormat
from monge.data.readers.parallel_text import read_columns
from monge.train.batch_sampler import bucketed

VERSES = "".join(f"{i}: the quick brown fox\njumps over {i * i} lazy dogs.\n\n" for i in range(60))
GERMAN = [f"ein Hund Nummer {i} läuft" for i in range(40)]
ENGLISH = [f"dog number {i} runs" for i in range(40)]


@pytest.fixture
def verses(tmp_path: Path) -> Path:
    path = tmp_path / "verses.txt"
    path.write_text(VERSES, encoding="utf-8")
    return path


@pytest.fixture
def names(tmp_path: Path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(f"name{'abcdefgh'[i % 8] * (1 + i % 5)}" for i in range(60)) + "\n")
    return path


def spelled(view, batch) -> list[str]:
    """The text of each row as far as it goes."""
    return [
        view.text.spell(row[:size])
        for row, size in zip(batch.x.tolist(), batch.length.tolist(), strict=True)
    ]


@pytest.mark.parametrize("unit", ["chars", "words", "bytes", "bpe"])
def test_running_text_comes_in_consecutive_blocks_that_come_back(verses, unit):
    source = data.open(verses, f"tokens={unit}", "context=32", "vocabulary=300")
    rows = [source.view().split(split).whole() for split in ("train", "valid", "test")]
    space = source.view().space
    assert (space.kind, space.varies, space.end, space.shape) == ("tokens", True, None, (32,))
    assert rows[0].x.dtype == torch.int64
    parts = ["".join(spelled(source.view(), part)) for part in rows]
    if unit != "words":  # words that the training text lacks become one symbol
        assert "".join(parts) == VERSES
        assert len(parts[1]) == len(parts[2]) == round(0.1 * len(VERSES))


def test_validation_is_read_off_all_parts_of_a_long_text(tmp_path):
    """A text that changes on the way: every hundredth of it has a letter of its own."""
    text = "".join(chr(0x4E00 + i) * 100 for i in range(100))
    (tmp_path / "long.txt").write_text(text)
    view = data.open(tmp_path / "long.txt", "context=8", "lines=running").view()
    parts = {
        split: "".join(spelled(view, view.split(split).whole()))
        for split in ("train", "valid", "test")
    }
    assert sorted("".join(parts.values())) == sorted(text)
    assert parts["test"] == text[-1000:]
    assert [len(parts["train"]), len(parts["valid"])] == [8000, 1000]
    assert parts["valid"] == "".join(text[900 * i + 800 : 900 * (i + 1)] for i in range(10))
    rows = view.training()
    torch.manual_seed(0)
    for _ in range(5):  # a block never reads across a stretch that was taken out
        drawn = rows.batch(torch.arange(len(rows)), train=True)
        assert all(block in text for block in spelled(view, drawn))


def test_words_beyond_the_vocabulary_are_one_symbol_and_the_name_says_so(verses):
    source = data.open(verses, "tokens=words", "vocabulary=20")
    assert source.name == "verses+words"
    assert source.view().space.size == 20
    codec = source.view().text
    assert codec.spell(codec.codes([" the zebra"], str)[0]) == " the<unk>"


def test_lines_end_with_a_symbol_and_are_drawn_into_splits(names):
    view = data.open(names).view()
    batch = view.split("train").whole()
    ends = batch.x.gather(1, batch.length[:, None] - 1)[:, 0]
    assert (ends == view.space.end).all()
    assert view.space.end == view.space.size - 1
    assert (batch.x == view.space.end).sum() == len(batch)
    assert all(text.startswith("name") for text in view.decode(batch.x))
    assert len(view.split("test")) == 6


def test_training_blocks_begin_anywhere_but_never_read_another_split(verses):
    view = data.open(verses, "context=16").view()
    rows = view.training()
    train = VERSES[: len(VERSES) - round(0.1 * len(VERSES))]
    torch.manual_seed(0)
    starts = set()
    for _ in range(20):
        batch = rows.batch(torch.arange(len(rows)), train=True)
        for text in spelled(view, batch):
            assert text in train
            starts.add(train.index(text) % 16)
    assert len(starts) == 16
    plain = [rows.batch(torch.arange(3)), view.split("train").batch(torch.arange(3), train=True)]
    assert torch.equal(plain[0].x, plain[1].x)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_bytes_and_subwords_spell_every_string(text):
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is in no UTF-8 string
        return
    for codec in (BPE, BYTES):
        assert codec.spell(codec.codes([text], str)[0]) == text


BPE = Text.fit("bpe", GERMAN, GERMAN, 350, ends=True)
BYTES = Text.fit("bytes", GERMAN, GERMAN, 0, ends=True)


def test_subwords_are_those_of_tokenizers_and_survive_json():
    again = Text.from_dict(json.loads(json.dumps(BPE.to_dict())))
    assert again == BPE
    found = tokenizer(BPE.merges).encode("ein Hund läuft").ids
    assert BPE.codes(["ein Hund läuft"], str)[0].tolist() == [*found, BPE.end]
    assert len(found) < len(b"ein Hund l\xc3\xa4uft")


def pair_files(folder: Path, german=GERMAN, english=ENGLISH, stem="train") -> None:
    folder.mkdir(exist_ok=True)
    for lines, ending in ((german, "de"), (english, "en")):
        with gzip.open(folder / f"{stem}.{ending}.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def test_a_folder_of_pairs(tmp_path: Path):
    pair_files(tmp_path / "p")
    pair_files(tmp_path / "p", GERMAN[:3], ENGLISH[:3], "val")
    pair_files(tmp_path / "p", GERMAN[:4], ENGLISH[:4], "test_2016")
    source = data.open(tmp_path / "p", "vocabulary=300")
    assert {name: len(rows) for name, rows in source.splits.items()} == {
        "train": 40,
        "valid": 3,
        "test": 4,
    }
    assert source.has_splits
    view = source.view(target=source.target)
    assert (source.target, list(view.given)) == ("en", ["de"])
    batch = view.split("test").whole()
    assert list(view.decode(batch.x)) == ENGLISH[:4]
    german = batch.given["de"]
    assert list(view.given["de"].fields[0].codec.decode(german.x.numpy())) == GERMAN[:4]
    stored = View.from_dict(json.loads(json.dumps(view.to_dict())))
    assert torch.equal(stored.read_given("de", GERMAN[:4]).x, german.x)
    with pytest.raises(DataError, match="at most"):
        stored.encode_given("de", "sehr " * 100)


def test_two_files_and_a_file_of_two_columns_and_python_lists(tmp_path: Path):
    (tmp_path / "a.src").write_text("\n".join(GERMAN), encoding="utf-8")
    (tmp_path / "a.tgt").write_text("\n".join(ENGLISH), encoding="utf-8")
    (tmp_path / "a.tsv").write_text(
        "\n".join(map("\t".join, zip(GERMAN, ENGLISH, strict=True))), encoding="utf-8"
    )
    two = data.open(f"{tmp_path / 'a.src'},{tmp_path / 'a.tgt'}", "vocabulary=300")
    columns = data.open(tmp_path / "a.tsv", "vocabulary=300")
    python = data.open((GERMAN, ENGLISH), "tokens=bpe", "vocabulary=300")
    for source in (two, columns, python):
        event = source.view(target=source.target)
        assert sorted(event.decode(event.split("all").whole().x)) == sorted(ENGLISH)
    lines = data.open(ENGLISH, "tokens=chars")
    assert sorted(lines.view().decode(lines.view().split("all").whole().x)) == sorted(ENGLISH)


def test_other_text_is_read_in_the_terms_of_a_run(verses, tmp_path: Path):
    view = data.open(verses, "context=32").view()
    other = tmp_path / "other.txt"
    other.write_text("over the lazy fox\n\n" * 9)
    found = data.open(other, fields=view.to_dict()).view()
    batch = found.split("all").whole()
    assert found.space.size == view.space.size
    assert batch.x.shape[1] == 32
    assert (
        "".join(
            found.text.spell(row[:size])
            for row, size in zip(batch.x.tolist(), batch.length.tolist(), strict=True)
        )
        == other.read_text()
    )
    other.write_text("über\n\n" * 9)
    with pytest.raises(DataError, match=r"'ü', character 1, .* data.tokens=bytes"):
        data.open(other, fields=view.to_dict())


def test_tables_stay_tables(tmp_path: Path):
    (tmp_path / "t.txt").write_text("a,b\n" + "".join(f"x{i},{i}\n" for i in range(9)))
    (tmp_path / "n.txt").write_text("".join(f"{i} {i * i}\n" for i in range(9)))
    for name in ("t.txt", "n.txt"):
        assert data.open(tmp_path / name).schema.table


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (b"abc\ndef \xe9t\xe9\n" * 9, (), "byte 0xe9 at offset 8"),
        (b"\n \n", ("tokens=chars",), "is empty"),
        (b"one\n\ntwo\n", ("lines=each",), "line 2 of bad.txt is empty"),
        (b"ab", ("lines=running",), "too short"),
        (b"some words here " * 9, ("tokens=bpe", "vocabulary=100"), "vocabulary=100"),
    ],
)
def test_bad_text_is_refused(tmp_path: Path, content, settings, sentence):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        data.open(path, *settings)


def test_bad_pairs_are_refused(tmp_path: Path):
    pair_files(tmp_path / "p", GERMAN, ENGLISH[:-1])
    with pytest.raises(DataError, match=r"train.de.gz has 40 .*train.en.gz has 39"):
        data.open(tmp_path / "p")
    pair_files(tmp_path / "p", [*GERMAN[:5], " ", *GERMAN[6:]])
    with pytest.raises(DataError, match=r"line 6 of train.de.gz"):
        data.open(tmp_path / "p")
    (tmp_path / "x.tsv").write_text("a b\tc d\n" * 9 + "no tab here\n")
    with pytest.raises(DataError, match=r"line 10 of x.tsv"):
        read_columns(tmp_path / "x.tsv", "x", Options(), ReadFormat())
    with pytest.raises(DataError, match="40 sources and 39 targets"):
        data.open((GERMAN, ENGLISH[:-1]), "tokens=chars")


def test_batches_by_length_waste_little():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.poisson(torch.full((5000, 2), 12.0), generator=generator).long() + 1
    order = torch.randperm(5000, generator=generator)
    found = bucketed(order, lengths, 64, generator)
    assert sorted(found.tolist()) == list(range(5000))

    def waste(rows):
        batches = lengths[rows[:4992]].reshape(-1, 64, 2)
        return 1 - float(batches.sum()) / float(64 * batches.amax(1).sum())

    assert waste(found) < 0.15
    assert waste(order) > 0.35
    assert not torch.equal(bucketed(order, lengths, 64, generator), found)
    assert bucketed(order, None, 64, generator) is order
