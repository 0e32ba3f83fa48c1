"""Figures of flows: a density beside its data, enlarged images, codes under other conditions."""

import math

import numpy as np
import pytest
import torch

import monge
from monge.cli.main import attempt
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.data import loading as data
from monge.evaluate.image_to_image import similarity
from monge.plot import animation
from monge.plot.density import write_density
from monge.run import latent
from monge.run.figures import write_figures


def test_the_plotted_density_integrates_to_one(tmp_path):
    rows = np.random.default_rng(0).normal(size=(5000, 2)) * [1.0, 3.0] + [5.0, 0.0]
    normal = torch.distributions.Normal(torch.tensor([5.0, 0.0]), torch.tensor([1.0, 3.0]))
    mass = write_density(tmp_path / "density.png", lambda x: normal.log_prob(x).sum(1), rows)
    assert 0.97 < mass < 1.0
    assert (tmp_path / "density.png").stat().st_size > 1000
    twice = write_density(tmp_path / "d.png", lambda x: normal.log_prob(x).sum(1) + 0.7, rows)
    assert twice > 1.9


def test_an_animation_of_points_shows_their_positions(tmp_path):
    space = Space(kind="real", shape=(2,), low=(0.0, 0.0), high=(1.0, 1.0))
    corner = torch.tensor([[0.99, 0.99], [math.nan, 0.5]]).expand(2, 2)
    shown = animation.heights(corner, space)
    assert shown.shape == (64, 64)
    places = shown.nonzero()
    assert places[0].tolist() == [5]  # upwards, and a margin from the edge
    assert places[1].tolist() == [58]
    states = [torch.rand(50, 2) for _ in range(4)]
    assert animation.write(tmp_path / "f.gif", states, space) == 4
    assert "▀" in next(animation.frames(states, space))


@pytest.mark.parametrize(
    ("model", "what", "given", "names"),
    [
        ("coupling", "moons", (), {"density.png", "samples.png"}),
        ("superres", "digits+low2", (), {"enlargements.png"}),
        ("attribute", "digits", ("label",), {"transfers.png"}),
        ("cflow", "digits+edges", (), {"transfers.png", "translations.png"}),
    ],
    ids=["coupling", "superres", "attribute", "cflow"],
)
def test_a_fit_writes_the_figures_of_its_model(model, what, given, names, tmp_path):
    overrides = ["layers=2"] if model == "coupling" else ["steps=1", "width=8"]
    run = monge.fit(
        model,
        what,
        *overrides,
        "data.rows=300",
        given=given,
        budget="2steps",
        out=tmp_path / "run",
    )
    write_figures(run)
    assert names <= {path.name for path in (run.folder / "figures").iterdir()}
    if model == "superres":
        found = run.evaluate()
        assert found["low_resolution_error"].value <= 0.5 / 16
        assert found["psnr"].unit == "dB"
        assert -1 <= found["ssim"].value <= 1
        assert found["rows_scored_per_second"].value > 0


def test_similarity_is_one_for_equal_images_and_decreases_with_noise():
    x = (255 * torch.rand(4, 1, 12, 12, generator=make_generator(0))).double()
    assert torch.equal(similarity(x, x, 255.0), torch.ones(4).double())
    noise = torch.randn(x.shape, generator=make_generator(1)).double()
    near, far = (similarity(x, x + scale * noise, 255.0) for scale in (10, 100))
    assert (near > far).all()
    assert (near < 1).all()
    # For constant images only the means are left.
    a, b = torch.full((1, 1, 9, 9), 100.0), torch.full((1, 1, 9, 9), 150.0)
    low = 2.55**2
    torch.testing.assert_close(
        similarity(a, b, 255.0),
        torch.tensor([(2 * 100 * 150 + low) / (100**2 + 150**2 + low)], dtype=torch.float64),
    )


def test_codes_move_to_other_conditions(tmp_path, capsys):
    run = monge.fit(
        "attribute",
        "digits",
        "steps=1",
        "width=8",
        "data.rows=300",
        given=("label",),
        budget="2steps",
        out=tmp_path / "run",
    )
    sheet = latent.transfer(run, lines=3)
    grid = sheet.x.unflatten(0, (3, 4))
    for row in range(3):  # under its own condition a row is unchanged
        assert torch.equal(grid[row, 0], grid[row, 1 + row])
    arguments = ["encode", str(run.folder), "-o", str(tmp_path / "as3.npz"), "-n", "5"]
    assert attempt([*arguments, "--transfer", "--given", "label=3", "-q"]) == 0
    assert np.load(tmp_path / "as3.npz")["x"].shape == (10, 8, 8)
    assert attempt([*arguments, "--given", "label=3"]) == 2
    assert "--transfer" in capsys.readouterr().err


def test_a_model_without_conditions_cannot_transfer(tmp_path):
    run = monge.fit(
        "coupling", "moons", "layers=2", "data.rows=300", budget="2steps", out=tmp_path / "run"
    )
    with pytest.raises(UsageError, match="transfer"):
        latent.transfer(run)


def test_small_images_are_means_of_blocks():
    dataset = data.open("digits+low2")
    rows = dataset.view(None, (), dataset.target).split("train").batch(torch.arange(5))
    means = torch.nn.functional.avg_pool2d(rows.x, 2).round()
    assert torch.equal(rows.given["source"].x, means)
    with pytest.raises(DataError, match=r"\+low3.*8x8"):
        data.open("digits+low3")
