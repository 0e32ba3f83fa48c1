"""The tightness of a bound, on a model whose evidence is known."""

import json
import math

import pytest
import small_data
import torch
from torch.distributions import Normal

import monge
from monge.cli._output import Console
from monge.cli.evaluate import format_bound_curve
from monge.cli.main import attempt
from monge.core.abilities import HasLikelihood, HasPosterior, Likelihood
from monge.core.batch import Batch
from monge.core.config import Config
from monge.core.errors import DataError
from monge.core.model import Model
from monge.core.rng import keyed_normal, seed_of
from monge.core.space import Space
from monge.evaluate.bounds import tightness
from monge.evaluate.disentangle import beta_vae_score, dci, mutual_information_gaps
from monge.evaluate.sharpness import laplacian_variance, sharpness

NOISE = 0.5


class Linear(Model, HasLikelihood, HasPosterior):
    """x = z + noise with z ~ N(0, 1): p(x) = N(0, 1 + NOISE^2), and q is N(x / 2, 0.8^2)."""

    events = {"real"}

    class LikelihoodConfig(Config):
        samples: int = 1

    def __init__(self):
        super().__init__(Model.Config(), Space(kind="real", shape=(1,)))
        self.latent = Space(kind="real", shape=(1,))

    def loss(self, batch):
        return {}

    def log_joint(self, batch, z):
        return self.log_prior(batch, z) + Normal(z[..., 0], NOISE).log_prob(batch.x[:, 0])

    def log_prior(self, batch, z):
        return Normal(0.0, 1.0).log_prob(z[..., 0])

    def log_posterior(self, batch, z):
        return Normal(batch.x[:, 0] / 2, 0.8).log_prob(z[..., 0])

    def infer(self, batch, noise):
        return batch.x / 2 + 0.8 * noise

    def likelihood(self, batch, options=None, generator=None):
        noise = keyed_normal(batch.rows, (options.samples, 1), seed_of(generator)).transpose(0, 1)
        z = self.infer(batch, noise)
        weights = self.log_joint(batch, z) - self.log_posterior(batch, z)
        value = weights.logsumexp(0) - math.log(options.samples)
        if options.samples == 1:
            return Likelihood(value, "bound")
        return Likelihood(value, "bound", (weights - value).exp().std(0) / options.samples**0.5)

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


@pytest.fixture(scope="module")
def curve():
    g = torch.Generator().manual_seed(0)
    x = math.hypot(1, NOISE) * torch.randn(400, 1, generator=g, dtype=torch.float64)
    return tightness(Linear(), small_data.Rows(Batch(x))), x


def test_the_evidence_is_integrated(curve):
    found, x = curve
    own = x[torch.linspace(0, 399, 16).long(), 0]
    known = Normal(0.0, math.hypot(1, NOISE)).log_prob(own)
    assert abs(found.evidence.value - float(known.mean())) < 1e-5
    assert found.rows == 16


def test_the_bound_climbs_to_the_evidence_within_its_error(curve):
    rungs = curve[0].rungs
    assert [rung.samples for rung in rungs] == [1, 10, 100, 1000]
    values = [rung.score.value for rung in rungs]
    assert values[0] < values[-1]
    assert abs(values[-1] - curve[0].evidence.value) < 5 * rungs[-1].error
    assert values[0] < curve[0].evidence.value - 0.05
    assert rungs[0].error is None
    # E w^2 = integral of p(x,z)^2 / q(z|x) gives the share of samples that count, in closed form
    x = curve[1][torch.linspace(0, 399, 16).long()]
    z = torch.linspace(-12, 12, 4001, dtype=torch.float64)[:, None, None].expand(-1, 16, 1)
    model, batch = Linear(), Batch(x)
    square = (2 * model.log_joint(batch, z) - model.log_posterior(batch, z)).exp().sum(0)
    plain = model.log_joint(batch, z).exp().sum(0)
    share = plain.square() / square * (z[1, 0, 0] - z[0, 0, 0])
    assert abs(rungs[-1].effective / 1000 - float(share.mean())) < 0.03
    assert rungs[0].effective == 1


def test_exact_models_have_no_curve():
    model = Linear()
    model.LikelihoodConfig = HasLikelihood.LikelihoodConfig
    assert tightness(model, small_data.Rows(Batch(torch.zeros(4, 1)))) is None


def test_the_gap_of_mutual_information_is_known_at_its_ends():
    g = torch.Generator().manual_seed(1)
    v, w = torch.randint(0, 4, (2, 4000), generator=g)
    own = torch.stack([v + 0.1 * torch.rand(4000, generator=g), w.double()], 1)
    both = torch.stack([v.double(), v.double(), w.double()], 1)
    assert mutual_information_gaps(own, {"v": v, "w": w})["mig"].value > 0.98
    shared = mutual_information_gaps(both, {"v": v, "w": w})
    assert abs(shared["v"].value) < 1e-9
    assert shared["w"].value > 0.98
    turned = own @ torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    assert mutual_information_gaps(turned, {"v": v, "w": w})["mig"].value < 0.2
    with pytest.raises(DataError, match=r"\(4000, 1\)"):
        mutual_information_gaps(own[:, :1], {"v": v})


def test_scores_of_disentanglement_are_known_at_their_ends():
    g = torch.Generator().manual_seed(1)
    v, w, u = torch.randint(0, 4, (3, 2000), generator=g)
    factors = {"v": v, "w": w, "u": u}
    own = torch.stack([v, w, u], 1) + 0.1 * torch.rand(2000, 3, generator=g)
    noise = torch.randn(2000, 3, generator=g)
    turned = own @ torch.linalg.qr(torch.randn(3, 3, generator=g))[0]
    apart, mixed, lost = (dci(codes, factors) for codes in (own, turned, noise))
    for name in ("disentanglement", "completeness"):
        values = [found[f"dci_{name}"].value for found in (apart, mixed, lost)]
        assert values[0] > 0.95
        assert values[0] > values[1] + 0.2
        assert values[2] < 0.1
    assert apart["dci_informativeness"].value > 0.99
    assert abs(lost["dci_informativeness"].value - 0.25) < 0.05
    assert beta_vae_score(own, factors).value > 0.99
    assert abs(beta_vae_score(noise, factors).value - 1 / 3) < 0.07


def test_sharpness_is_one_for_equal_images_and_falls_with_blur():
    x = torch.randn(200, 1, 8, 8).cumsum(2)
    blurred = torch.nn.functional.avg_pool2d(x, 3, 1, 1)
    assert sharpness(x, x).value == 1
    assert sharpness(blurred, x).value < 0.5
    assert sharpness(x + torch.randn_like(x), x).value > 1.3
    error = sharpness(x[:100], x[100:])
    assert abs(error.value - 1) < 5 * error.stderr
    ramp = torch.arange(5.0)[None, None, :, None].square().expand(1, 1, 5, 5)
    assert float(laplacian_variance(ramp)) == 0  # a Laplacian of 2 everywhere


def test_evaluate_prints_the_curve_and_the_evidence(tmp_path, capsys):
    monge.fit(
        "vae",
        "moons",
        "latent=1",
        "net.width=8",
        "data.rows=100",
        budget="5steps",
        out=tmp_path / "run",
    )
    assert attempt(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    tightness_json = json.loads(capsys.readouterr().out)["tightness"]
    one, *_, many = tightness_json["rungs"]
    assert (one["samples"], one["kind"], many["samples"]) == (1, "bound", 1000)
    assert one["value"] <= tightness_json["evidence"]["value"] + 5 * one["stderr"]
    assert abs(many["value"] - tightness_json["evidence"]["value"]) < 5 * many["error"] + 1e-3


def test_people_read_the_curve_as_a_table(curve):
    text = format_bound_curve(Console(False, False, False), curve[0])
    assert "16 rows" in text
    assert f"{curve[0].evidence.value:.4f}" in text
    assert all(f"{rung.samples}" in text for rung in curve[0].rungs)
