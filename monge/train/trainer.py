"""A model in training: whose turn it is, what moves, and all that a checkpoint must hold.

Step k is a pure function of (seed, k, the state before k): torch is seeded before every turn and
the rows of a batch come from the permutation of their epoch, so nothing random is ever stored and
a run that was interrupted and resumed equals one that was not, bit for bit.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.error import RunError, WordError, nearest
from ..core.model import Losses, Model, Turn
from ..core.noise import fold, fresh, reseed
from ..core.recipe import Recipe
from ..core.score import Score
from .average import Average
from .optimiser import optimiser

BEGINNING = 10_000
"""Training rows that a model sees before step 0."""


class Rows(Protocol):
    """The training rows as the loop sees them."""

    def __len__(self) -> int: ...
    def batch(self, index: Tensor, train: bool = False) -> Batch: ...
    def whole(self) -> Batch: ...


class Trainer:
    """The turns of a model with their optimisers, the average of its weights, and the counters."""

    def __init__(self, model: Model, rows: Rows, recipe: Recipe, seed: int = 0,
                 precision: str = "fp32", compiled: bool = False) -> None:
        self.model, self.rows, self.recipe, self.seed = model, rows, recipe, seed
        self.device = next((t.device for t in [*model.parameters(), *model.buffers()]),
                           torch.device("cpu"))
        self.half = precision == "bf16"
        self.turns = list(model.turns())
        for name in recipe.turns:
            if name not in (known := [turn.name for turn in self.turns]):
                raise WordError(f"train.turns.{name}: the model has no such turn"
                                f"{nearest(name, known)}")
        self.losses = [torch.compile(t.loss) if compiled else t.loss for t in self.turns]
        self.movers = [optimiser(recipe.mover(t.name), t.params) if t.params else None
                       for t in self.turns]
        self.average = Average(model, recipe.average)
        self.size = min(recipe.batch, len(rows))
        self.epoch_steps = max(len(rows) // self.size, 1)
        self.every = recipe.check or min(max(self.epoch_steps, 50), 1000)
        self.step, self.stale, self.seconds = 0, 0, 0.0
        self.best: Score | None = None
        self.kept: dict[str, Tensor] = {}  # the weights of the best held-out score
        self.pending: list[tuple[int, str, Tensor]] = []
        self.order: tuple[int, Tensor] = (-1, torch.empty(0))
        self.everything: Batch | None = None

    @property
    def draws(self) -> int:
        """Batches drawn before this step: every turn draws `repeat` at each step it plays."""
        return sum(t.repeat * math.ceil(self.step / t.every) for t in self.turns if not t.whole)

    def batch(self, number: int) -> Batch:
        """The number-th batch drawn: epochs without replacement, the ragged tail left out."""
        epoch, place = divmod(number, self.epoch_steps)
        if self.order[0] != epoch:
            generator = fresh(fold(self.seed, "epoch", epoch))
            self.order = (epoch, torch.randperm(len(self.rows), generator=generator))
        index = self.order[1][place * self.size:(place + 1) * self.size]
        return replace(self.rows.batch(index, train=True).to(self.device), step=self.step)

    def whole(self) -> Batch:
        if self.everything is None:
            self.everything = self.rows.whole().to(self.device)
        return replace(self.everything, step=self.step)

    def begin(self) -> None:
        reseed(fold(self.seed, "begin"), self.device)
        index = torch.arange(min(len(self.rows), BEGINNING))
        self.model.begin(self.rows.batch(index, train=True).to(self.device))
        self.average = Average(self.model, self.recipe.average)

    def advance(self, scale: float) -> None:
        """Play every turn once, with rates multiplied by `scale`."""
        if self.step == 0:
            self.begin()
        if not self.model.training:
            self.model.train()
        drawn = self.draws
        for number, turn in enumerate(self.turns):
            if self.step % turn.every:
                continue
            reseed(fold(self.seed, "step", self.step, turn.name), self.device)
            for _ in range(turn.repeat):
                batch = self.whole() if turn.whole else self.batch(drawn)
                drawn += not turn.whole
                self.move(number, turn, batch, scale)
        self.average.update(self.step)
        self.step += 1

    def move(self, number: int, turn: Turn, batch: Batch, scale: float) -> None:
        """One move: the mover's gradients alone are made, and only its optimiser steps."""
        mover = self.movers[number]
        if mover is None:
            with torch.no_grad():
                self.note(turn.name, self.losses[number](batch))
            return
        with torch.autocast(self.device.type, torch.bfloat16) if self.half else nullcontext():
            losses = self.losses[number](batch)
        total = torch.stack([term.mean() for term in losses.values()]).sum()
        mover.zero_grad(set_to_none=True)
        total.backward(inputs=list(turn.params))
        settings = self.recipe.mover(turn.name)
        if settings.clip:
            nn.utils.clip_grad_norm_(turn.params, settings.clip)
        for group in mover.param_groups:
            group["lr"] = settings.rate * scale
        mover.step()
        self.note(turn.name, losses)

    def note(self, turn: str, losses: Losses) -> None:
        """Remember the terms as tensors; they are read later, all at once."""
        self.pending += [(self.step, f"{turn}/{name}", term.detach().mean())
                         for name, term in losses.items()]

    def read(self) -> tuple[dict[str, float], str]:
        """The mean of each term since the last reading, and a sentence if one is not finite."""
        pending, self.pending = self.pending, []
        sums: dict[str, list[float]] = {}
        values = torch.stack([v.float() for _, _, v in pending]).tolist() if pending else []
        for (step, name, _), value in zip(pending, values, strict=True):
            if not math.isfinite(value):
                turn, _, term = name.partition("/")
                return {}, (f"the term {term!r} of the turn {turn!r} became {value} at step "
                            f"{step}; the last good weights are kept; try a smaller train.rate, "
                            "or train.clip=1")
            sums.setdefault(name, []).append(value)
        return {name: sum(entries) / len(entries) for name, entries in sums.items()}, ""

    def consider(self, score: Score) -> bool:
        """Take note of a held-out score; true if it is a new best."""
        better = score.better_than(self.best)
        if better:
            self.best, self.stale, self.kept = score, 0, self.weights()
        else:
            self.stale += 1
        return better

    def weights(self) -> dict[str, Tensor]:
        """A copy of what sampling and scoring use: averaged weights, live buffers."""
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
        for turn, mover in zip(self.turns, self.movers, strict=True):
            for param, slots in mover.state.items() if mover else ():
                head = f"optimiser/{turn.name}/{names[id(param)]}"
                tensors |= {f"{head}/{slot}": value for slot, value in slots.items()
                            if isinstance(value, Tensor)}
        best = None if self.best is None else self.best.to_dict()
        counters = {"step": self.step, "stale": self.stale, "seconds": self.seconds, "best": best}
        return tensors, counters

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Take up where `state` left off."""
        def under(head: str) -> dict[str, Tensor]:
            return {k.removeprefix(head): v for k, v in tensors.items() if k.startswith(head)}

        try:
            self.model.load_state_dict(under("model/"))
            self.average.weights |= {k: v.to(self.device) for k, v in under("average/").items()}
            params = dict(self.model.named_parameters())
            for turn, mover in zip(self.turns, self.movers, strict=True):
                for path, value in under(f"optimiser/{turn.name}/").items():
                    name, _, slot = path.rpartition("/")
                    mover.state[params[name]][slot] = value.clone()  # type: ignore[union-attr]
            self.kept = under("kept/")
            self.best = None if counters["best"] is None else Score(**counters["best"])
            self.step, self.stale = counters["step"], counters["stale"]
            self.seconds = counters["seconds"]
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise RunError(f"the checkpoint does not fit this model ({error}); it was written by "
                           "another configuration or version") from error
