"""The loop: who moves, on what, how far; when it stops and what it reports."""

import math
from collections import Counter

import candidates
import pytest
import small_data
import torch
from torch import nn
from training import advance, assert_unbroken

from monge.core.batch import Batch
from monge.core.ensemble import Ensemble
from monge.core.errors import RunError, UsageError
from monge.core.metric import Metric
from monge.core.model import Model, Update, take_step
from monge.core.train_config import OptimiserConfig, TrainConfig
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.optimiser import lr_factor, make_optimiser
from monge.train.trainer import EMA, Trainer, mean_values


class TwoPlayerModel(Model):
    """Two numbers: `a` seeks the mean of the data, `b` flees it; and a tally of rows."""

    events = {"real"}

    def __init__(self, space, bad_at=None):
        super().__init__(TwoPlayerModel.Config(), space)
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))
        self.batches, self.fled, self.bad_at = [], [], bad_at

    def loss(self, batch: Batch):
        self.batches.append(batch.row.tolist())
        bad = math.nan if batch.step == self.bad_at else 1.0
        return {"near": bad * (batch.x[:, 0] - self.a) ** 2, "other": self.b.detach() * 0}

    def flee(self, batch):
        self.fled.append(batch.row.tolist())
        return {"far": -((batch.x[:, 0] - self.b) ** 2) / (1 + self.b**2) + self.a}

    def tally(self, batch):
        self.seen += len(batch)
        return {}

    def updates(self):
        return [
            Update("seek", self.loss, [self.a]),
            Update("flee", self.flee, [self.b], repeat=2),
            Update("tally", self.tally, whole=True, every=3),
        ]

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def trainer(train_config=None, **settings):
    space, batch = small_data.make("real")
    return Trainer(
        TwoPlayerModel(space, **settings),
        small_data.Rows(batch),
        train_config or TrainConfig(batch_size=100),
    )


def played(subject, budget, evaluate=None, **rest):
    return list(fit(subject, Budget.read(budget), evaluate, report_every=1e9, **rest))


def test_each_update_moves_its_own_parameters_alone():
    subject = trainer(TrainConfig(batch_size=100, optimiser="sgd", lr=0.1, warmup=0))
    a, b = subject.model.a, subject.model.b
    before = b.detach().clone()
    subject.apply_update(0, subject.updates[0], [subject.batch(0)], 1.0)
    assert torch.equal(b, before)
    assert b.grad is None
    mean = subject.batch(0).x[:, 0].mean()
    torch.testing.assert_close(a.detach(), 0.2 * mean)


def test_a_step_runs_every_update_on_fresh_batches_without_replacement():
    subject = trainer()
    played(subject, "10steps")
    assert subject.step == 10
    assert subject.model.seen.item() == 4 * 1000  # steps 0, 3, 6, 9, the whole split each
    again = trainer()
    rows = [again.batch(number).row.tolist() for number in range(10)]
    assert sorted(row for batch in rows for row in batch) == list(range(1000))
    assert subject.model.batches == rows
    assert len(subject.model.fled) == 20
    for half in (subject.model.fled[:10], subject.model.fled[10:]):
        assert sorted(row for batch in half for row in batch) == list(range(1000))
    assert subject.model.fled[0] != rows[0]


@pytest.mark.parametrize(
    ("rows", "size", "pieces", "sizes"),
    [
        (1000, 300, 1, [300, 300, 300, 100]),
        (1000, 333, 1, [333, 333, 334]),  # one row has no variance
        (1000, 331, 4, [331, 331, 338]),  # fewer than two rows a piece
        (1000, 330, 5, [330, 330, 330, 10]),
        (1000, 2000, 1, [1000]),
        (3, 2, 1, [3]),
        (1, 8, 1, [1]),
    ],
)
def test_an_epoch_is_one_pass_of_every_update(rows, size, pieces, sizes):
    space, batch = small_data.make("real")
    config = TrainConfig(batch_size=size, accumulate=pieces)
    subject = Trainer(TwoPlayerModel(space), small_data.Rows(batch[:rows]), config)
    (last,) = played(subject, "3epochs")
    seen = Counter(row for piece in subject.model.batches for row in piece)
    assert seen == dict.fromkeys(range(rows), 3)
    assert Counter(row for piece in subject.model.fled for row in piece) == dict.fromkeys(
        range(rows), 6
    )
    assert [len(subject.index(place)) for place in range(subject.epoch_steps)] == sizes
    assert min(map(len, subject.model.batches)) >= min(2, rows)
    assert last.epoch == 3


def test_every_member_of_an_ensemble_passes_over_the_rows():
    """Members that are trained in one pass of the network have batches of one size, each in an
    order of its own."""
    case = candidates.subject("predict.mlp", "label", "picture")
    model = Ensemble.Config(member=case.config, members=3).build(case.space)
    subject = Trainer(model, small_data.Rows(case.batch[:100]), TrainConfig(batch_size=30))
    (update,) = subject.updates
    assert update.batches == 3
    index = [subject.index(number, update).reshape(3, -1) for number in range(4)]
    assert [each.shape[1] for each in index] == [30, 30, 30, 10]
    orders = torch.cat(index, 1)
    assert torch.equal(orders.sort(1).values, torch.arange(100).expand(3, 100))
    assert len({tuple(order.tolist()) for order in orders}) == 3
    advance(subject, 4)


@pytest.mark.parametrize("settings", [{}, {"shards": 2}, {"accumulate": 3}])
def test_resuming_within_a_ragged_epoch_changes_nothing(settings, tmp_path):
    def make():
        space, batch = small_data.make("real")
        config = TrainConfig(batch_size=30, **settings)
        return Trainer(TwoPlayerModel(space), small_data.Rows(batch[:100]), config)

    assert_unbroken(make, tmp_path, steps=5)


@pytest.mark.parametrize(("size", "refused"), [(30, True), (25, False)])
def test_a_checkpoint_of_other_batches_is_refused(size, refused):
    space, batch = small_data.make("real")

    class OneUpdate(TwoPlayerModel):
        def updates(self):
            return super().updates()[:1]

    def make(kind=OneUpdate):
        return Trainer(kind(space), small_data.Rows(batch[:100]), TrainConfig(batch_size=size))

    for kind in (OneUpdate, TwoPlayerModel):
        old = make(kind)
        advance(old, 2)
        tensors, counters = old.state()
        make(kind).restore(tensors, counters)
        del counters["whole_epochs"]  # what versions before did not write
        if refused or kind is TwoPlayerModel:
            with pytest.raises(RunError, match=r"\b100\b"):
                make(kind).restore(tensors, counters)
        else:
            make(kind).restore(tensors, counters)


def test_terms_are_named_and_averaged():
    (last,) = played(trainer(), "5steps")
    assert set(last.terms) == {"seek/near", "seek/other", "flee/far"}
    assert last.stopped == "budget"
    assert last.epoch == 0.5


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_every_optimiser_finds_the_mean(name):
    rate = 1.0 if name == "adagrad" else 0.1  # its steps shrink as it goes
    subject = trainer(TrainConfig(batch_size=200, optimiser=name, lr=rate, warmup=0, momentum=0.5))
    played(subject, "150steps")
    mean = subject.rows.whole().x[:, 0].mean()
    start = mean**2
    assert (subject.model.a - mean) ** 2 < 0.1 * start


def test_an_update_may_have_its_own_settings():
    train_config = TrainConfig(
        batch_size=100, warmup=0, updates={"flee": OptimiserConfig(optimiser="sgd", lr=1e-9)}
    )
    subject = trainer(train_config)
    played(subject, "20steps")
    assert abs(subject.model.b.item()) < 1e-6 < abs(subject.model.a.item())


def test_an_unknown_update_is_named():
    with pytest.raises(
        UsageError,
        match=r"train\.updates\.sek.*seek",
    ):
        trainer(TrainConfig(updates={"sek": OptimiserConfig()}))


def test_clipping_bounds_the_step():
    train_config = TrainConfig(batch_size=100, optimiser="sgd", lr=1.0, warmup=0, grad_clip=0.01)
    subject = trainer(train_config)
    played(subject, "1steps")
    assert abs(subject.model.a.item()) == pytest.approx(0.01, rel=1e-3)


def test_divergence_names_update_term_and_step():
    last = played(trainer(bad_at=7), "100steps")[-1]
    assert last.stopped == "diverged"
    assert all(text in last.sentence for text in ("'near'", "'seek'", "nan", "step 7"))


def test_patience_stops_and_keeps_the_best():
    values = iter([1.0, 3.0, 2.0, 2.5, 1.0, 9.0])
    subject = trainer(TrainConfig(batch_size=100, eval_every=5, patience=3))
    stops = played(subject, "1000steps", lambda: Metric(next(values), "exact"))
    assert [p.best for p in stops] == [True, True, False, False, False]
    assert stops[-1].stopped == "patience"
    assert subject.step == 25
    assert subject.best.value == 3.0
    assert not torch.equal(subject.best_weights["a"], subject.model.a)


def test_a_distance_is_better_when_lower_and_nan_never():
    assert Metric(1.0, "distance").better_than(Metric(2.0, "distance"))
    assert Metric(2.0, "exact").better_than(Metric(1.0, "exact"))
    assert not Metric(math.nan, "exact").better_than(None)


def test_a_distance_below_its_error_keeps_the_later_weights():
    best = Metric(-0.1, "distance", 0.2)
    assert Metric(0.1, "distance", 0.2).replaces(best)
    assert not Metric(0.3, "distance", 0.2).replaces(best)
    assert not Metric(math.nan, "distance", 0.2).replaces(best)
    assert not Metric(0.1, "exact", 0.2).replaces(Metric(0.2, "exact", 0.2))
    assert Metric(1.3, "distance", 0.2).replaces(None)


def test_the_average_follows_its_formula():
    model = nn.Linear(1, 1, bias=False)
    average = EMA(model, 0.5)
    expected = model.weight.item()
    for step, value in enumerate([3.0, -1.0, 4.0]):
        model.weight.data.fill_(value)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.swapped():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 4.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", Budget(seconds=90)),
        ("5m", Budget(seconds=300)),
        ("1.5h", Budget(seconds=5400)),
        ("2min", Budget(seconds=120)),
        ("500steps", Budget(steps=500)),
        ("1step", Budget(steps=1)),
        ("3epochs", Budget(epochs=3)),
        ("2 hours", Budget(seconds=7200)),
        ("+60s", Budget(seconds=60, more=True)),
    ],
)
def test_budgets_are_read(text, expected):
    assert Budget.read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0s",
        "0steps",
        "-5s",
        "ten",
        "5 days",
        "",
        "5",
        "1ms",
        "1ss",
        "1hs",
        "1stepss",
        "9" * 400 + "s",
        "1s 2m",
    ],
)
def test_wrong_budgets_are_refused(text):
    shown = repr(text)[:100]  # the rest of a long word is left out
    with pytest.raises(UsageError, match=shown):
        Budget.read(text)


@pytest.mark.parametrize("text", ["1ms", "5 days", "5", "3x"])
def test_a_wrong_unit_is_answered_with_the_units(text):
    with pytest.raises(UsageError, match=rf"{text!r}.*s, m, h, steps and epochs"):
        Budget.read(text)


def test_more_is_on_top_and_a_plain_budget_is_the_total():
    assert Budget.read("+10steps").end(5, step=7, seconds=3.0, limit=0).steps == 17
    assert Budget.read("10steps").end(5, step=7, seconds=3.0, limit=0).steps == 10
    assert Budget.read("2epochs").end(5, step=0, seconds=0.0, limit=0).steps == 10
    assert Budget.read("+10s").end(5, step=7, seconds=3.0, limit=4) == Budget(13.0, 4)


def test_the_rate_rises_then_stays_or_falls():
    train_config = TrainConfig(warmup=10)
    assert [lr_factor(train_config, step, math.inf) for step in (0, 4, 9, 50)] == [
        0.1,
        0.5,
        1.0,
        1.0,
    ]
    falling = TrainConfig(warmup=0, schedule="cosine")
    assert lr_factor(falling, 50, 100) == pytest.approx(0.5)
    assert lr_factor(falling, 200, 100) == pytest.approx(0.0)


def test_a_cosine_over_seconds_is_refused():
    with pytest.raises(UsageError, match=r"train\.schedule=cosine"):
        played(trainer(TrainConfig(schedule="cosine")), "5s")


@pytest.mark.parametrize(
    ("settings", "first"),
    [({"max_steps": 12}, "6steps"), ({"schedule_steps": 12}, "6steps"), ({}, "12steps")],
    ids=["max_steps", "schedule_steps", "the first budget"],
)
def test_a_decaying_rate_is_the_same_after_a_resume(settings, first):
    config = TrainConfig(schedule="cosine", warmup=0, **settings)
    unbroken, broken, resumed = trainer(config), trainer(config), trainer(config)
    played(unbroken, "12steps")
    stop = iter(range(100))
    played(broken, first, should_stop=lambda: next(stop) >= 6)
    assert broken.step == 6
    resumed.restore(*broken.state())
    played(resumed, "12steps")
    assert resumed.step == unbroken.step == 12
    assert resumed.model.a.item() == unbroken.model.a.item()


def test_a_run_whose_rate_has_decayed_is_not_prolonged():
    config = TrainConfig(schedule="linear", warmup=0)
    short = trainer(config)
    played(short, "4steps")
    with pytest.raises(UsageError, match=r"\b4\b.*train\.schedule_steps=9"):
        played(short, "9steps")


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(UsageError, match=r"train\.nesterov=true.*train\.momentum"):
        trainer(TrainConfig(optimiser="sgd", nesterov=True))


def test_asking_stops_at_the_end_of_a_step():
    stops = played(trainer(), "1000steps", should_stop=lambda: True)
    assert stops == []
    count = iter(range(100))
    stops = played(trainer(), "1000steps", should_stop=lambda: next(count) > 3)
    assert stops[-1].stopped == "asked"


@pytest.mark.usefixtures("bf16")
def test_bf16_trains_too():
    space, batch = small_data.make("real")
    subject = Trainer(
        TwoPlayerModel(space),
        small_data.Rows(batch),
        TrainConfig(batch_size=100),
        precision="bf16",
    )
    played(subject, "3steps")
    assert subject.is_finite


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "adagrad", "rmsprop"])
def test_a_step_is_that_of_torch(kind):
    found = []
    for own in (True, False):
        param = nn.Parameter(torch.tensor([1.0, -2.0]))
        optimiser = make_optimiser(OptimiserConfig(optimiser=kind, lr=0.1), [param])
        for scale in (1.0, 3.0, -0.5):
            param.grad = scale * param.detach()
            take_step(optimiser) if own else optimiser.step()
        found.append(param.detach())
    assert torch.equal(*found)
    assert not torch.equal(found[0], torch.tensor([1.0, -2.0]))


def test_logged_values_are_means_and_the_first_that_is_not_finite_is_named():
    logged = [
        (step, name, torch.tensor(value))
        for step, name, value in [(1, "a", 1.0), (1, "b", 5.0), (2, "a", 4.0)]
    ]
    assert mean_values(logged) == ({"a": 2.5, "b": 5.0}, None)
    assert mean_values([]) == ({}, None)
    wrong = [*logged, (3, "b", torch.tensor(math.inf)), (3, "a", torch.tensor(math.nan))]
    assert mean_values(wrong) == ({}, (3, "b", math.inf))
