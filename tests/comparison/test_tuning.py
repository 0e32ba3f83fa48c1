"""Searches over settings: what is varied, what is kept, and going on after any end."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from monge.comparison import tuning, worker
from monge.comparison.ray_backend import stop_file
from monge.comparison.search_space import Dimension, split_settings
from monge.comparison.tuning import CHECKS, FIRST_WHOLE, JOURNAL, Tuning, tune
from monge.core.errors import DivergenceError, RunError, UsageError
from monge.core.metric import Metric
from monge.run.run import Run, load
from monge.run.storage import Log
from monge.train.budget import Budget
from monge.train.loop import Progress

SMALL = {"budget": "10steps", "threads": 1}
WORDS = ("width=4..64", "train.eval_every=5", "train.lr=1e-3..1e-1")


@pytest.fixture
def search(tmp_path):
    return lambda trials=3, *words, **rest: tune(
        "made", "iris", *(words or WORDS), trials=trials, out=tmp_path / "search", **SMALL, **rest
    )


def test_ranges_choices_and_fixed_settings_are_told_apart():
    fixed, found = split_settings(["depth=2", "width=8..64", "train.lr=1e-4..0.1", "order=a|b"])
    assert fixed == ["depth=2"]
    assert found == [
        Dimension("width", 8, 64, whole=True),
        Dimension("train.lr", 1e-4, 0.1),
        Dimension("order", choices=("a", "b")),
    ]
    assert [each.log for each in found] == [False, True, False]
    assert [str(each) for each in found] == ["width=8..64", "train.lr=0.0001..0.1", "order=a|b"]


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("width=9..3", "width"),
        ("width=a..3", "width"),
        ("widht=1..3", "width"),
        ("width=-2..3", "-2"),
        ("order=natural|sorted", "sorted"),
        ("train.lr=0..1", "lr"),
    ],
)
def test_ranges_that_cannot_be_are_refused_before_the_first_trial(search, tmp_path, word, named):
    with pytest.raises(UsageError, match=named):
        search(1, word)
    assert not (tmp_path / "search").exists()


def test_the_default_search_varies_what_has_a_range_or_choices(tmp_path):
    made = Tuning.create("made", "iris", ["depth=1"], "1s", (), (), 0, tmp_path / "search")
    found = {each.name: each for each in made.dimensions}
    assert "depth" not in found
    assert {"train.lr", "train.batch_size", "width", "dropout", "activation"} <= set(found)
    assert found["residual"].choices == ("false", "true")
    assert found["train.batch_size"].high <= made.setup.view.space.rows
    values = made.default_values
    assert values["width"] == made.setup.config.width
    assert values["residual"] == str(made.setup.config.residual).lower()
    nested = Tuning.create("vae", "digits", ["width=8..9999"], "1s", (), (), 0, tmp_path / "vae")
    assert nested.default_values["width"] == nested.setup.config.net.width


def test_the_best_run_is_kept_and_more_trials_continue_the_search(search, tmp_path):
    found = search(2)
    assert [trial.number for trial in found.trials] == [0, 1]
    assert found.default.settings["train.lr"] == pytest.approx(1e-3)
    again = search(4)
    assert again.trials[:2] == found.trials
    assert len(again.trials) == 4
    best = max(again.trials, key=lambda trial: trial.held_out.value)
    assert again.run == tmp_path / "search" / f"trial-{best.number:04d}"
    assert [path.name for path in (tmp_path / "search").glob("trial-*")] == [again.run.name]
    run = load(again.run)
    assert run.result["held_out"]["value"] == best.held_out.value
    assert run.config.width == best.settings["width"]
    assert list(again.frame["width"]) == [trial.settings["width"] for trial in again.trials]
    assert (tmp_path / "search" / "importances.png").stat().st_size > 1000
    with pytest.raises(RunError, match="search"):
        search(4, "width=4..32")
    with pytest.raises(RunError, match="search"):
        search(4, seed=1)


def test_a_search_in_two_parts_is_the_one_that_was_not_interrupted(search, tmp_path):
    search(1)
    parts = search(3)
    shutil.rmtree(tmp_path / "search")
    assert search(3).trials == parts.trials


def test_a_killed_search_goes_on_with_the_same_trial(search, tmp_path, monkeypatch):
    plain = Run.train

    def killed(self, budget):
        yield from (step for step in plain(self, budget) if not step.stopped)
        raise KeyboardInterrupt

    search(1)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            search(3)
    journal = tmp_path / "search" / JOURNAL
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 4, "wor')
    folder = tmp_path / "search" / "trial-0001"
    width = json.loads((folder / "run.json").read_text())["config"]["width"]
    found = search(3)
    assert [trial.state for trial in found.trials] == ["complete"] * 3
    assert found.trials[1].settings["width"] == width
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_a_trial_that_fails_is_told_and_the_search_goes_on(search, monkeypatch):
    plain = Run.train

    def failing(self, budget):
        if self.folder.name == "trial-0001":
            raise DivergenceError("too fast")
        return plain(self, budget)

    monkeypatch.setattr(Run, "train", failing)
    found = search(3)
    assert [trial.state for trial in found.trials] == ["complete", "failed", "complete"]
    assert found.trials[1].failure == "too fast"
    assert found.trials[1].held_out is None


class Steps:
    """A run whose held-out log-likelihood is given at each tenth of the budget."""

    def __init__(self, values):
        self.values, self.seen = values, 0

    def train(self, budget):
        for place, value in enumerate(self.values, 1):
            self.seen = place
            metric = Metric(value, "exact")
            yield Progress(place, 0, 0, place / CHECKS, 0, 0, held_out=metric)


def test_a_trial_worse_than_the_median_is_stopped(tmp_path):
    made = Tuning.create("made", "iris", ["width=4..8"], "1s", (), (), 0, tmp_path / "search")
    study = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_WHOLE)
    )
    for level in range(FIRST_WHOLE):
        trial = study.ask()
        assert not made.train(Steps([level + 0.1 * k for k in range(CHECKS)]), trial)
        study.tell(trial, float(level))
    good, bad = Steps([3.0] * CHECKS), Steps([1.0] * CHECKS)
    trial = study.ask()
    assert not made.train(good, trial)
    study.tell(trial, 3.0)
    assert made.train(bad, study.ask())
    assert bad.seen == 1
    assert good.seen == CHECKS


def test_choices_that_need_another_setting_are_left_out(tmp_path):
    made = Tuning.create("made", "iris", (), "1s", (), (), 0, tmp_path / "search")
    (order,) = (each for each in made.dimensions if each.name == "order")
    assert order.choices == ("natural", "snake", "random")


class Here:
    """Runs each trial in this process when it is waited for, two at a time."""

    slots = 2

    def __init__(self, failing=()):
        self.most, self.failing = 0, failing

    def submit(self, arguments, run):
        option, folder, number, threads, workers, *settings = arguments
        assert (option, workers) == ("--trial", "3")
        return partial(worker.run_trial, Path(folder), int(number), int(threads), settings)

    def wait(self, tasks, seconds):
        self.most = max(self.most, len(tasks))
        return [tasks[0]]

    def failure(self, task):
        return "its machine was lost" if task.args[1] in self.failing else task()


def test_trials_in_processes_of_their_own_end_like_others(tmp_path):
    made = Tuning.create("made", "iris", WORDS, "10steps", (), (), 0, tmp_path / "search")
    pool = Here(failing=[1])
    found = list(made.run_trials_apart(3, pool, 1, 3))
    assert pool.most == 2
    assert sorted(each.number for each in found) == [0, 1, 2]
    assert {each.number: each.state for each in found}[1] == "failed"
    assert load(made.finish().run).result["step"] == 10
    assert list(made.run_trials_apart(3, pool, 1, 3)) == []


def test_the_log_of_a_trial_decides_whether_it_is_asked_to_stop(tmp_path):
    reported = []
    trial = SimpleNamespace(
        number=FIRST_WHOLE,
        report=lambda value, step: reported.append((step, value)),
        should_prune=lambda: len(reported) > 3,
    )
    active = tuning.ActiveTrial(trial, tmp_path / "trial")
    (tmp_path / "trial").mkdir()
    log = Log(tmp_path / "trial" / "log.jsonl")
    for step, value in ((20, -5.0), (50, -6.0)):
        held = Metric(value, "nats", "exact").to_dict()
        log.add(
            {"step": step, "epoch": 1.0, "seconds": 1.0, "terms": {}, "norms": {}}
            | {"held_out": held}
        )
        active.check(Budget(steps=100))
    assert reported == [(check, -5.0) for check in range(1, 6)]  # the best so far
    assert active.stopped
    assert stop_file(tmp_path / "trial").exists()


def test_a_distance_is_minimised():
    assert tuning.utility(Metric(2.0, "distance")) < tuning.utility(Metric(1.0, "distance"))
    assert tuning.utility(Metric(-2.0, "exact")) < tuning.utility(Metric(-1.0, "exact"))


def test_what_a_search_needs_is_asked_for_before_the_first_trial(search, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="list"):
        tune("made", [[1.0, 2.0]], out=tmp_path / "search")
    with pytest.raises(UsageError, match=r"data\.seed"):
        search(1, "data.seed=0|1")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="optuna"):
        search(1)
    assert not (tmp_path / "search").exists()
