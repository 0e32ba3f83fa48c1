"""Early stopping, and the second training on all rows that may follow it."""

import re

import numpy as np
import pytest
import torch

import monge
from monge.core.errors import RunError, UsageError
from monge.core.rng import derive_seed
from monge.run import storage
from monge.run.run import start
from monge.train import checkpoint
from monge.train.optimiser import lr_factor
from monge.train.trainer import Trainer

QUICK = (
    "width=16",
    "depth=1",
    "train.batch_size=50",
    "train.eval_every=10",
    "train.patience=2",
    "train.lr=3e-2",
    "train.ema_decay=0.9",
)


@pytest.fixture
def binary():
    rng = np.random.default_rng(0)
    cause = rng.random((150, 1)) < 0.4
    return np.where(cause, rng.random((150, 6)) < 0.8, rng.random((150, 6)) < 0.2)


def play(run, *budgets):
    stops = []
    for budget in budgets:
        stops += [progress.stopped for progress in run.train(budget) if progress.stopped]
    return stops


def tensors(run, name):
    return checkpoint.load(run.folder / f"{name}.safetensors")[0]


def equal(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("way", ["same", "continue"])
def test_refit_is_marked_and_resumed_to_the_bit(binary, way):
    settings = (*QUICK, f"train.refit={way}")
    whole, parts = (start("made", binary, *settings, seed=1) for _ in range(2))
    assert play(whole, "5000steps") == ["patience", "refit"]
    counters = checkpoint.about(whole.folder / "last.safetensors")
    best, until = counters["best_step"], counters["refit"]["until"]
    total = counters["step"]
    assert best > 0
    for budget in (f"{best + 3}steps", f"{total - 2}steps", "5000steps"):
        play(parts, budget)
    assert equal(tensors(whole, "last"), tensors(parts, "last"))
    assert equal(tensors(whole, "best"), tensors(parts, "best"))
    result = whole.result
    assert result["stopped"] == "refit"
    assert result["refit"]["done"]
    assert result["refit"]["rows"] == 135  # 120 to train, 15 held out
    assert result["held_out"] == counters["best"]
    assert total == counters["refit"]["origin"] + until
    assert until == best if way == "same" else best < until <= 2 * best
    text = (whole.folder / "card.md").read_text()
    assert re.search(rf"\({way}\).*\b{result['refit']['steps']} steps\b.*\b135\b", text)
    assert play(whole, "5000steps") == []


def test_same_equals_a_plain_fit_of_all_those_rows(binary):
    """New weights, the best's number of steps, rows of train and valid: nothing else."""
    run = start("made", binary, *QUICK, "train.refit=same")
    play(run, "5000steps")
    steps = run.result["refit"]["steps"]
    plain = start("made", binary, *QUICK)
    trainer = Trainer(
        plain.build(),
        plain.opened.split("train+valid"),
        plain.train_config,
        derive_seed(0, "refit"),
    )
    for step in range(steps):
        trainer.train_step(lr_factor(plain.train_config, step, 1.0))
    assert equal(tensors(run, "best"), trainer.weights())


def test_a_refit_cut_by_the_budget_keeps_the_weights_of_the_fit(binary):
    settings = (*QUICK, "train.refit=same")
    run = start("made", binary, *settings)
    play(run, "5000steps")
    first = checkpoint.about(run.folder / "last.safetensors")["refit"]["origin"]
    cut = start("made", binary, *settings)
    play(cut, f"{first + 3}steps")
    assert cut.result["refit"]["steps"] == 3
    assert not cut.result["refit"]["done"]
    assert re.search(r"\(same\).*\b3 of \d+ steps\b", (cut.folder / "card.md").read_text())
    plain = start("made", binary, *QUICK)
    play(plain, "5000steps")
    assert equal(tensors(cut, "best"), tensors(plain, "best"))
    early = start("made", binary, *settings)
    play(early, "5steps")
    assert early.result["refit"]["of"] is None
    assert "(same)" in (early.folder / "card.md").read_text()


def test_the_loop_keeps_the_best_and_counts_its_step(binary):
    run = start("made", binary, *QUICK)
    play(run, "5000steps")
    held = run.history.dropna(subset=["held_out"])
    best = int(held.step[held.held_out.idxmax()])
    assert checkpoint.about(run.folder / "last.safetensors")["best_step"] == best
    assert run.result["held_out"]["value"] == held.held_out.max()
    assert int(held.step.iloc[-1]) == best + 20


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("train.updates.modle.lr=1", r"train\.updates\.modle.*model"),
        ("train.freeze=nets", r"train\.freeze.*net"),
        ("train.input_noise=0.1", r"train\.input_noise=0\.1"),
        ("train.nesterov=true", None),
    ],
)
def test_wrong_settings_leave_no_folder(binary, setting, named):
    settings = [setting, *([] if named else ["train.optimiser=sgd"])]
    with pytest.raises(UsageError, match=named or r"train\.nesterov=true.*train\.momentum"):
        start("made", binary, *settings)
    assert not storage.home().exists() or not list(storage.home().iterdir())


OWN = '''"""A mean that begins where another run ended, for tests"""
import torch
from monge.core.abilities import HasLikelihood, Likelihood
from monge.core.batch import as_batch
from monge.core.config import RunRef
from monge.core.model import Model

class Heir(Model, HasLikelihood):
    """p(x) = N(x; m, 1)."""
    events = {"real"}

    class Config(Model.Config):
        start: RunRef | None = None
        """A run whose mean is the first weight."""

    def __init__(self, config, space, parts=None):
        super().__init__(config, space, parts)
        first = self.parts["start"].m if "start" in self.parts else torch.zeros(space.dims)
        self.m = torch.nn.Parameter(first.detach().clone())

    def loss(self, batch):
        return {"nll": -self.likelihood(batch).value}

    def likelihood(self, batch, options=None, generator=None):
        return Likelihood(-0.5 * ((as_batch(batch).x - self.m) ** 2).sum(1), "exact")

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()
'''


def test_a_run_with_a_submodel_is_complete_resumes_and_names_it(tmp_path):
    (tmp_path / "heir.py").write_text(OWN)
    own, x = str(tmp_path / "heir.py"), np.random.default_rng(0).random((100, 2)) + 5
    first = monge.fit(own, x, budget="50steps")
    settings = (f"start={first.folder}", "train.ema_decay=0.9")
    whole, parts = (start(own, x, *settings, seed=1) for _ in range(2))
    play(whole, "20steps")
    play(parts, "7steps", "20steps")
    assert equal(tensors(whole, "last"), tensors(parts, "last"))
    kept = tensors(whole, "best")["parts.start.m"]
    assert torch.equal(kept, tensors(first, "best")["m"])
    assert f"start: {first.title}" in (whole.folder / "card.md").read_text()
    assert storage.read(whole.folder / "parts" / "start", "run.json") == first.metadata
    untrained = start(own, x)
    with pytest.raises(RunError, match=re.escape(str(untrained.folder))):
        start(own, x, f"start={untrained.folder}", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
