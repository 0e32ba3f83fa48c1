"""The models that the contract tests check: each on every small dataset it supports, briefly
trained in its smallest configuration."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import small_data
import torch

from monge import registry
from monge.core.abilities import HasCritic, HasDiscriminator, HasLikelihood
from monge.core.batch import Batch
from monge.core.config import Config
from monge.core.errors import DataError
from monge.core.space import Space
from monge.evaluate.likelihood import HeldOutScorer
from monge.registry import check_compatible
from monge.train.budget import Budget
from monge.train.loop import evaluate_ema, fit
from monge.train.trainer import Trainer

KINDS = ("real", "binary", "levels", "label", "counts", "columns")
FEW_STEPS, LIKELIHOOD_STEPS, SAMPLE_STEPS, ADVERSARIAL_STEPS = 20, 60, 100, 250
"""Training steps by kind of model: a sample distance improves later than a likelihood, and
adversarial training, which starts from noise, is the slowest. Few suffice where nothing has to
improve."""
SLOW_TRAINING = {
    "adversarial.dcgan": {"lr": 1e-3, "ema_decay": 0.98},
    "diffusion.consistency": {"lr": 1e-3},
}
"""Models that improve for every seed only with a smaller learning rate, or a longer average and
more steps: of five seeds four of dcgan, and of four one of consistency on levels, got worse with
the settings of the others."""
PACE = {
    "adversarial.dcgan": 2,
    "adversarial.wgan-columns": 3,
    "diffusion.ddpm-real": 2,
    "latent.vqvae": 2,
}
"""How many times as many steps as others some models take, or models of some kinds of events: with
as many, wgan got worse on columns for four seeds of four, ddpm given a text for one, and the prior
of vqvae still lags behind codes that change."""


@functools.cache
def dataset(kind: str, given: str) -> tuple[Space, Batch]:
    """A small dataset of this kind, with the named condition or, if empty, without."""
    plain = small_data.make(kind)
    return small_data.conditioned(*plain, given) if given else plain


def takes(name: str, space: Space) -> bool:
    try:
        check_compatible(name, registry.find(name), space)
    except DataError:
        return False
    return True


@functools.cache
def supported(name: str) -> list[tuple[str, str]]:
    """(kind of event, condition) pairs that a model supports: each kind without a condition and
    with the first one it supports; reals also with a text."""
    found = []
    for kind in KINDS:
        if not registry.find(name).is_predictor and takes(name, dataset(kind, "")[0]):
            found.append((kind, ""))
        names = small_data.conditions(dataset(kind, "")[0])
        taken = [given for given in names if takes(name, dataset(kind, given)[0])]
        found += [
            (kind, given)
            for given in taken
            if given == taken[0] or (kind, given) == ("real", "text")
        ]
    return found


def subjects(*abilities: type) -> Iterator[tuple[str, str, str]]:
    """(model, kind, condition or "") of all models that have these abilities."""
    needed = {ability.ability for ability in abilities}
    for entry in registry.entries():
        if needed <= set(entry.abilities):
            yield from ((entry.name, *pair) for pair in supported(entry.name))


def is_adversarial(name: str) -> bool:
    """Whether it makes samples that another network judges."""
    abilities = set(registry.entry(name).abilities)
    judged = abilities & {HasCritic.ability, HasDiscriminator.ability}
    return bool(judged) and not registry.entry(name).is_predictor


def is_long(name: str, kind: str, given: str, improves: bool) -> bool:
    """Whether a subject is left to the slow suite: conditions are encoded alike for all kinds of
    events, so that one kind with each suffices, and adversarial fits that improve are long."""
    pairs = supported(name)
    if improves and is_adversarial(name):
        return (kind, given) != pairs[0]
    plain = [pair for pair in pairs if not pair[1]]
    alike = [pair for pair in pairs if pair[1] == given]
    return bool(plain and given) and (kind, given) != alike[0]


def every(
    *abilities: type,
    given: bool | None = None,
    finite: bool = False,
    field: str = "",
    improves: bool = False,
):
    """Run a check on every subject with these abilities, and with a field of this name in its
    `SamplingConfig`; all checks of a subject run in one process, which trains it once. A check
    that a fit `improves` has a longer fit of adversarial models."""
    cases = [
        pytest.param(
            name,
            kind,
            condition,
            id="-".join(filter(None, (name, kind, condition))),
            marks=[pytest.mark.slow] if is_long(name, kind, condition, improves) else [],
        )
        for name, kind, condition in subjects(*abilities)
        if given in (None, bool(condition))
        and small_data.is_finite(dataset(kind, "")[0]) >= finite
        and (not field or field in registry.find(name).SamplingConfig.__dataclass_fields__)
    ]
    return pytest.mark.parametrize(("name", "kind", "given"), cases)


def short_options(model, steps: int = 4) -> Config:
    """Sampling options with short chains and few steps, for checks that hold whatever their
    number is."""
    options = model.SamplingConfig()
    short = {"moves": 3, "leaps": 2, "resamples": 2, "sampler.steps": steps}
    fields = options.__dataclass_fields__
    return options.override(
        *(f"{name}={n}" for name, n in short.items() if name.partition(".")[0] in fields)
    )


class Subject:
    """A model in its smallest configuration, with its dataset and short training settings."""

    def __init__(self, name: str, kind: str, given: str) -> None:
        self.model_class = registry.find(name)
        self.space, self.batch = dataset(kind, given)
        # of a distance between samples, a share of the rows says less than of a likelihood
        end = 700 if issubclass(self.model_class, HasLikelihood) else 1000
        self.train, self.valid = (
            small_data.Rows(self.batch[:600]),
            small_data.Rows(self.batch[600:end]),
        )
        self.config = self.model_class.smallest_config(self.space)
        defaults = self.model_class.defaults(self.space).train
        self.train_config = replace(
            defaults,
            batch_size=64,
            warmup=10,
            eval_every=20,
            patience=0,
            ema_decay=0.9,
            lr=max(defaults.lr, 3e-3),
        )
        slow = SLOW_TRAINING.get(name, {})
        self.train_config = replace(self.train_config, **slow)
        self.pace = PACE.get(name, PACE.get(f"{name}-{kind}", 1))

    def build(self):
        torch.manual_seed(0)
        return self.config.build(self.space)

    def conditions(self, *codes: int) -> dict[str, Batch]:
        """The conditions that encode these classes, each one of three."""
        return small_data.conditions_of(self.space, torch.tensor(codes))

    def trainer(self) -> Trainer:
        return Trainer(self.build(), self.train, self.train_config, seed=1)


@functools.cache
def subject(name: str, kind: str, given: str) -> Subject:
    return Subject(name, kind, given)


@functools.cache
def trained(name: str, kind: str, given: str, improves: bool = False):
    """The model of a subject after short training in float64, in evaluation mode; its held-out
    metric before and after. An adversarial one is trained long only if it is to improve."""
    case = subject(name, kind, given)
    train, valid = (small_data.Rows(rows.all.double()) for rows in (case.train, case.valid))
    trainer = Trainer(case.build().double(), train, case.train_config, seed=1)
    scorer = HeldOutScorer(trainer.model, valid)
    before = evaluate_ema(trainer, scorer)
    if is_adversarial(name):
        steps = ADVERSARIAL_STEPS * case.pace if improves else FEW_STEPS
    elif isinstance(trainer.model, HasLikelihood):
        steps = LIKELIHOOD_STEPS * case.pace
    else:
        steps = SAMPLE_STEPS * case.pace
    for _ in fit(trainer, Budget(steps=steps)):
        pass
    after = evaluate_ema(trainer, scorer)
    trainer.ema.put(trainer.ema.weights)
    return trainer.model.eval(), before, after
