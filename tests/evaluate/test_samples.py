"""What samples show of a model: separable or not, covering, precise, copied, collapsed."""

import math

import pytest
import small_data
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from monge.core.abilities import CanSample
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.gaussian_modes import GaussianModes
from monge.core.model import Model
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate import c2st as twosample
from monge.evaluate.c2st import c2st, interval
from monge.evaluate.coverage import duplicates, memorised, modes, prdc
from monge.evaluate.suite import EvaluationContext, all_metrics, paired, skipped_metrics
from monge.run.diagnostics import diagnose_samples, oscillation

SPACE = Space(kind="real", shape=(2,), rows=600)
CENTRES = torch.tensor([[-3.0, 0.0], [3.0, 0.0]]).double()


def normal(n: int, seed: int, dims: int = 2) -> Tensor:
    return torch.randn(n, dims, generator=make_generator(seed), dtype=torch.float64)


class Puppet(Model, CanSample):
    """Samples from a given function."""

    events = {"real"}

    def __init__(self, sampler):
        super().__init__(Puppet.Config(), SPACE)
        self.sampler = sampler

    def loss(self, batch):
        return {}

    def sample(self, n, given=None, options=None, generator=None):
        return self.sampler(n)

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def test_a_classifier_separates_different_distributions_and_not_equal_ones():
    same, apart = c2st(normal(600, 0), normal(600, 1)), c2st(normal(600, 0), normal(600, 1) + 1)
    low, high = interval(same)
    assert low < 0.5 < high
    assert interval(apart)[0] > 0.6
    # two normals a distance 1 apart on both axes: the best accuracy is Phi(sqrt 2 / 2)
    best = 0.5 * (1 + math.erf(math.sqrt(2) / 2 / math.sqrt(2)))
    assert apart.value == pytest.approx(best, abs=0.05)
    with pytest.raises(DataError, match=r"\b5 rows\b.*\b20\b"):
        c2st(normal(5, 0), normal(50, 1))


def test_each_half_is_classified_by_a_network_that_saw_the_other(monkeypatch):
    """Two networks side by side learn what each would learn alone, row for row."""
    monkeypatch.setattr(twosample, "STEPS", 40)
    x, y = normal(60, 0).float().unflatten(0, (2, 30)), normal(60, 1).float().unflatten(0, (2, 30))
    found = twosample.cross_predictions(x, y + 1, seed=3)
    rows, labels = torch.cat([x, y + 1], 1), torch.arange(60) < 30
    torch.manual_seed(3)
    nets = [twosample.NET.build(2, 1) for _ in range(2)]
    picks = torch.randint(60, (40, 2, twosample.BATCH))
    for half, net in enumerate(nets):
        mean, scale = rows[half].mean(0), rows[half].std(0)
        adam = torch.optim.AdamW(net.parameters(), twosample.RATE, weight_decay=0.01)
        for pick in picks[:, half]:
            adam.zero_grad()
            logit = net((rows[half][pick] - mean) / scale)[:, 0]
            binary_cross_entropy_with_logits(logit, labels[pick].float()).backward()
            adam.step()
        logits = net((rows[1 - half] - mean) / scale)[:, 0]
        sure = logits.abs() > 1e-3
        assert torch.equal(found[half][sure], ((logits > 0) == labels)[sure])
        assert sure.double().mean() > 0.9


def by_hand(real: Tensor, fake: Tensor, k: int) -> dict[str, float]:
    """The definitions, one point at a time."""

    def radius(points: Tensor, i: int) -> float:
        return sorted((points - points[i]).norm(dim=1).tolist())[k]

    reach, span = ([radius(side, i) for i in range(len(side))] for side in (real, fake))
    apart = torch.cdist(real, fake).tolist()
    inside = [[apart[i][j] < reach[i] for j in range(len(fake))] for i in range(len(real))]
    columns = list(zip(*inside, strict=True))
    return {
        "precision": sum(map(any, columns)) / len(fake),
        "recall": sum(
            any(apart[i][j] < span[j] for j in range(len(fake))) for i in range(len(real))
        )
        / len(real),
        "density": sum(map(sum, columns)) / (k * len(fake)),
        "coverage": sum(map(any, inside)) / len(real),
    }


@pytest.mark.parametrize("k", [1, 3])
def test_precision_recall_density_and_coverage_are_as_published(k):
    real, fake = normal(30, 0), normal(25, 1) * 0.8 + 0.5
    found = prdc(real, fake, k)
    assert {name: score.value for name, score in found.items()} == pytest.approx(
        by_hand(real, fake, k)
    )


def test_the_four_metrics_separate_collapse_from_blur():
    real = normal(500, 0)
    ideal, narrow = prdc(real, normal(500, 1)), prdc(real, normal(500, 1) * 0.01)
    wide = prdc(real, normal(500, 1) * 20)
    assert ideal["density"].value == pytest.approx(1.0, abs=0.1)
    assert ideal["coverage"].value == pytest.approx(1 - 2**-5, abs=0.03)
    assert narrow["recall"].value < 0.1 < 0.9 < narrow["precision"].value
    assert wide["precision"].value < 0.1 < 0.9 < wide["recall"].value


def test_copies_and_duplicates_are_counted():
    train, held = normal(800, 0), normal(400, 1)
    fresh_draws, copies = normal(400, 2), train[:400] + 1e-4 * normal(400, 3)
    assert memorised(fresh_draws, held, train).value < 0.05
    assert memorised(copies, held, train).value > 0.95
    assert duplicates(fresh_draws, held).value < 0.05
    assert duplicates(normal(20, 4).repeat(20, 1), held).value == 1.0


def test_modes_are_found_where_samples_are():
    density = GaussianModes(CENTRES, 0.1)
    x = torch.cat([CENTRES[:1] + 0.1 * normal(90, 0), CENTRES[1:] + 5 * 0.1 * torch.ones(10, 2)])
    reported = modes(x, density)
    assert (reported["modes_found"].value, reported["modes_found"].unit) == (1, "of 2")
    assert reported["within_4_sigma"].value == pytest.approx(0.9, abs=0.02)


def names(sampler, density=None) -> set[str]:
    held, train = (small_data.Rows(Batch(normal(n, seed))) for n, seed in ((300, 1), (600, 2)))
    return {finding.name for finding in diagnose_samples(Puppet(sampler), held, train, density)}


def test_diagnostics_name_what_samples_show():
    train = normal(600, 2)
    assert names(lambda n: normal(n, 5)) == set()
    assert "mode collapse" in names(lambda n: 0.01 * normal(n, 5))
    assert names(lambda n: 30 * normal(n, 5)) == {"implausible samples"}
    assert names(lambda n: train[torch.arange(n) % 600]) >= {"memorisation"}
    assert "duplicates" in names(lambda n: normal(50, 5)[torch.arange(n) % 50])
    missing = GaussianModes(CENTRES, 0.5)
    assert "mode collapse" in names(lambda n: CENTRES[0] + 0.5 * normal(n, 5), missing)


def course(values: list[float]) -> list[dict]:
    return [{"held_out": {"value": value, "kind": "distance", "stderr": 0.01}} for value in values]


def test_oscillation_differs_from_noise_and_from_progress():
    steady = [1 / (1 + k) for k in range(16)]
    noise = [0.02 + 0.004 * (-1) ** k for k in range(16)]
    swings = [1.0, 0.5, 0.2, 0.4] * 2 + [0.3, 2.0] * 4
    assert oscillation(course(steady)) == oscillation(course(noise)) == []
    assert oscillation(course(swings)[:6]) == []
    (reported,) = oscillation(course(swings))
    assert reported.name == "oscillation"
    assert " 0.2 " in reported.sentence


def test_evaluation_prints_them_with_real_rows_beside():
    rows, others = (small_data.Rows(Batch(normal(400, seed).float())) for seed in (1, 2))
    known = EvaluationContext(density=GaussianModes(CENTRES, 1.0))
    found = all_metrics(Puppet(lambda n: normal(n, 3).float()), rows, others, known=known)
    for name in ("c2st", "precision", "recall", "density", "coverage"):
        assert found[name].value == pytest.approx(found[f"{name}_of_real_rows"].value, abs=0.12)
    for name in ("mmd", "sliced_wasserstein_2", "sinkhorn_divergence"):
        reference = found[f"{name}_of_real_rows"]
        assert abs(found[name].value - reference.value) < 4 * reference.stderr, name
    assert {"memorised", "duplicates", "modes_found", "within_4_sigma"} <= set(found)
    assert found["memorised_of_real_rows"].value == 0.01
    reported = {name: (score, real) for name, score, real in paired(found)}
    assert reported["modes_found"] == (found["modes_found"], found["modes_found_of_real_rows"])
    assert reported["samples_compared"][1] is None
    assert not any(name.endswith("_of_real_rows") for name in reported)


def test_metrics_that_need_more_rows_are_reported_as_skipped():
    few = small_data.Rows(Batch(normal(12, 1).float()))
    model = Puppet(lambda n: normal(n, 3).float())
    found = all_metrics(model, few, few)
    assert "energy_distance" in found
    assert "mmd" not in found
    (reported,) = skipped_metrics(model, few)
    assert "12 rows" in reported.sentence
    assert skipped_metrics(model, small_data.Rows(Batch(normal(20, 1).float()))) == []


def test_a_model_that_samples_its_training_rows_is_caught():
    """No distance sees it; the nearest training rows do."""
    rows, others = (small_data.Rows(Batch(normal(200, seed).float())) for seed in (1, 2))
    train = others.all.x
    found = all_metrics(Puppet(lambda n: train[torch.arange(n) % 200]), rows, others)
    assert found["memorised"].value > 0.9
    assert found["c2st"].value < 0.6
    assert found["mmd"].value < found["mmd_of_real_rows"].value + 1e-3


def test_samples_that_are_not_finite_are_reported_and_spoil_nothing_else():
    from monge.evaluate.suite import unbounded

    x, space = torch.zeros(4, 3), Space(kind="real", shape=(3,))
    assert not unbounded(x, space)
    x[1, 2] = torch.inf
    assert unbounded(x, space)["samples_not_finite"].value == 0.25
