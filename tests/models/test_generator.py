"""The Sinkhorn generator: what its divergence is in the mean, its gradient, its two players."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models._generator import RowCoordinates
from monge.models.transport.sinkhorn_generator import SinkhornGenerator
from monge.prob.divergence import sinkhorn_divergence
from monge.solve.transport.exact import sliced
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

REAL = Space(kind="real", shape=(2,), rows=1000)
LEVELS = Space(kind="levels", shape=(1, 2, 2), size=5, rows=1000)
LABEL = {"label": Space(kind="label", size=3)}


def built(space: Space = REAL, **settings: object) -> SinkhornGenerator:
    torch.manual_seed(0)
    return replace(SinkhornGenerator.smallest_config(space), **settings).build(space).double()


def normal(n: int, seed: int) -> Tensor:
    return torch.randn(n, 2, generator=make_generator(seed), dtype=torch.float64)


def identity(model: SinkhornGenerator) -> SinkhornGenerator:
    """A generator of standard normal samples."""
    model.generate = lambda z, context, truncation=1.0: z
    return model


def mean_of(model: SinkhornGenerator, shift: float = 0.0, count: int = 40) -> Tensor:
    torch.manual_seed(1)
    return torch.stack([model.divergence(Batch(normal(32, i) + shift)) for i in range(count)])


def test_the_divergence_of_equal_distributions_is_zero_in_the_mean_and_the_plain_cost_is_not():
    same, apart = mean_of(identity(built())), mean_of(identity(built()), 1.0)
    error = same.std() / 40**0.5
    assert abs(same.mean()) < 4 * error
    assert apart.mean() > 20 * error
    plain = mean_of(identity(built(debias="none")))
    assert plain.mean() > 20 * error
    for power in (1.0, 2.0):
        fields = {"debias": "divergence", "power": power}
        alike, away = mean_of(identity(built(**fields))), mean_of(identity(built(**fields)), 1.0)
        assert 0 < alike.mean() < away.mean() / 2  # biased by small batches


def test_the_divergence_and_the_power_are_those_of_the_definition():
    x, noise = normal(16, 0), normal(16, 1)
    model = identity(built(debias="divergence", power=1.0, epsilon=0.2))
    model.noise = lambda n, generator=None: noise
    y, x = model.real(Batch(noise)), model.real(Batch(x))
    model.generate = lambda z, context, truncation=1.0: y
    epsilon = 0.2 * float(torch.cdist(x, y).mean())
    due = sinkhorn_divergence(x, y, epsilon, "euclidean", relative=False, tolerance=1e-9)
    assert float(model.divergence(Batch(normal(16, 0)))) == pytest.approx(float(due), abs=2e-3)


def test_the_plain_cost_is_lower_for_a_distribution_that_shrinks():
    """Which is why samples of it are too close to the mean; the divergence is not fooled."""

    def at(size: float, debias: str) -> float:
        model = built(debias=debias, epsilon=0.5)
        model.generate = lambda z, context, truncation=1.0: size * z
        return mean_of(model).mean().item()

    assert at(0.6, "none") < at(1.0, "none")
    assert at(0.6, "pairs") > at(1.0, "pairs")


def test_the_gradient_is_that_of_differences(monkeypatch):
    monkeypatch.setattr("monge.models.transport.sinkhorn_generator.TOLERANCE", 1e-12)
    model, batch = built(epsilon=0.5), Batch(normal(16, 0))
    fixed = model.noise(16, make_generator(2))
    model.noise = lambda n, generator=None: fixed
    model.spread = lambda costs: 2.0
    bias = model.generator.out.bias
    (slope,) = torch.autograd.grad(model.divergence(batch), bias)
    values = []
    for step in (1e-4, -2e-4):
        with torch.no_grad():
            bias[0] += step
            values.append(model.divergence(batch).item())
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(slope[0].item(), rel=1e-3)


def test_features_are_moved_against_the_generator():
    model = built(cost="features")
    first, second = model.updates()
    assert (first.name, second.name) == ("generator", "features")
    assert second.every == model.config.generator_steps
    batch = Batch(normal(16, 0))
    torch.manual_seed(0)
    lowered = first.loss(batch)["transport"]
    torch.manual_seed(0)
    torch.testing.assert_close(second.loss(batch)["contrast"], -lowered)
    names = {id(p) for update in (first, second) for p in update.params}
    assert names == {id(p) for p in model.parameters()}
    assert [update.name for update in built().updates()] == ["generator"]


def test_given_labels_are_part_of_what_is_compared():
    space = replace(REAL, given=LABEL)
    model = built(space)
    model.generate = lambda z, context, truncation=1.0: z + 5 * context[:, 1:2]
    codes = torch.arange(60) % 3

    def rows(shift: Tensor) -> Batch:
        return Batch(normal(60, 3) + shift[:, None], {"label": Batch(codes)})

    torch.manual_seed(0)
    agreeing = model.divergence(rows(5.0 * (codes == 1)))
    torch.manual_seed(0)
    turned = model.divergence(rows(5.0 * (codes == 2)))  # the same events with other labels
    assert turned > agreeing + 1


def test_a_short_fit_finds_two_clusters():
    torch.manual_seed(0)
    x = 0.1 * torch.randn(600, 2) + torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[torch.arange(600) % 2]
    space = replace(REAL, rows=600)

    class Rows:
        row_bytes = 0

        def __len__(self) -> int:
            return 600

        def batch(self, index: Tensor, train: bool = False) -> Batch:
            return Batch(x[index], row=index)

    config, train_config = (
        SinkhornGenerator.defaults(space).config,
        SinkhornGenerator.defaults(space).train,
    )
    trainer = Trainer(
        config.build(space), Rows(), replace(train_config, batch_size=128, warmup=10), seed=0
    )
    before = sliced(
        trainer.model.sample(600, generator=make_generator(0)), x, generator=make_generator(1)
    )
    for _ in fit(trainer, Budget(steps=80), lambda: None):
        pass
    after = sliced(
        trainer.model.sample(600, generator=make_generator(0)), x, generator=make_generator(1)
    )
    assert after < 0.25
    assert after < before / 2


def test_levels_come_out_as_levels_and_decode_is_sample():
    model = built(LEVELS)
    x = model.sample(50, generator=make_generator(0))
    assert x.shape == (50, 1, 2, 2)
    assert set(x.flatten().tolist()) <= set(range(5))
    torch.testing.assert_close(x, model.decode(model.noise(50, make_generator(0))))


def optional_counts(n: int = 120) -> torch.Tensor:
    """A count of many values, a quarter of whose cells are empty."""
    x = torch.arange(n).double()[:, None] * 3
    x[: n // 4] = torch.nan
    return x


def fitted_coordinates() -> RowCoordinates:
    part = Space(kind="counts", name="c", optional=True, mean=(180.0,), scale=(100.0,))
    space = Space(kind="columns", shape=(1,), columns=(part,), rows=120)
    coordinates = RowCoordinates(space)
    coordinates.fit(optional_counts())
    return coordinates


def test_many_values_of_a_count_do_not_make_its_empty_cells_rarer():
    rows = fitted_coordinates().rows
    assert float(rows.log_share.exp()[rows.empty]) == pytest.approx(0.25, abs=0.01)


def test_the_shares_of_components_are_held_whatever_depends_on_z():
    coordinates = fitted_coordinates()
    rows, n = coordinates.rows, 400
    none = torch.zeros(n, coordinates.outputs)
    assert float(coordinates.share_divergence(none)) == pytest.approx(0.0, abs=1e-9)
    shifted = none.clone()
    shifted[:, : rows.components][:, rows.empty] = 1.0  # empty cells too often
    assert float(coordinates.share_divergence(shifted)) > 0.03
    share, generator, found = rows.log_share.exp(), make_generator(0), []
    for _ in range(50):  # every row is sure of its component, at the right shares in the mean
        chosen = torch.multinomial(share, n, replacement=True, generator=generator)
        decided = none.clone()
        decided[:, : rows.components] = -50.0
        decided[torch.arange(n), chosen] = 0.0
        found.append(float(coordinates.share_divergence(decided)))
    assert abs(sum(found) / len(found)) < 0.02  # 0.1 and more if the halves were one
