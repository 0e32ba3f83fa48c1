"""A model in training: whose turn it is, what moves, and all that a checkpoint must hold.

Step k is a pure function of (seed, k, the state before k): torch is seeded before every turn and
the rows of a batch come from the permutation of their epoch, so nothing random is ever stored and
a run that was interrupted and resumed equals one that was not, bit for bit.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from ..core.batch import Batch
from ..core.errors import RunError
from ..core.metric import Metric
from ..core.model import Losses, Model, Update
from ..core.rng import derive_seed, make_generator, reseed
from ..core.train_config import OptimiserConfig, TrainConfig
from . import param_groups
from .batch_sampler import RowSource, bucketed
from .ema import EMA, same_names
from .log import means
from .optimiser import check_slots, flush_denormals, is_settled, iterate, optimiser, pack, unpack
from .param_groups import epoch_steps, trainable_updates
from .regularisation import input_noise, l1_prox, weight_noise

BEGINNING = 10_000
"""Training rows, spread over all of them, that a model sees before step 0."""
TIDY = 200
"""Steps between two looks for denormal numbers."""


@dataclass(frozen=True)
class Refit:
    """A second training, on all rows but the test's, after patience has ended the first."""

    origin: int  # the step that counts as its step 0
    until: int  # the age at which it is complete
    goal: float | None = None  # a loss of the rows once held out that completes it sooner


class Trainer:
    """The turns of a model with their optimisers, the average of its weights, and the counters."""

    def __init__(
        self,
        model: Model,
        rows: RowSource,
        recipe: TrainConfig,
        seed: int = 0,
        precision: str = "fp32",
        compiled: bool = False,
    ) -> None:
        self.model, self.rows, self.recipe, self.seed = model, rows, recipe, seed
        self.device = next(
            (t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu")
        )
        self.half = precision == "bf16"
        self.updates, self.still = trainable_updates(model, recipe)
        self.losses = [torch.compile(t.loss) if compiled else t.loss for t in self.updates]
        self.settings = [recipe.mover(t.name) for t in self.updates]
        factors = param_groups.lr_factors(model, recipe.lr_multipliers)
        self.movers = [
            optimiser(settings, t.params, factors) if t.params else None
            for t, settings in zip(self.updates, self.settings, strict=True)
        ]
        self.average = EMA(model, recipe.ema_decay)
        self.size = min(recipe.batch_size, len(rows))
        self.epoch_steps = epoch_steps(len(rows), self.size, self.updates)
        self.every = recipe.eval_every or min(max(self.epoch_steps, 50), 1000)
        self.step, self.stale, self.seconds = 0, 0, 0.0
        self.refit: Refit | None = None
        self.best: Metric | None = None
        self.best_step = 0
        self.kept: dict[str, Tensor] = {}  # the weights of the best held-out score
        self.pending: list[tuple[int, str, Tensor]] = []
        self.norms: list[tuple[int, str, Tensor]] = []  # of gradients, before they are clipped
        self.order: tuple[int, Tensor] = (-1, torch.empty(0))
        self.everything: Batch | None = None
        self.rouse()

    @property
    def age(self) -> int:
        """Steps that these weights have been trained; it is the step but in a refit."""
        return self.step - self.refit.origin if self.refit else self.step

    @property
    def done(self) -> bool:
        """Whether the refit is complete."""
        return self.refit is not None and (self.age >= self.refit.until or self.settled)

    @property
    def settled(self) -> bool:
        """Whether every turn knows that it is at its end."""
        return all(map(is_settled, self.movers))

    @property
    def draws(self) -> int:
        """Batches drawn before this step: a turn that plays draws `repeat` times `batches`."""
        return sum(
            t.repeat * t.batches * math.ceil(self.age / t.every)
            for t in self.updates
            if not t.whole
        )

    def index(self, number: int) -> Tensor:
        """Rows of the number-th batch: epochs without replacement, the ragged tail left out."""
        epoch, place = divmod(number, self.epoch_steps)
        if self.order[0] != epoch:
            generator = make_generator(derive_seed(self.seed, "epoch", epoch))
            order = torch.randperm(len(self.rows), generator=generator)
            if self.recipe.bucket_by_length:
                order = bucketed(order, self.rows.lengths, self.size, generator)
            self.order = (epoch, order)
        return self.order[1][place * self.size : (place + 1) * self.size]

    def batch(self, number: int, turn: Update | None = None) -> Batch:
        """The number-th batch drawn, or all that a turn takes at once from there on."""
        index = self.index(number)
        if turn and turn.batches > 1:
            index = torch.cat([index, *(self.index(number + k) for k in range(1, turn.batches))])
        if turn and turn.rows:
            index = turn.rows(index, len(self.rows))
        batch = replace(self.rows.batch(index, train=True).to(self.device), step=self.age)
        noise = self.recipe.input_noise
        return input_noise(batch, self.model.space, noise) if noise else batch

    def whole(self, turn: Update) -> Batch:
        if self.everything is None:
            self.everything = self.rows.whole().to(self.device)
        batch, noise = replace(self.everything, step=self.age), self.recipe.input_noise
        if turn.rows or turn.batches > 1:
            index = torch.arange(len(batch)).repeat(turn.batches)
            batch = batch[turn.rows(index, len(batch)) if turn.rows else index]
        return input_noise(batch, self.model.space, noise) if noise else batch

    def begin(self) -> None:
        reseed(derive_seed(self.seed, "begin"), self.device)
        most = min(len(self.rows), BEGINNING)
        index = torch.arange(most) * len(self.rows) // most
        self.model.initialise_from_data(self.rows.batch(index, train=True).to(self.device))
        self.average = EMA(self.model, self.recipe.ema_decay)

    def rouse(self) -> None:
        """Make the model ready to be trained, but for what is frozen."""
        self.model.train()
        for module in self.still:
            module.eval()

    def advance(self, scale: float) -> None:
        """Play every turn once, with rates multiplied by `scale`."""
        if self.age == 0:
            self.begin()
        if not self.model.training:
            self.rouse()
        drawn = self.draws
        for number, turn in enumerate(self.updates):
            if self.age % turn.every:
                continue
            reseed(derive_seed(self.seed, "step", self.age, turn.name), self.device)
            for _ in range(turn.repeat):
                batch = self.whole(turn) if turn.whole else self.batch(drawn, turn)
                drawn += 0 if turn.whole else turn.batches
                self.move(number, turn, batch, scale)
        self.average.update(self.age)
        self.step += 1
        if self.age % TIDY == 0:
            for mover in filter(None, self.movers):
                flush_denormals(mover)

    def move(self, number: int, turn: Update, batch: Batch, scale: float) -> None:
        """One move: the mover's gradients alone are made, and only its optimiser steps."""
        mover = self.movers[number]
        if mover is None:
            with torch.no_grad():
                self.note(turn.name, self.losses[number](batch))
            return
        settings = self.settings[number]
        if isinstance(mover, LBFGS):
            self.search(mover, number, turn, batch, settings)
            return
        losses, _ = self.slope(number, turn, batch, settings)
        if settings.grad_clip:
            norm = nn.utils.clip_grad_norm_(turn.params, settings.grad_clip)
            self.norms.append((self.step, turn.name, norm))
        for group in mover.param_groups:
            group["lr"] = settings.lr * scale * group["factor"]
        mover.step()
        if settings.l1:
            l1_prox(mover, settings.l1)
        self.note(turn.name, losses)

    def slope(
        self, number: int, turn: Update, batch: Batch, settings: OptimiserConfig
    ) -> tuple[Losses, Tensor]:
        """The terms and their sum, whose gradients the turn's parameters now have."""
        with (
            weight_noise(turn.params, settings.weight_noise)
            if settings.weight_noise
            else nullcontext()
        ):
            with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
                losses = self.losses[number](batch)
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            for param in turn.params:
                param.grad = None
            total.backward(inputs=list(turn.params))
        return losses, total.detach()

    def search(
        self, mover: LBFGS, number: int, turn: Update, batch: Batch, settings: OptimiserConfig
    ) -> None:
        """One iteration of L-BFGS. Every look, of this step and of the others, has the same noise:
        a line search needs a function."""
        looks: list[Losses] = []

        def look() -> Tensor:
            reseed(derive_seed(self.seed, "search", turn.name), self.device)
            losses, total = self.slope(number, turn, batch, settings)
            looks.append(losses)
            for param in turn.params if settings.weight_decay else ():
                weight = param.detach()
                total = total + 0.5 * settings.weight_decay * weight.square().sum()
                param.grad = settings.weight_decay * weight + (
                    0 if param.grad is None else param.grad
                )
            return total

        iterate(mover, look)
        self.note(turn.name, looks[0])

    def note(self, turn: str, losses: Losses) -> None:
        """Remember the terms as tensors; they are read later, all at once."""
        self.pending += [
            (self.step, f"{turn}/{name}", term.detach().mean()) for name, term in losses.items()
        ]

    def read(self) -> tuple[dict[str, float], dict[str, float], str]:
        """Since the last reading: the mean of each term, the mean norm of the gradient of each
        turn that clips, and a sentence if a term was not finite."""
        (terms, bad), (norms, _) = means(self.pending), means(self.norms)
        self.pending, self.norms = [], []
        if bad is None:
            return terms, norms, ""
        step, name, value = bad
        turn, _, term = name.rpartition("/")
        return (
            {},
            {},
            (
                f"the term {term!r} of the turn {turn!r} became {value} at step {step}; "
                "the last good weights are kept; try a smaller train.lr, or "
                "train.grad_clip=1"
            ),
        )

    def consider(self, score: Metric) -> bool:
        """Take note of a held-out score; true if it is a new best. In a refit the score of rows
        that are no longer held out ends it where it reaches the goal."""
        better = score.replaces(self.best)
        if self.refit and self.refit.goal is not None and self.best:
            if score.better_than(replace(self.best, value=self.refit.goal)):
                self.refit = replace(self.refit, until=self.age)
            return False
        if better:
            self.best, self.stale, self.kept = score, 0, self.weights()
            self.best_step = self.step
        else:
            self.stale += 1
        return better

    def weights(self) -> dict[str, Tensor]:
        """A copy of what sampling and scoring use: averaged weights, other buffers live."""
        state = self.model.state_dict() | self.average.weights
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    @property
    def sound(self) -> bool:
        """Whether every weight is finite."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that resuming needs: tensors by name, and counters."""
        tensors = {f"model/{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"average/{name}": t for name, t in self.average.weights.items()}
        tensors |= {f"kept/{name}": t for name, t in self.kept.items()}
        names = {id(p): name for name, p in self.model.named_parameters()}
        numbers, slots_of = {}, {}
        for turn, mover in zip(self.updates, self.movers, strict=True):
            if mover:
                slots, numbers[turn.name] = pack(mover, names)
                slots_of[turn.name] = len(slots)
                tensors |= {f"optimiser/{turn.name}/{name}": t for name, t in slots.items()}
        counters = {
            "step": self.step,
            "stale": self.stale,
            "seconds": self.seconds,
            "best": None if self.best is None else self.best.to_dict(),
            "best_step": self.best_step,
            "optimiser": numbers,
            "slots": slots_of,
            "refit": None if self.refit is None else asdict(self.refit),
        }
        return tensors, counters

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Take up where `state` left off."""

        def under(head: str) -> dict[str, Tensor]:
            return {k.removeprefix(head): v for k, v in tensors.items() if k.startswith(head)}

        try:
            self.model.load_state_dict(under("model/"))
            self.average.restore({k: v.to(self.device) for k, v in under("average/").items()})
            params = dict(self.model.named_parameters())
            for turn, mover, settings in zip(
                self.updates, self.movers, self.settings, strict=True
            ):
                if mover:
                    slots = under(f"optimiser/{turn.name}/")
                    if len(slots) != (count := counters["slots"][turn.name]):
                        raise ValueError(
                            f"expected {count} tensors of the optimiser of "
                            f"{turn.name}, found {len(slots)}"
                        )
                    unpack(mover, params, slots, counters["optimiser"][turn.name])
                    check_slots(mover, settings)
            self.kept = under("kept/")
            self.best = None if counters["best"] is None else Metric(**counters["best"])
            same_names("best weights", self.kept, self.model.state_dict() if self.best else ())
            self.step, self.stale = counters["step"], counters["stale"]
            self.best_step, self.seconds = counters["best_step"], counters["seconds"]
            self.refit = Refit(**counters["refit"]) if counters["refit"] else None
        except (KeyError, RuntimeError, AttributeError, TypeError, ValueError) as error:
            raise RunError(
                f"the checkpoint does not fit this model ({error}); it was written by "
                "another configuration or version, or has lost a part; restore "
                "run.json and last.safetensors from a copy, or start a new run"
            ) from error
