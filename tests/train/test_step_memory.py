"""The memory of a training step, estimated from shapes, for every model of the registry."""

from copy import deepcopy
from dataclasses import replace

import candidates
import pytest
import small_data
import torch
from torch import nn

from monge import registry
from monge.core.config import MAX_LAYERS
from monge.core.errors import DataError, UsageError
from monge.core.model import Model
from monge.core.train_config import TrainConfig
from monge.nn.mlp import MLP
from monge.run.run import start
from monge.run.saved import most_weights
from monge.train import step_memory as module
from monge.train.cost_estimate import FirstRows, estimate
from monge.train.optimiser import trainable_updates
from monge.train.step_memory import MemoryGauge, check_model_memory


def small_case(name):
    """A space and rows that the model supports, without a condition if it can."""
    if pairs := candidates.supported(name):
        return candidates.dataset(*pairs[0])
    return small_data.sentences()


def build(name):
    space, batch = small_case(name)
    torch.manual_seed(0)
    model_class = registry.find(name)
    model = model_class.smallest_config(space).build(space)
    return model, small_data.Rows(batch), model_class.defaults(space).train


PACKED = {"sequence.seq2seq"}
"""Models that pack rows of several lengths, for which torch knows no shapes."""


@pytest.mark.parametrize("name", [entry.name for entry in registry.entries()])
def test_the_memory_of_every_model_is_known_without_running_it(name):
    model, rows, train_config = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    train_config = replace(train_config, batch_size=64)
    cost = estimate(model, FirstRows(rows, 64), train_config, timed=False)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    in_closed_form = not any(update.params for update in trainable_updates(model, train_config)[0])
    assert cost.is_lower_bound == (name in PACKED or in_closed_form)
    if in_closed_form:  # too quick to be traced before a fit, yet it can be
        cost = estimate(build(name)[0], FirstRows(rows, 64), train_config, timed=True)
        assert not cost.is_lower_bound
    assert cost.memory >= max(2 * weights, 1)
    assert torch.equal(torch.get_rng_state(), state)
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(dict(model.state_dict()), before, **same)
    torch.testing.assert_close([*model.buffers()], buffers, **same)
    assert all(param.grad is None for param in model.parameters())


SEQUENCES = [
    entry.name
    for entry in registry.entries()
    if entry.supports_variable_length and not entry.is_predictor
]


@pytest.mark.parametrize("name", SEQUENCES)
def test_rows_of_any_length_count_as_the_longest(name):
    """On levels or, for models that take none, on the first kind that they take: a length means
    the same whatever the values are."""
    kinds = [kind for kind in small_data.SEQUENCES if kind in registry.entry(name).events]
    space, batch = small_data.sequence(kinds[0], 200)
    model_class = registry.find(name)
    torch.manual_seed(0)
    model = model_class.smallest_config(space).build(space)
    train_config = replace(model_class.defaults(space).train, batch_size=100)
    cost = estimate(model, small_data.Rows(batch), train_config, timed=False)
    full = replace(batch, length=torch.full_like(batch.length, small_data.LONGEST))
    same = estimate(model, small_data.Rows(full), train_config, timed=False)
    assert not cost.is_lower_bound
    assert cost == same


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [
        ("autoregressive.made", "real", ""),
        ("diffusion.ddpm", "levels", "label"),
        ("sequence.rnn", "real", ""),
        ("latent.vae", "binary", ""),
        ("flow.coupling", "real", ""),
        ("adversarial.wgan", "real", ""),
    ],
)
def test_the_estimate_is_near_the_peak_of_a_real_step(name, kind, given):
    """Measured on the second step, the first after data-dependent initialisation."""
    case = candidates.Subject(name, kind, given)
    trainer = case.trainer()
    cost, smaller = (
        estimate(case.build(), rows, replace(case.train_config, batch_size=n), timed=False)
        for rows, n in ((case.train, 64), (FirstRows(case.train, 16), 16))
    )
    assert smaller.memory < cost.memory
    trainer.train_step(1.0)
    left = sum(p.numel() * 4 for p in trainer.model.parameters() if p.grad is not None)
    with MemoryGauge() as gauge:
        trainer.train_step(1.0)
    assert 0.5 < cost.working / (gauge.peak + left) < 2


class Reads(Model):
    """A model with a hidden layer whose loss does with values what `use` does."""

    events = {"real"}

    def __init__(self, space, use):
        super().__init__(Reads.Config(), space)
        self.net, self.use = nn.Linear(space.dims, 8), use
        self.register_buffer("order", torch.tensor([3, 1, 2]))

    def loss(self, batch):
        return {"square": self.use(self, batch, self.net(batch.x)).square().sum(1)}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def reads(use):
    space, batch = small_data.make("real")
    model = Reads(space, use)
    return estimate(model, small_data.Rows(batch), TrainConfig(batch_size=100), timed=False)


def reject(condition):
    if condition:
        raise DataError("these rows are refused")
    return 0


PLAIN = reads(lambda model, batch, h: h)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch, h: h[: 100 + reject(not bool(batch.x.isfinite().all()))],
        lambda model, batch, h: h[: 100 + reject(bool((batch.x > 9).any()))],
        lambda model, batch, h: h[: 100 + reject(int(model.order[0]) != 3)],
        lambda model, batch, h: h[: 100 + reject(model.order.tolist() != [3, 1, 2])],
        lambda model, batch, h: h[: 100 + reject(torch.equal(model.order, model.order.flip(0)))],
        lambda model, batch, h: h[: 100 + int(batch.x.sum())],
        lambda model, batch, h: h[: 100 + reject(model.order.unique().tolist() != [1, 2, 3])],
        lambda model, batch, h: h[batch.observed_mask.all(1)],
        lambda model, batch, h: h[batch.observed_mask[:, 0].nonzero()[:, 0]],
        lambda model, batch, h: h[: 100 + reject(model.order.numpy().sum() != 6)],
        lambda model, batch, h: h[: 100 + int(batch.x.numpy().sum())],
    ],
)
def test_values_that_are_known_are_read_and_others_are_assumed(use):
    cost = reads(use)
    assert not cost.is_lower_bound
    assert PLAIN.working <= cost.working <= 3 * PLAIN.working


def test_a_copy_is_traced_like_its_source():
    """torch would copy what traces it too, and the process ended when that was freed."""

    def use(model, batch, h):
        copied = deepcopy([model.order, model.order])
        assert copied[0] is copied[1]
        assert copied[0] is not model.order
        assert copied[0].fake_mode is model.order.fake_mode
        return h[: 100 + reject(copied[0].tolist() != [3, 1, 2])]

    assert not reads(use).is_lower_bound


def test_writing_unknown_values_makes_views_unknown():
    def use(model, batch, h):
        values = torch.ones(3)
        view = values[:1]
        values.copy_(batch.x[0, :1].expand(3))
        return h[: 100 + int(view[0])]  # 0 by assumption, not the 1 that was there before

    def written(model, batch, h):
        values = torch.zeros(3)
        view = values[:1]
        values.add_(2)
        return h[: 100 + reject(int(view[0]) != 2)]

    assert not reads(use).is_lower_bound
    assert not reads(written).is_lower_bound


def test_a_loss_that_assumed_values_lead_astray_has_a_lower_bound(monkeypatch):
    monkeypatch.setattr(module, "MAX_ASSUMED_VALUES", 20)

    def lost(model, batch, h):
        return h[: 100 + reject(not bool((batch.x > -9).any()))]

    def endless(model, batch, h):
        while not bool(batch.x.sum() > 0):
            pass
        return h

    for use in (lost, endless):
        cost = reads(use)
        assert cost.is_lower_bound
        assert cost.to_dict()["is_lower_bound"]
        assert cost.memory >= cost.weights + 4 * cost.parameters
    assert "is_lower_bound" not in PLAIN.to_dict()


def test_an_error_that_no_assumption_caused_is_raised():
    with pytest.raises(DataError, match="these rows are refused"):
        reads(lambda model, batch, h: h[reject(True)])


def test_an_error_of_the_loss_is_raised_after_an_assumption_too():
    def wrong(model, batch, h):
        return h * {}[float(batch.x.sum())]

    with pytest.raises(KeyError, match=r"1\.0"):
        reads(wrong)


def test_reals_that_are_read_can_be_divided_by():
    assert not reads(lambda model, batch, h: h * (1 / float(batch.x.sum()))).is_lower_bound


def test_a_gauge_forgets_what_is_dropped():
    with MemoryGauge() as gauge:
        first = torch.zeros(1000)
        del first
        second = torch.ones(500)
        second.add_(1).view(5, 100)
    assert (gauge.peak, gauge.now) == (4000, 2000)


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        ("made", "width=1e9"),
        ("made", "width=1e30"),
        ("made", "depth=1e8"),
        ("maf", "layers=1e8"),
        ("maf", "width=1e18"),
        ("nade", "width=1e10"),
    ],
)
def test_a_model_that_no_memory_holds_is_refused_before_it_is_built(model, setting, tmp_path):
    with pytest.raises(UsageError, match=r"GB|at most"):
        start(model, "moons", setting, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_memory_decides_which_models_are_refused():
    """Weights, gradients, EMA and two moments of Adam: 20 bytes for each of the weights."""
    space, _ = small_data.make("real")
    config = registry.find("made").smallest_config(space)
    count = sum(p.numel() for p in config.build(space).parameters())
    buffers = sum(b.numel() * b.element_size() for b in config.build(space).buffers())
    train_config = TrainConfig(ema_decay=0.9)
    state = torch.get_rng_state()
    check_model_memory(config, space, {}, train_config, 20 * count + 2 * buffers + 1000)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(UsageError, match="GB"):
        check_model_memory(config, space, {}, train_config, 20 * count - 1)


def test_sizes_that_spare_the_check_tell_the_weights_of_every_model():
    for entry in registry.entries():
        space, _ = small_case(entry.name)
        for config in (
            registry.find(entry.name).smallest_config(space),
            registry.find(entry.name).defaults(space).config,
        ):
            count = sum(p.numel() for p in config.build(space).parameters())
            assert count <= 20 * most_weights(config, space)


def test_layers_are_bounded():
    with pytest.raises(UsageError, match=str(MAX_LAYERS)):
        MLP.Config(depth=MAX_LAYERS + 1)


def test_a_batch_in_pieces_needs_the_memory_of_a_piece():
    model, rows, train_config = build("autoregressive.made")
    train_config = replace(train_config, batch_size=512)
    whole, cut, small = (
        estimate(model, rows, replace(train_config, **changes), timed=False).working
        for changes in ({}, {"accumulate": 2, "shards": 4}, {"batch_size": 64})
    )
    assert cut == small < whole
