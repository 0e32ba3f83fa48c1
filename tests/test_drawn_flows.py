"""What a fit draws of flows: a density beside its data, enlargements, codes under other names."""

import numpy as np
import pytest
import torch

import monge
from monge import data
from monge.core.error import DataError
from monge.drawing import draw
from monge.show.density import write_density


def test_a_density_holds_its_mass_on_the_picture(tmp_path):
    rows = np.random.default_rng(0).normal(size=(5000, 2)) * [1.0, 3.0] + [5.0, 0.0]
    law = torch.distributions.Normal(torch.tensor([5.0, 0.0]), torch.tensor([1.0, 3.0]))
    mass = write_density(tmp_path / "density.png", lambda x: law.log_prob(x).sum(1), rows)
    assert 0.97 < mass < 1.0
    assert (tmp_path / "density.png").stat().st_size > 1000
    twice = write_density(tmp_path / "d.png", lambda x: law.log_prob(x).sum(1) + 0.7, rows)
    assert twice > 1.9


@pytest.mark.parametrize(("model", "what", "given", "names"), [
    ("coupling", "moons", (), {"density.png", "samples.png"}),
    ("superres", "digits+low2", (), {"enlargements.png"}),
    ("attribute", "digits", ("label",), {"transfers.png"})],
    ids=["coupling", "superres", "attribute"])
def test_a_fit_draws_what_can_be_seen(model, what, given, names, tmp_path):
    words = ["layers=2"] if model == "coupling" else ["steps=1", "width=8"]
    run = monge.fit(model, what, *words, "data.rows=300", given=given, budget="2steps",
                    out=tmp_path / "run")
    draw(run)
    assert names <= {path.name for path in (run.folder / "pictures").iterdir()}
    if model == "superres":
        found = run.evaluate()
        assert found["small_picture_error"].value <= 0.5 / 16
        assert found["psnr"].unit == "dB"


def test_small_pictures_are_means_of_squares():
    source = data.open("digits+low2")
    rows = source.view(None, (), source.target).rows("train").batch(torch.arange(5))
    means = torch.nn.functional.avg_pool2d(rows.x, 2).round()
    assert torch.equal(rows.given["source"].x, means)
    with pytest.raises(DataError, match=r"\+low3 shrinks pictures 3 times, and these are 8x8"):
        data.open("digits+low3")
