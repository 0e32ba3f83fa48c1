"""Pairs of images: made by a transform, side by side, or in folders a/ and b/."""

import numpy as np
import pytest
import torch
from PIL import Image

from monge.core.errors import DataError, UsageError
from monge.data import loading as data


def save(folder, count, shape=(6, 8), start=0):
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = np.full(shape, start + i, np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")


def whole(source, split="all"):
    rows = source.view(target="target").split(split).whole()
    return rows.given["source"].x, rows.x


def test_a_word_makes_the_given_and_keeps_the_picture_as_the_event():
    source, plain = data.open("digits+half"), data.open("digits")
    assert (source.main, source.target, source.name) == (("source",), "target", "digits+half")
    x, y = whole(source)
    assert torch.equal(y, plain.view().split("all").whole().x)
    assert torch.equal(x[:, :, :4], y[:, :, :4])
    assert not x[:, :, 4:].any()
    for split in ("train", "valid", "test"):
        assert torch.equal(source.splits[split], plain.splits[split])


def test_edges_are_where_brightness_changes(tmp_path):
    pixels = np.zeros((9, 9), np.uint8)
    pixels[:, 5:] = 255
    (tmp_path / "p").mkdir()
    for i in range(4):
        Image.fromarray(pixels).save(tmp_path / "p" / f"{i}.png")
    x, _ = whole(data.open(f"{tmp_path / 'p'}+edges"))
    assert set(x.unique().tolist()) == {0.0, 255.0}
    assert (x[0, 0] == 255).any(0).nonzero()[:, 0].tolist() == [4, 5]


def test_words_before_and_after_a_pair(tmp_path):
    source = data.open("digits+resize16+edges+resize4")
    assert {field.space.shape for field in source.fields.values()} == {(1, 4, 4)}
    with pytest.raises(UsageError, match=r"\+half after \+edges"):
        data.open("digits+edges+half")
    with pytest.raises(DataError, match=r"\+edges .*moons"):
        data.open("moons+edges")


def test_pictures_side_by_side_are_taken_apart(tmp_path):
    (tmp_path / "both").mkdir()
    for i in range(6):
        pixels = np.concatenate(
            [np.full((5, 4), i, np.uint8), np.full((5, 4), 100 + i, np.uint8)], 1
        )
        Image.fromarray(pixels).save(tmp_path / "both" / f"{i}.png")
    x, y = whole(data.open(f"{tmp_path / 'both'}+beside"))
    assert x.shape == y.shape == (6, 1, 5, 4)
    assert torch.equal(y, x + 100)
    (tmp_path / "odd").mkdir()
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(tmp_path / "odd" / "0.png")
    with pytest.raises(DataError, match="7 pixels"):
        data.open(f"{tmp_path / 'odd'}+beside", fields=data.open("digits").fields_dict())


def test_folders_a_and_b_are_pairs_of_the_same_name(tmp_path):
    save(tmp_path / "set" / "a", 8)
    save(tmp_path / "set" / "b", 8, start=100)
    source = data.open(tmp_path / "set")
    assert (source.main, source.target) == (("source",), "target")
    x, y = whole(source)
    assert x.shape == (8, 1, 6, 8)
    assert torch.equal(y, x + 100)
    assert data.open(f"{tmp_path / 'set'}+resize4").fields["target"].space.shape == (1, 4, 4)


def test_splits_may_hold_pairs(tmp_path):
    for split, count, start in (("train", 6, 0), ("test", 4, 20)):
        save(tmp_path / "set" / split / "a", count, start=start)
        save(tmp_path / "set" / split / "b", count, start=100 + start)
    source = data.open(tmp_path / "set")
    assert source.has_splits
    x, y = whole(source, "test")
    assert len(x) == 4
    assert torch.equal(y, x + 100)


def test_pairs_that_do_not_match_are_refused(tmp_path):
    save(tmp_path / "few" / "a", 5)
    save(tmp_path / "few" / "b", 4)
    with pytest.raises(DataError, match=r"5 images in a/ .*4 in b/.* 04 "):
        data.open(tmp_path / "few")
    save(tmp_path / "size" / "a", 4)
    save(tmp_path / "size" / "b", 4, shape=(6, 9))
    with pytest.raises(DataError, match=r"8x6 in a/ and 9x6 in b/"):
        data.open(tmp_path / "size")
    assert data.open(f"{tmp_path / 'size'}+resize4").fields["source"].space.shape == (1, 4, 4)


def test_more_folders_than_two_are_classes(tmp_path):
    for name in "abc":
        save(tmp_path / "letters" / name, 4)
    assert list(data.open(tmp_path / "letters").fields) == ["image", "label"]


def test_pairs_are_read_in_the_terms_of_a_run():
    terms = data.open("digits+half").view(target="target").to_dict()
    other = data.open("digits+edges", "rows=30", fields=terms)
    assert other.view(target="target").split("all").whole().x.shape == (30, 1, 8, 8)
    with pytest.raises(UsageError, match="moons"):
        data.open("digits+half", fields=data.open("moons").fields_dict())
    with pytest.raises(DataError, match=r"1x4x4 .* 1x8x8"):
        data.open("digits+half+resize4", fields=terms)


def test_one_side_of_pairs_may_be_a_side_of_what_nobody_paired():
    source = data.open("digits~digits+half")
    terms = source.view(target="target").to_dict()
    again = data.open("digits~digits+half", fields=terms)
    assert again.fingerprint == source.fingerprint
    assert not source.view(target="target").split("train").whole().x[..., 4:, :].any()


def test_toys_know_their_modes():
    for name, count, spread in (("ring", 8, 0.02), ("grid", 25, 0.05)):
        density = data.open(name).density
        assert (len(density.centres), density.spread) == (count, spread)
        x = data.open(name).view().split("all").whole().x.double()
        apart = torch.cdist(x, density.centres).amin(1)
        assert (apart < 4 * spread).double().mean() > 0.999


def test_a_model_of_one_side_alone_is_noted():
    source = data.open("digits+edges")
    assert "--target target" in " ".join(source.view().notes)
    assert not source.view(target="target").notes
    assert not data.open("digits").view().notes
