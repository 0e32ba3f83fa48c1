"""Whom the contract examines: every model in each world it takes, tiny, fitted for a moment."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import worlds

from monge import registry
from monge.compatibility import check_compatible
from monge.core.abilities import HasCritic, HasDiscriminator, HasLikelihood
from monge.core.batch import Batch
from monge.core.errors import DataError
from monge.core.space import Space
from monge.evaluate.likelihood import HeldOutScorer
from monge.train.budget import Budget
from monge.train.loop import evaluate_ema, fit
from monge.train.trainer import Trainer

KINDS = ("real", "binary", "levels", "label", "counts", "columns")
STEPS, DRAWS, GAME = 60, 100, 250
"""Steps of a fit: samples take longer to show their worth than a likelihood, and a game of two
that begins with noise takes longest."""


@functools.cache
def world(kind: str, options: str) -> tuple[Space, Batch]:
    """A world of this kind, given one thing or nothing."""
    alone = worlds.make(kind)
    return worlds.conditioned(*alone, options) if options else alone


def takes(name: str, space: Space) -> bool:
    try:
        check_compatible(name, registry.find(name), space)
    except DataError:
        return False
    return True


@functools.cache
def examined(name: str) -> list[tuple[str, str]]:
    """The kinds of event a model takes, each alone and with the first condition it takes; reals
    also with a text, where it reads one."""
    found = []
    for kind in KINDS:
        if not registry.find(name).is_predictor and takes(name, world(kind, "")[0]):
            found.append((kind, ""))
        names = worlds.conditions(world(kind, "")[0])
        taken = [how for how in names if takes(name, world(kind, how)[0])]
        found += [
            (kind, how) for how in taken if how == taken[0] or (kind, how) == ("real", "text")
        ]
    return found


def subjects(*abilities: type) -> Iterator[tuple[str, str, str]]:
    """(model, kind, condition or none) for all that have these abilities."""
    needed = {ability.ability for ability in abilities}
    for entry in registry.entries():
        if needed <= set(entry.abilities):
            yield from ((entry.name, *pair) for pair in examined(entry.name))


def every(*abilities: type, given: bool | None = None, finite: bool = False, field: str = ""):
    """Run a check on every subject with these abilities, and with a field of this name in its
    `Sampling`; all checks of a subject run in one process, which fits it once."""
    cases = [
        pytest.param(name, kind, how, id="-".join(filter(None, (name, kind, how))))
        for name, kind, how in subjects(*abilities)
        if given in (None, bool(how))
        and worlds.is_finite(world(kind, "")[0]) >= finite
        and (not field or field in registry.find(name).SamplingConfig.__dataclass_fields__)
    ]
    return pytest.mark.parametrize(("name", "kind", "given"), cases)


class Subject:
    """A tiny model of a world, fitted for a moment."""

    def __init__(self, name: str, kind: str, given: str) -> None:
        self.owner = registry.find(name)
        self.space, self.batch = world(kind, given)
        self.train, self.valid = worlds.Rows(self.batch[:600]), worlds.Rows(self.batch[600:])
        self.config = self.owner.smallest_config(self.space)
        recipe = self.owner.defaults(self.space).recipe
        self.recipe = replace(
            recipe,
            batch_size=64,
            warmup=10,
            eval_every=20,
            patience=0,
            ema_decay=0.9,
            lr=max(recipe.lr, 3e-3),
        )

    def build(self):
        torch.manual_seed(0)
        return self.config.build(self.space)

    def told(self, *codes: int) -> dict[str, Batch]:
        """What it is given, to say that it is one of three."""
        return worlds.told(self.space, torch.tensor(codes))

    def trainer(self) -> Trainer:
        return Trainer(self.build(), self.train, self.recipe, seed=1)


@functools.cache
def subject(name: str, kind: str, given: str) -> Subject:
    return Subject(name, kind, given)


@functools.cache
def trained(name: str, kind: str, given: str):
    """The subject's model after a short fit, in float64, ready to be asked; and its two scores."""
    case = subject(name, kind, given)
    train, valid = (worlds.Rows(rows.all.double()) for rows in (case.train, case.valid))
    trainer = Trainer(case.build().double(), train, case.recipe, seed=1)
    judge = HeldOutScorer(trainer.model, valid)
    before = evaluate_ema(trainer, judge)
    game = isinstance(trainer.model, (HasCritic, HasDiscriminator)) and not case.owner.is_predictor
    steps = STEPS if isinstance(trainer.model, HasLikelihood) else GAME if game else DRAWS
    for _ in fit(trainer, Budget(steps=steps)):
        pass
    after = evaluate_ema(trainer, judge)
    trainer.ema.put(trainer.ema.weights)
    return trainer.model.eval(), before, after
