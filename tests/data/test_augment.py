"""Training rows changed at random: motions, spoilt inputs, the rule of labels, proposals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from monge.core.errors import UsageError
from monge.core.model import Defaults
from monge.core.space import Space
from monge.data import loading as data
from monge.data.augment import EVENT, Augment
from monge.data.augmentations import corruption, geometry
from monge.registry import find
from monge.run.run import load, start

rng = np.random.default_rng(0)
PICTURES = rng.integers(0, 256, (60, 9, 7), dtype=np.uint8)
LABELS = rng.integers(0, 3, 60)


def view(*settings, x=PICTURES, y=LABELS, **asked):
    return data.open((x, y), *settings).view(**(asked or {"target": "y"}))


def batch(rows, train=True, n=40):
    torch.manual_seed(0)
    return rows.batch(torch.arange(n), train=train)


def test_only_training_batches_change_and_the_generator_decides():
    rows = view("augment=shift2,rotate10,noise5").training()
    plain = view().training()
    assert torch.equal(batch(rows, train=False).given["x"].x, batch(plain).given["x"].x)
    first = batch(rows).given["x"].x
    assert torch.equal(first, batch(rows).given["x"].x)
    assert not torch.equal(first, rows.batch(torch.arange(40), train=True).given["x"].x)
    assert not torch.equal(first, batch(plain).given["x"].x)
    assert torch.equal(batch(rows).x, batch(plain).x)  # labels do not move
    assert torch.equal(
        batch(view("augment=shift2").split("train")).given["x"].x, batch(plain).given["x"].x
    )  # a split as it is


def test_a_shift_is_exact():
    rows, plain = view("augment=shift2").training(), view().training()
    old, new = batch(plain).given["x"].x[:, 0], batch(rows).given["x"].x[:, 0]
    torch.manual_seed(0)
    moved = geometry.shift(40, 2)[:, :2, 2].long()
    assert set(moved.flatten().tolist()) == {-2, -1, 0, 1, 2}
    for x, y, (right, down) in zip(old, new, moved.tolist(), strict=True):
        rows_seen = (torch.arange(9) + down).clamp(0, 8)
        columns_seen = (torch.arange(7) + right).clamp(0, 6)
        assert torch.equal(y, x[rows_seen][:, columns_seen])


@pytest.mark.parametrize(("word", "axis"), [("flip", 3), ("flip-over", 2)])
def test_flips_are_exact_and_happen_half_of_the_time(word, axis):
    old, new = (batch(view(f"augment={w}").training()).given["x"].x for w in ("none", word))
    same = torch.tensor([torch.equal(a, b) for a, b in zip(old, new, strict=True)])
    flipped = torch.tensor([torch.equal(a, b) for a, b in zip(old.flip(axis), new, strict=True)])
    assert (same | flipped).all()
    assert 8 <= int(flipped.sum()) <= 32


def test_a_quarter_turn_is_exact(monkeypatch):
    monkeypatch.setattr(geometry, "_either", lambda n: torch.ones(n))
    square = rng.integers(0, 256, (30, 6, 6), dtype=np.uint8)
    turned, plain = (
        batch(view(f"augment={w}", x=square, y=LABELS[:30]).training(), n=20).given["x"].x
        for w in ("rotate90", "none")
    )
    assert torch.equal(turned, plain.rot90(1, (2, 3)))
    large = batch(view("augment=scale100", x=square, y=LABELS[:30]).training(), n=20)
    assert not torch.equal(large.given["x"].x, plain)


def test_motions_compose_as_one_resampling(monkeypatch):
    monkeypatch.setattr(geometry, "_either", lambda n: torch.ones(n))
    square = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    both, once = (
        batch(view(f"augment={w}", x=square, y=LABELS[:30]).training(), n=20).given["x"].x
        for w in ("rotate30,rotate60", "rotate90")
    )
    assert (both - once).abs().max() <= 1


def test_pictures_given_pictures_move_alike_and_only_inputs_are_spoilt(tmp_path):
    target = 255 - PICTURES
    np.savez(tmp_path / "pairs.npz", x=PICTURES, y=target)
    rows = (
        data.open(tmp_path / "pairs.npz", "augment=shift2,rotate20,flip")
        .view(target="y")
        .training()
    )
    got = batch(rows)
    assert (got.x + got.given["x"].x - 255).abs().max() <= 1
    spoilt = data.open(tmp_path / "pairs.npz", "augment=noise5").view(target="y").training()
    plain = data.open(tmp_path / "pairs.npz").view(target="y").training()
    assert torch.equal(batch(spoilt).x, batch(plain).x)
    assert not torch.equal(batch(spoilt).given["x"].x, batch(plain).given["x"].x)


def test_support_is_kept_and_a_lone_picture_is_noted():
    found = data.open("digits", "augment=rotate15,scale20,noise20,salt10,blur1").view()
    x = batch(found.training(), n=200).x
    assert torch.equal(x, x.round())
    assert (x.min(), x.max()) == (0, 16)
    assert "data.augment" in found.notes[-1]
    assert not view("augment=flip").augment.notes
    assert " y " in view("augment=flip", y=LABELS / 2).notes[-1]
    drawn = data.open("digits+binarise", "augment=shift1").view().training()
    assert set(batch(drawn).x.unique().tolist()) == {0.0, 1.0}


def test_spoilt_values_have_the_law_their_help_says():
    space = data.open("digits").view().space
    x = torch.full((400, 1, 8, 8), 8.0)
    torch.manual_seed(0)
    assert (corruption.noise(x, space, 10) - x).std() == pytest.approx(1.6, rel=0.02)
    salted = corruption.salt(x, space, 20)
    assert (salted == 0).float().mean() == pytest.approx(0.1, abs=0.01)
    assert (salted == 16).float().mean() == pytest.approx(0.1, abs=0.01)
    point = torch.zeros(400, 2, 15, 15)
    point[:, 1, 7, 7] = 1
    blurred = corruption.blur(point, space, 1.5)
    assert not blurred[:, 0].any()
    assert torch.allclose(blurred[:, 1].sum((1, 2)), torch.ones(400), atol=1e-4)
    assert torch.allclose(blurred, blurred.flip(2), atol=1e-6)
    colour = data.open(rng.integers(0, 256, (60, 3, 4, 4), dtype=np.uint8)).view().space
    hidden = corruption.channels(torch.full((500, 3, 4, 4), 300.0), colour, 25) != 300
    assert torch.equal(hidden.all((2, 3)), hidden.any((2, 3)))
    assert hidden.float().mean() == pytest.approx(0.25, abs=0.04)


def test_noise_on_real_inputs_is_measured_by_their_spread():
    x = rng.normal(0, [1, 100], (500, 2))
    y = rng.normal(size=500)
    rows = data.open((x, y), "augment=noise10").view(target="y").training()
    gap = batch(rows, n=400).given["x"].x - batch(rows, train=False, n=400).given["x"].x
    np.testing.assert_allclose(gap.std(0), [0.1, 10], rtol=0.2)
    assert torch.equal(batch(rows).x, batch(rows, train=False).x)


@pytest.mark.parametrize(
    ("what", "word", "sentence"),
    [
        ("digits", "rotat10", "did you mean rotate"),
        ("digits", "rotate", "must be written rotate5"),
        ("digits", "flip3", "must be written flip"),
        ("digits", "shift0", "must be written shift5"),
        ("digits", "channels10", "images of several channels"),
        ("iris", "rotate10", "needs images"),
        ("iris", "blur1", "needs images"),
    ],
)
def test_words_that_do_not_fit(what, word, sentence):
    with pytest.raises(UsageError, match=sentence):
        data.open(what, f"augment={word}").view(target="label")


def test_a_model_proposes_and_the_user_decides():
    suit = Defaults(None, None, ("augment=shift1", "balance=true"))
    plain = data.open("digits")
    source, proposed = plain.with_defaults(*suit.data)
    assert proposed == ["augment=shift1", "balance=true"]
    assert source.view(target="label").augment
    assert not plain.view(target="label").augment
    for setting in ("augment=none", "augment=flip"):
        source, proposed = data.open("digits", setting).with_defaults(*suit.data)
        assert proposed == ["balance=true"]
        assert source.options.augment == (setting.partition("=")[2],)
    assert not data.open("digits", "augment=none").view(target="label").augment
    assert (
        plain.with_defaults("rows=10")[1] == []
    )  # what changes the data is not for a model to propose
    assert plain.fingerprint == source.fingerprint


def test_a_run_remembers_what_was_proposed_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    owner = find("predict.mlp")
    suit = owner.defaults
    monkeypatch.setattr(
        owner,
        "defaults",
        classmethod(
            lambda cls, space: replace(suit(space), data=("augment=shift1,noise5", "balance=true"))
        ),
    )
    settings = ("net.width=8", "data.rows=200")
    once, twice = (
        start("predict.mlp", "digits", *settings, out=tmp_path / name)
        for name in ("once", "twice")
    )
    assert once.metadata["data"]["overrides"] == [
        "rows=200",
        "augment=shift1,noise5",
        "balance=true",
    ]
    assert list(once.train("12steps"))
    assert list(twice.train("5steps"))
    assert list(load(tmp_path / "twice").train("12steps"))
    tensors = [load_file(tmp_path / name / "last.safetensors") for name in ("once", "twice")]
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    plain = start("predict.mlp", "digits", *settings, "data.augment=none", out=tmp_path / "plain")
    assert plain.metadata["data"]["overrides"] == ["rows=200", "augment=none", "balance=true"]


def test_conditions_are_named_as_the_event_is_not():
    found = Augment(("shift1",), view().space)
    assert list(found.sample(3)) == ["x"]
    assert EVENT in Augment(("shift1",), data.open("digits").view().space).sample(3)


@pytest.mark.parametrize("motions", [["shift3"], ["rotate30"], ["flip"], ["shift3", "rotate20"]])
def test_points_move_with_the_image(motions):
    image = Space(kind="real", shape=(1, 21, 31), name="image")
    space = Space(kind="real", shape=(3,), given={"image": image})
    torch.manual_seed(0)
    changes = Augment(motions, space, (2, 0)).sample(6)
    y, x = torch.meshgrid(torch.arange(21.0), torch.arange(31.0), indexing="ij")
    spot = (-((x - 18).square() + (y - 12).square()) / 4).exp().expand(6, 1, -1, -1)
    moved = changes["image"](spot)[:, 0]
    weight = moved / moved.sum((1, 2), keepdim=True)
    centre = torch.stack([(weight * place).sum((1, 2)) for place in (x, y)], 1)
    found = changes[EVENT](torch.tensor([[12.0, 7.0, 18.0]]).repeat(6, 1))
    torch.testing.assert_close(found[:, [2, 0]], centre, atol=0.03, rtol=0)
    assert (found[:, 1] == 7).all()
    assert (found[:, [2, 0]] - torch.tensor([18.0, 12.0])).abs().max() > 1


def test_points_are_two_targets():
    with pytest.raises(UsageError, match=r"\b1\b"):
        data.open("digits", "points=x")
    source = data.open("digits", "points=a,b", "augment=shift1")
    with pytest.raises(UsageError, match="'a'"):
        source.view(target="label")
