"""Identities of the training loop: the order of rows, early stopping, standardised features.

A line is fitted by least squares through the loop that fits every model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.config import Config
from ..core.metric import Metric
from ..core.model import Losses, Model, Update
from ..core.space import Space
from ..core.train_config import TrainConfig
from ..data.loading import open as open_data
from ..nn.inputs.features import Features
from ..train.budget import Budget
from ..train.loop import Progress, fit
from ..train.trainer import Trainer
from ._helpers import gap, most, normal
from .framework import Residual
from .training import RATE, gradients

ROWS = 60
CUTS = ((60, 20, 1), (61, 20, 1), (43, 20, 2), (59, 20, 2), (7, 20, 1))
"""Rows, batch size and pieces: full batches; a last row, few rows that join the batch before, and
more that do not; fewer rows than a batch."""


class LineModel(Model):
    """y = a x + b by least squares: x and y are the entries of an event."""

    events = {"real"}

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.slope = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def loss(self, batch: Batch) -> Losses:
        x, y = batch.x.unbind(1)
        return {"square": (self.slope[0] * x + self.slope[1] - y).square() / 2}

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config()


class PointsNearLine:
    """Rows near a line, as the loop sees them."""

    lengths = None
    row_bytes = 16

    def __init__(self, rows: int = ROWS) -> None:
        x = normal(rows)
        self.x = torch.stack([x, 2 * x - 1 + 0.5 * normal(rows)], 1)

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, index: Tensor, train: bool = False) -> Batch:
        return Batch(self.x[index], row=index)

    def whole(self) -> Batch:
        return self.batch(torch.arange(len(self)))


def play(train_config: TrainConfig) -> tuple[Trainer, list[Progress]]:
    """Fit the line with a validation loss on other rows, until early stopping."""
    trainer = Trainer(
        LineModel(LineModel.Config(), Space(kind="real", shape=(2,))),
        PointsNearLine(),
        train_config,
    )
    others = Batch(PointsNearLine().x[:8])

    def evaluate() -> Metric:
        return Metric(trainer.model.loss(others)["square"].mean().item(), "loss")

    with torch.enable_grad():
        return trainer, list(fit(trainer, Budget(steps=5000), evaluate, report_every=1e9))


STOPPING = TrainConfig(optimiser="sgd", lr=RATE, warmup=0, batch_size=20, eval_every=3, patience=4)


def x44_early_stopping_returns_the_best() -> Residual:
    """Early stopping restores the step with the lowest validation loss.

    Examines: train.loop, train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.8."""
    trainer, history = play(STOPPING)
    held = [(p.held_out.value, p.step) for p in history if p.held_out]
    best, step = min(held)
    late = held[-1][1] - step != STOPPING.eval_every * STOPPING.patience
    kept = trainer.best.value if trainer.best else float("nan")
    return Residual(abs(kept - best) + (late or trainer.best_step != step), 0.0)


def x44_best_weights_are_those_of_the_best_step() -> Residual:
    """The weights that are kept are those of training for that many steps.

    Examines: train.loop, train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, algorithm 7.1."""
    torch.manual_seed(5)
    trainer, _ = play(STOPPING)
    torch.manual_seed(5)
    again, _ = play(replace(STOPPING, max_steps=trainer.best_step, patience=0))
    kept, due = trainer.best_weights["slope"], again.model.state_dict()["slope"]
    return Residual(gap(kept, due) + float(trainer.best_step <= STOPPING.eval_every), 0.0)


def x44_early_stopping_bounds_the_way() -> Residual:
    """|w_0 - w_best| <= K lr steps if gradient norms are at most K.

    Examines: train.loop, train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.8."""
    largest = 0.5
    trainer, _ = play(replace(STOPPING, grad_clip=largest))
    way = trainer.best_weights["slope"].norm().item()  # from 0
    return Residual(way - largest * RATE * trainer.best_step, 1e-6)


def cut_lines() -> Iterator[Trainer]:
    """Trainers of a line whose rows do and do not fill the last batch of an epoch."""
    space = Space(kind="real", shape=(2,))
    for rows, size, pieces in CUTS:
        settings = replace(STOPPING, batch_size=size, shards=pieces)
        yield Trainer(LineModel(LineModel.Config(), space), PointsNearLine(rows), settings)


def epoch(trainer: Trainer, number: int) -> Iterator[Batch]:
    first = number * trainer.epoch_steps
    return (trainer.batch(first + place) for place in range(trainer.epoch_steps))


def x45_an_epoch_visits_each_row_once() -> Residual:
    """Every row is in exactly one batch of an epoch, each time in new order.

    Also the rows after the last full batch; and no batch has more rows than it may.

    Examines: train.trainer.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 8.1.3."""
    wrong = 0
    for trainer in cut_lines():
        rows, largest = len(trainer.rows), trainer.batch_size + 2 * trainer.pieces - 1
        batches = [[batch.rows for batch in epoch(trainer, number)] for number in range(3)]
        orders = [torch.cat(each) for each in batches]
        wrong += sum(int((torch.bincount(order, minlength=rows) != 1).sum()) for order in orders)
        wrong += torch.equal(orders[0], orders[1])
        wrong += sum(len(batch) > largest for each in batches for batch in each)
    return Residual(float(wrong), 0.0)


def x45_minibatch_gradients_average_to_the_whole() -> Residual:
    """The mean of an epoch's minibatch gradients is the full gradient.

    Each counts by its rows, since the last batch of an epoch may have fewer.

    Examines: train.trainer.

    Source: Bottou, Curtis & Nocedal 2018, Optimization Methods for Large-Scale Machine
    Learning."""
    worst = 0.0
    for trainer in cut_lines():
        model = trainer.model
        with torch.enable_grad():
            each = [
                gradients(len(batch) * model.loss(batch)["square"].mean(), model)
                for batch in epoch(trainer, 0)
            ]
            full = gradients(model.loss(trainer.rows.whole())["square"].mean(), model)
        worst = most(worst, gap(torch.stack(each).sum(0) / len(trainer.rows), full))
    return Residual(worst, 1e-14)


class BilinearGame(Model):
    """min over x, max over y, of x y: two updates of one number each."""

    events = {"real"}

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.x, self.y = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (1.0, 0.5))

    def loss(self, batch: Batch) -> Losses:
        return {"value": (self.x * self.y).expand(len(batch))}

    def updates(self) -> Sequence[Update]:
        def rise(batch: Batch) -> Losses:
            return {"value": -self.loss(batch)["value"]}

        return [Update("low", self.loss, [self.x]), Update("high", rise, [self.y])]

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config()


def x89_players_that_move_in_turn_stay() -> Residual:
    """min max xy: at once the radius grows by sqrt(1+r^2); in turn it stays.

    The loop moves the second player by the new place of the first, and keeps x^2 + y^2 - r x y.

    Examines: train.trainer.

    Source: Gidel et al. 2019, A Variational Inequality Perspective on GANs."""
    rate, (x, y) = 0.1, (1.0, 0.5)
    settings = TrainConfig(optimiser="sgd", lr=rate, warmup=0, batch_size=20, ema_decay=0.0)
    game = BilinearGame(BilinearGame.Config(), Space(kind="real", shape=(2,)))
    trainer, worst = Trainer(game, PointsNearLine(), settings), 0.0
    start = x**2 + y**2 - rate * x * y
    for _ in range(50):
        radius = math.hypot(x, y)
        x, y = x - rate * y, y + rate * x
        worst = most(worst, abs(math.hypot(x, y) / radius - math.sqrt(1 + rate**2)))
        with torch.enable_grad():
            trainer.train_step(1.0)
        a, b = game.x.item(), game.y.item()
        worst = most(worst, abs(a**2 + b**2 - rate * a * b - start))
    return Residual(worst, 1e-12)


def x48_standardised_training_rows_have_mean_0_and_scale_1() -> Residual:
    """Features of training rows: mean 0, standard deviation 1 (float32).

    Examines: data.dataset, nn.inputs.features.

    Source: LeCun et al. 1998, Efficient BackProp, sec. 4.3."""
    rows = open_data((5 + 3 * normal(400, 3)).float()).view().split("train")
    features = Features(rows.space).double()(rows.whole().double())
    return Residual(
        most(
            float(features.mean(0).abs().amax()), gap(features.std(0, correction=0), torch.ones(3))
        ),
        1e-5,
    )


def x48_test_rows_are_read_with_training_statistics() -> Residual:
    """Features of test rows invert by the mean and scale of training rows.

    Examines: data.dataset, nn.inputs.features.

    Source: Hastie, Tibshirani & Friedman 2009, The Elements of Statistical Learning, sec. 7.10."""
    source = open_data((5 + 3 * normal(400, 3)).float())
    view = source.view()
    train, test = (view.split(split).whole().x.double() for split in ("train", "test"))
    features = Features(view.space).double()(Batch(test))
    back = features * train.std(0, correction=0) + train.mean(0)
    return Residual(gap(back, test), 1e-5)
