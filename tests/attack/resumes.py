"""Every model, stopped at a random step and resumed from its checkpoint, equals one that was never
stopped, bit for bit: weights, averages, optimisers, counters and best weights.

    python tests/attack/resumes.py --tries 106 --seed 7

A try trains a model of the registry for some steps, in its default or its smallest configuration,
with its own training settings and schedule. All models are tried before one is tried again.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from attacking import main

sys.path.insert(0, str(Path(__file__).parents[1]))

import small_data
from candidates import dataset, supported

from monge import registry
from monge.evaluate.likelihood import HeldOutScorer
from monge.train import checkpoint
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

STEPS, TRAIN, ALL = 8, 96, 128


def difference(name: str, smallest: bool, stop: int, chance: random.Random) -> str | None:
    """What differs between a fit and one that was stopped after `stop` steps; None if nothing."""
    pairs = supported(name)
    space, batch = dataset(*chance.choice(pairs)) if pairs else small_data.sentences(ALL)
    model_class = registry.find(name)
    defaults = model_class.defaults(space)
    config = model_class.smallest_config(space) if smallest else defaults.config
    train_config = replace(defaults.train, batch_size=32, eval_every=3, warmup=2)
    train, valid = small_data.Rows(batch[:TRAIN]), small_data.Rows(batch[TRAIN:ALL])

    def trainer() -> Trainer:
        torch.manual_seed(0)
        return Trainer(config.build(space), train, train_config, seed=1)

    def run(subject: Trainer, until: int = STEPS) -> None:
        scorer = HeldOutScorer(subject.model, valid)
        for _ in fit(subject, Budget(steps=STEPS), scorer, lambda: subject.step >= until):
            pass

    whole, first, second = trainer(), trainer(), trainer()
    run(whole)
    run(first, stop)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint.save(Path(scratch) / "last.safetensors", *first.state())
        second.restore(*checkpoint.load(Path(scratch) / "last.safetensors"))
    run(second)
    (expected, counters), (found, resumed) = whole.state(), second.state()
    counters.pop("seconds"), resumed.pop("seconds")
    if counters != resumed:
        return f"counters {counters} and {resumed}"
    if expected.keys() != found.keys():
        return f"names {sorted(expected.keys() ^ found.keys())[:3]}"
    return next((key for key in expected if not torch.equal(expected[key], found[key])), None)


def attack(tries: int, seed: int, smallest: tuple[bool, ...] = (True, False)) -> list[str]:
    """The models that do not resume as they should, each in a line."""
    chance, failed = random.Random(seed), []
    cases = [(entry.name, small) for small in smallest for entry in registry.entries()]
    chance.shuffle(cases)
    for number in range(tries):
        name, small = cases[number % len(cases)]
        stop = chance.randrange(1, STEPS)
        if wrong := difference(name, small, stop, chance):
            how = "smallest" if small else "default"
            failed.append(f"{name}, {how} configuration, stopped at {stop}: {wrong[:300]}")
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 2 * len(registry.entries()))
