"""The memory of a training step, stated before a fit, for every model of the registry."""

import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import candidates
import pytest
import small_data
import torch
from torch import nn

from monge import registry
from monge.core.batch import Batch
from monge.core.config import MAX_LAYERS
from monge.core.errors import DataError, UsageError
from monge.core.model import Model
from monge.core.train_config import TrainConfig
from monge.nn.mlp import MLP
from monge.run.run import start
from monge.run.saved import most_weights
from monge.train import model_memory
from monge.train import step_memory as module
from monge.train.cost_estimate import FirstRows, estimate
from monge.train.model_memory import built_within, check_shapes
from monge.train.optimiser import trainable_updates
from monge.train.step_memory import (
    MemoryGauge,
    TooLargeError,
    bytes_of,
    peak_of,
    tried_sizes,
    widest,
)


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


@pytest.mark.parametrize("name", [entry.name for entry in registry.entries()])
def test_the_memory_of_every_model_is_known_before_its_first_step(name):
    model, rows, train_config = build(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    train_config = replace(train_config, batch_size=64)
    cost = estimate(model, FirstRows(rows, 64), train_config, timed=False)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    in_closed_form = not any(update.params for update in trainable_updates(model, train_config)[0])
    assert cost.is_lower_bound == in_closed_form
    if in_closed_form:  # too quick to be tried before a fit, yet it can be
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
def test_the_longest_rows_of_a_split_decide(name):
    """On levels or, for models that take none, on the first kind that they take: a length means
    the same whatever the values are."""
    kinds = [kind for kind in small_data.SEQUENCES if kind in registry.entry(name).events]
    space, batch = small_data.sequence(kinds[0], 64)
    model_class = registry.find(name)
    torch.manual_seed(0)
    model = model_class.smallest_config(space).build(space)
    train_config = replace(model_class.defaults(space).train, batch_size=32)
    long = torch.arange(64) % 2 == 1
    length = torch.where(long, small_data.LONGEST, batch.length.flatten().clamp_max(3))
    rows = replace(batch, x=batch.x.clamp(0, 2), length=length.reshape(batch.length.shape))
    cost = estimate(model, small_data.Rows(rows), train_config, timed=False)
    same = estimate(model, small_data.Rows(rows[long]), train_config, timed=False)
    assert not cost.is_lower_bound
    assert cost.working == same.working


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


class Uses(Model):
    """A model with a hidden layer, whose loss uses it as `use` does."""

    events = {"real"}

    def __init__(self, space, use):
        super().__init__(Uses.Config(), space)
        self.net, self.use = nn.Linear(space.dims, 8), use

    def loss(self, batch):
        return {"square": self.use(batch, self.net(batch.x)).square().sum(1)}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def stated(use, rows=800):
    space, batch = small_data.make("real")
    return estimate(
        Uses(space, use), small_data.Rows(batch), TrainConfig(batch_size=rows), timed=False
    )


def test_only_parts_of_a_batch_are_computed_unless_it_needs_little_memory(monkeypatch):
    seen = []
    whole = stated(lambda batch, h: seen.append(len(h)) or h).working
    assert seen == [100, 200, 800]
    seen.clear()
    monkeypatch.setattr(module, "LITTLE", 0)
    assert stated(lambda batch, h: seen.append(len(h)) or h).working == whole
    assert seen == [100, 200]


def test_tensors_of_pairs_of_rows_grow_with_the_square(monkeypatch):
    pairs = stated(lambda batch, h: (h @ h.T) @ h).working
    monkeypatch.setattr(module, "LITTLE", 0)
    assert stated(lambda batch, h: (h @ h.T) @ h).working == pairs > 4 * 800**2


def test_a_loss_may_read_the_values_of_its_rows():
    plain = stated(lambda batch, h: h)
    read = stated(lambda batch, h: h[batch.x[:, 0] < batch.x.max() + 1])
    assert not read.is_lower_bound
    assert plain.working <= read.working <= 3 * plain.working


def test_a_loss_that_refuses_few_rows_has_a_lower_bound():
    def refuse(batch, h):
        if len(h) < 800:
            raise DataError("too few rows")
        return h

    cost = stated(refuse)
    assert cost.is_lower_bound
    assert cost.to_dict()["is_lower_bound"]
    assert cost.memory >= cost.weights + 4 * cost.parameters
    assert "is_lower_bound" not in stated(lambda batch, h: h).to_dict()


def gauge(*blocks):
    """A gauge of tensors: each block of sizes is allocated and then freed."""
    with MemoryGauge() as made:
        for sizes in blocks:
            held = [torch.empty(size, dtype=torch.int8) for size in sizes]
            del held
    return made


def test_the_peak_is_where_the_lines_of_the_operations_are_highest():
    """At few rows the second block holds most, at many rows the first."""
    found = gauge([10], [100]), gauge([20], [101])
    assert peak_of(found, [1, 2], 50) == 500
    assert peak_of(found, [1, 2], 5) == 104
    assert peak_of([gauge([7, 2], [8])], [3], 3) == 9
    assert peak_of([gauge([5, 8]), gauge([5, 32])], [1, 2], 10) == 5 + 800  # a square
    assert peak_of([gauge([5, 8]), gauge([5, 800])], [1, 2], 10) == 5 + 800 * 25  # no more
    # of other operations only the peaks are known
    assert peak_of([gauge([10, 20]), gauge([20], [50])], [1, 2], 4) == 90
    assert peak_of([gauge([5]), gauge([3])], [1, 2], 100) == 3  # nothing shrinks
    assert peak_of([gauge(), gauge()], [1, 2], 4) == 0


def test_few_rows_are_tried_and_small_batches_as_they_are():
    assert tried_sizes(800, False) == [100, 200]
    assert tried_sizes(10**6, True) == [32, 64]
    assert tried_sizes(20, False) == [4, 8]
    assert tried_sizes(8, False) == [8]
    assert tried_sizes(1, True) == [1]


def test_the_longest_rows_are_tried():
    length = torch.tensor([3, 9, 1, 9, 5])
    rows = small_data.Rows(Batch(torch.zeros(5, 9, 1), length=length))
    assert sorted(widest(rows, 3).tolist()) == [1, 3, 4]
    assert widest(small_data.Rows(Batch(torch.zeros(9, 2))), 3).tolist() == [0, 3, 6]


def test_a_result_beyond_the_limit_is_not_computed():
    with MemoryGauge(10**8, True), pytest.raises(TooLargeError):
        torch.empty(10**12)  # terabytes, which a lazy system would promise
    column = torch.zeros(10**6)
    with MemoryGauge(10**8, True), pytest.raises(TooLargeError):
        torch.less(column[:, None], column)
    with MemoryGauge(10**8, True), pytest.raises(TooLargeError):
        torch.arange(10**11)
    with MemoryGauge(10**8, True), pytest.raises(TooLargeError):
        column.repeat(10**5)
    with MemoryGauge(10**8, True) as gauge:
        torch.manual_seed(0)
        drawn = torch.randn(2 * 10**6)
    torch.manual_seed(0)
    assert torch.equal(torch.randn(2 * 10**6), drawn)
    assert gauge.peak == 8 * 10**6


def test_what_is_stated_before_a_fit_needs_no_compiler():
    """Importing it takes longer than many fits."""
    code = """
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from monge.run.run import start
for model in ("made", "vae"):
    with TemporaryDirectory() as folder:
        run = start(model, "digits", out=Path(folder) / "run")
        assert run.cost.working > 0
        run.trainer.train_step(1.0)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False"]


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


def test_memory_decides_which_models_are_refused(monkeypatch):
    """Weights, gradients, EMA and two moments of Adam: 20 bytes for each of the weights."""
    space, _ = small_data.make("real")
    config = registry.find("made").smallest_config(space)
    count = sum(p.numel() for p in config.build(space).parameters())
    buffers = sum(b.numel() * b.element_size() for b in config.build(space).buffers())

    def build(available):
        def new():
            torch.manual_seed(0)
            return config.build(space)

        return built_within(available, new, config, space, {}, TrainConfig(ema_decay=0.9))

    torch.manual_seed(0)
    plain, state = config.build(space).state_dict(), torch.get_rng_state()
    for least in (model_memory.SMALL_MODEL, 100):  # built at once, and from shapes before
        monkeypatch.setattr(model_memory, "SMALL_MODEL", least)
        fits = build(20 * count + 2 * buffers + 1000).state_dict()
        torch.testing.assert_close(dict(fits), dict(plain), rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
        with pytest.raises(UsageError, match="GB"):
            build(20 * count - 1)


@pytest.mark.parametrize(
    "name",
    ["autoregressive.made", "flow.coupling", "latent.vae", "diffusion.ddpm", "sequence.seq2seq"],
)
def test_models_are_built_from_shapes(name):
    """In the default size; what is read is computed or assumed."""
    space, _ = small_case(name)
    config = registry.find(name).defaults(space).config
    sizes = []

    def needed(model, gauge):
        sizes.append(sum(bytes_of(p) for p in model.parameters()))
        return gauge.now

    state = torch.get_rng_state()
    check_shapes(config, space, {}, needed, 10**12)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(TooLargeError):
        check_shapes(config, space, {}, needed, 1000)
    count = sum(p.numel() for p in config.build(space).parameters())
    assert sizes == [4 * count]


class Reader:
    """A config whose model reads values while it is built: `use` of a known tensor and of a large
    one, whose values are unknown, must return something true."""

    def __init__(self, use):
        self.use = use

    def build(self, space):
        order, large = torch.tensor([3, 1, 2]), torch.randn(1 << 17)
        assert self.use(order, large)
        return Uses(space, None)


def built_from_shapes(use):
    """Whether the model was built to its end."""
    built = []
    space, _ = small_data.make("real")
    check_shapes(Reader(use), space, {}, lambda model, gauge: built.append(model) or 0, 10**9)
    return bool(built)


@pytest.mark.parametrize(
    "use",
    [
        lambda order, large: bool(large.isfinite().all()),
        lambda order, large: not bool((large > 9).any()),
        lambda order, large: int(order[0]) == 3 and order.tolist() == [3, 1, 2],
        lambda order, large: not torch.equal(order, order.flip(0)),
        lambda order, large: float(large.sum()) == 1.0 and int(large.long()[0]) == 0,
        lambda order, large: order.unique().tolist() == [1, 2, 3],
        lambda order, large: len(large[large > 0]) == len(large),
        lambda order, large: order.numpy().sum() == 6 and large.numpy().sum() == 0,
        lambda order, large: int(torch.ones(3).copy_(large[:3])[0]) == 1,  # no longer known
        lambda order, large: int(torch.zeros(3).add_(2)[0]) == 2,
    ],
)
def test_values_that_are_known_are_read_and_others_are_assumed(use):
    assert built_from_shapes(use)


def test_a_copy_is_traced_like_its_source():
    """torch would copy what traces it too, and the process ended when that was freed."""

    def use(order, large):
        first, second = deepcopy([order, order])
        return first is second is not order and first.tolist() == [3, 1, 2]

    assert built_from_shapes(use)


def test_a_model_that_waits_for_a_value_is_built_no_further(monkeypatch):
    monkeypatch.setattr("monge.train.model_memory.MAX_ASSUMED_VALUES", 20)

    def endless(order, large):
        while float(large.sum()) == 1:
            pass

    assert not built_from_shapes(endless)


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
