"""What a fit draws of flows: a density beside its data, enlargements, codes under other names."""

import numpy as np
import pytest
import torch

import monge
from monge import data, encoding
from monge.cli.main import attempt
from monge.core.error import DataError, WordError
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
    ("attribute", "digits", ("label",), {"transfers.png"}),
    ("cflow", "digits+edges", (), {"transfers.png", "translations.png"})],
    ids=["coupling", "superres", "attribute", "cflow"])
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


def test_codes_move_to_other_conditions(tmp_path, capsys):
    run = monge.fit("attribute", "digits", "steps=1", "width=8", "data.rows=300",
                    given=("label",), budget="2steps", out=tmp_path / "run")
    sheet = encoding.transfer(run, lines=3)
    grid = sheet.x.unflatten(0, (3, 4))
    for row in range(3):  # under its own conditions a row is itself
        assert torch.equal(grid[row, 0], grid[row, 1 + row])
    words = ["encode", str(run.folder), "-o", str(tmp_path / "as3.npz"), "-n", "5"]
    assert attempt([*words, "--transfer", "--given", "label=3", "-q"]) == 0
    assert np.load(tmp_path / "as3.npz")["x"].shape == (10, 8, 8)
    assert attempt([*words, "--given", "label=3"]) == 2
    assert "add --transfer" in capsys.readouterr().err


def test_a_law_without_conditions_has_nothing_to_transfer(tmp_path):
    run = monge.fit("coupling", "moons", "layers=2", "data.rows=300", budget="2steps",
                    out=tmp_path / "run")
    with pytest.raises(WordError, match="is not CanTransfer; use"):
        encoding.transfer(run)


def test_small_pictures_are_means_of_squares():
    source = data.open("digits+low2")
    rows = source.view(None, (), source.target).rows("train").batch(torch.arange(5))
    means = torch.nn.functional.avg_pool2d(rows.x, 2).round()
    assert torch.equal(rows.given["source"].x, means)
    with pytest.raises(DataError, match=r"\+low3 shrinks pictures 3 times, and these are 8x8"):
        data.open("digits+low3")
