"""Search the settings of a model: many fits on one dataset, chosen by Optuna.

A search is a folder: tune.json holds its plan, journal.jsonl every trial with its settings and
held-out metrics, each trial is a run folder in it, and the best of them is kept. The first trial
has the default settings. A trial that is worse than the median of those before it at the same
fraction of the budget is stopped. A search killed at any moment goes on with the same command, an
interrupted trial from its checkpoint. The held-out rows choose the best, so its metric on them is
optimistic: `monge evaluate` measures it on test rows.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from ..core.config import Overrides
from ..core.errors import MongeError, RunError, UsageError
from ..core.metric import Metric
from ..core.rng import check_seed
from ..plot.importance import write_importances
from ..run import storage
from ..run.figures import write_figures
from ..run.run import Run, load, start
from ..run.saved import ComputeConfig
from ..run.setup import RunSetup, resolve_setup
from ..train.budget import Budget
from ..train.loop import Progress, terminable
from .ray_backend import Cluster, stop_file
from .runner import FitProcesses
from .search_space import Dimension, default_dimensions, split_settings, value_at

if TYPE_CHECKING:
    import pandas as pd

FILE, JOURNAL, FIGURE = "tune.json", "journal.jsonl", "importances.png"
BUDGET = "60s"
POLL_SECONDS = 0.5
"""Seconds between two looks at the logs of trials in processes of their own."""
CHECKS = 10
"""Times in a trial at which it may be stopped: once a tenth of its budget."""
FIRST_WHOLE = 5
"""Trials that are never stopped, so that others have something to be compared with."""
FEWEST_FOR_IMPORTANCES = 5
"""Complete trials from which importances are computed."""


@dataclass(frozen=True)
class TrialResult:
    """One trial: its settings, its held-out metric and how it ended."""

    number: int
    settings: dict[str, Any]
    state: str  # complete, stopped (as worse than the median), failed
    held_out: Metric | None = None
    failure: str = ""


@dataclass(frozen=True)
class TuningResult:
    """The result of a search: all trials, the run of the best, and how much each setting
    matters."""

    folder: Path
    trials: list[TrialResult]
    importances: dict[str, float] = field(default_factory=dict)

    @property
    def default(self) -> TrialResult | None:
        """The trial with the default settings, or the nearest to them in the ranges."""
        return next((each for each in self.trials if each.number == 0 and each.held_out), None)

    @property
    def best(self) -> TrialResult:
        """The trial with the best held-out metric."""
        best: TrialResult | None = None
        for each in self.trials:
            if each.held_out and each.held_out.better_than(best.held_out if best else None):
                best = each
        if best is None:
            why = next((each.failure for each in self.trials if each.failure), "none has ended")
            raise RunError(f"no trial of {self.folder} has a held-out metric: {why}")
        return best

    @property
    def run(self) -> Path:
        """The folder of the best run."""
        return trial_folder(self.folder, self.best.number)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial: its settings, its held-out metric and how it ended."""
        import pandas as pd

        rows = [
            {
                **each.settings,
                "held_out": each.held_out.value if each.held_out else math.nan,
                "state": each.state,
            }
            for each in self.trials
        ]
        return pd.DataFrame(rows, index=pd.Index([t.number for t in self.trials], name="trial"))

    def to_dict(self) -> dict[str, Any]:
        def shown(trial: TrialResult) -> dict[str, Any]:
            held = trial.held_out.to_dict() if trial.held_out else None
            return {**vars(trial), "held_out": held}

        return {
            "folder": str(self.folder),
            "run": str(self.run),
            "best": shown(self.best),
            "default": shown(self.default) if self.default else None,
            "trials": [shown(trial) for trial in self.trials],
            "importances": self.importances,
        }


def tune(
    model: str,
    what: Any,
    *settings: str,
    trials: int = 20,
    budget: str = BUDGET,
    given: Sequence[str] = (),
    target: str | Sequence[str] = (),
    seed: int = 0,
    out: str | Path | None = None,
    threads: int = 0,
    workers: int = 1,
    ray: str | None = None,
    on_event: Callable[[Tuning | TrialResult], None] = lambda _: None,
) -> TuningResult:
    """Search the settings of a model for the best held-out log-likelihood.

    Parameters
    ----------
    model : str
        The name of a model.
    what : str or Path
        The data: a built-in name or a path.
    *settings : str
        "width=32..512" varies a setting, "activation=relu|tanh" chooses one, "depth=2" keeps it at
        a value. If none is varied, the learning rate, the batch size and every setting of the
        model that has a range or choices are.
    trials : int
        Trials in all, those of an earlier call on the same folder included.
    budget : str
        Budget of each trial: "90s", "5m", "500steps" or "3epochs".
    given, target : list of str
        Fields that the model is conditioned on, or columns that it predicts.
    seed : int
        Seed of the search and of every fit.
    out : str or Path, optional
        The folder of the search; an interrupted one is continued.
    threads : int
        CPU threads of each process; 0 lets torch decide, or is 1 with `workers` or `ray`.
    workers : int
        Processes that train each trial together.
    ray : str, optional
        The address of a Ray cluster, on which as many trials run at a time as it has room for.
    on_event : callable
        Called with the search before the first trial, and with each trial as it ends.

    Returns
    -------
    TuningResult
        Its `run` is the folder of the best run, `frame` a table of the trials.

    Examples
    --------
    >>> import monge
    >>> found = monge.tune("made", "iris", "width=8..64", trials=3, budget="2epochs")
    >>> run = monge.load(found.run)
    """
    search = Tuning.create(
        model, what, settings, budget, given, target, seed, None if out is None else Path(out)
    )
    on_event(search)
    with storage.locked(search.folder):
        if ray or workers > 1:
            place = Cluster(ray, threads or 1, workers) if ray else OneAtATime()
            with place as pool:
                for each in search.run_trials_apart(trials, pool, threads or 1, workers):
                    on_event(each)
        else:
            for each in search.run_trials(trials, ComputeConfig(threads=threads)):
                on_event(each)
        return search.finish()


class Tuning:
    """A plan and the folder of its trials."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        dimensions: Sequence[Dimension],
        folder: Path,
        setup: RunSetup,
    ) -> None:
        self.plan, self.dimensions, self.folder, self.setup = plan, dimensions, folder, setup

    @classmethod
    def create(
        cls,
        model: str,
        what: Any,
        settings: Sequence[str],
        budget: str,
        given: Sequence[str],
        target: str | Sequence[str],
        seed: int,
        out: Path | None,
    ) -> Tuning:
        """In a new folder, or in that of the same search if it was interrupted."""
        check_seed(seed)
        Budget.read(budget)
        library()
        if not isinstance(what, str | Path):
            raise UsageError(
                f"expected the data as a name or a path, found a {type(what).__name__}; save it "
                "to a file first"
            )
        fixed, dimensions = split_settings(settings)
        targets = [target] if isinstance(target, str) else list(target)
        setup = resolve_setup(
            model, str(what), Overrides.parse(fixed), None, given, targets, 0, False
        )
        dimensions = dimensions or [
            with_possible_choices(each, setup)
            for each in default_dimensions(setup.config, setup.train_config, setup.view.space.rows)
            if not any(word.partition("=")[0] == each.name for word in fixed)
        ]
        dimensions = [each for each in dimensions if len(each.choices) != 1]
        for each in dimensions:
            for end in each.choices or (each.low, each.high):
                Tuning.check_setting(setup, each, end)
        plan = {
            "model": setup.metadata["model"],
            "data": str(what),
            "fingerprint": setup.metadata["data"]["fingerprint"],
            "settings": fixed,
            "varied": [str(each) for each in dimensions],
            "budget": budget,
            "given": list(given),
            "target": targets,
            "seed": seed,
        }
        wanted = out or storage.default_path(f"tune-{setup.title}")
        for folder in [wanted] if out else storage.candidates(wanted):
            found = read_plan(folder)
            if found in (None, plan):
                break
        else:
            raise RunError(f"{wanted} holds another search or run; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        if found is None:
            text = json.dumps(storage.with_format(plan), indent=1) + "\n"
            storage.write(folder / FILE, text)
        return cls(plan, dimensions, folder, setup)

    @staticmethod
    def check_setting(setup: RunSetup, dimension: Dimension, end: Any) -> None:
        """Raise UsageError for a setting that there is not, or for a value that it cannot have."""
        value = int(end) if dimension.whole else end
        words = Overrides.parse([f"{dimension.name}={value}"])
        setup.config.override(*words.model)
        setup.train_config.override(*words.train)
        if words.data or words.sample or words.score:
            raise UsageError(
                f"expected settings of the model or of training to vary, found {dimension.name}; "
                "keep it at one value"
            )

    @property
    def default_values(self) -> dict[str, Any]:
        """The default of each dimension, or the value nearest to it."""
        config, train_config = self.setup.config, self.setup.train_config
        return {
            each.name: each.nearest(value_at(config, train_config, each.name))
            for each in self.dimensions
        }

    def run_trials(self, count: int, compute: ComputeConfig) -> Iterator[TrialResult]:
        """Run trials until `count` have ended, and yield each."""
        optuna = library()
        with closing_study(self.folder, self.plan["seed"]) as study:
            if not study.trials:
                study.enqueue_trial(self.default_values)
            running = [t for t in study.trials if t.state.name == "RUNNING"]
            ended = sum(trial.state.is_finished() for trial in study.trials)
            for place in range(count - ended):
                begun = sum(trial.state.name != "WAITING" for trial in study.trials)
                number = running[place].number if place < len(running) else begun
                # A search that was killed goes on as if it was not.
                study.sampler = make_sampler(self.plan["seed"] + number)
                if place < len(running):
                    trial = optuna.trial.Trial(study, running[place]._trial_id)
                else:
                    trial = study.ask()
                self.run_trial(study, trial, compute)
                found = results(study)
                self.keep_best(found)
                yield found[trial.number]

    def run_trial(self, study: Any, trial: Any, compute: ComputeConfig) -> None:
        """Fit with the settings that the trial suggests, and tell the study how it went."""
        folder = trial_folder(self.folder, trial.number)
        chosen = [each.suggest(trial) for each in self.dimensions]
        try:
            run = open_run(self.plan, folder, chosen, compute)
            stopped = self.train(run, trial)
            if not stopped and run.result["stopped"] == "asked":
                raise KeyboardInterrupt
            held = run.result["held_out"]
        except (MongeError, RuntimeError) as error:  # torch raises RuntimeError if memory is short
            record_failure(study, trial, (str(error).splitlines() or ["failed"])[0])
            return
        record_result(study, trial, held, stopped)

    def train(self, run: Run, trial: Any) -> bool:
        """Train; whether the trial was stopped because it is worse than others."""
        checked, best = 0, None
        with closing(
            cast(Generator[Progress, None, None], run.train(self.plan["budget"]))
        ) as steps:
            for progress in steps:
                if progress.held_out is None:
                    continue
                best = progress.held_out if progress.held_out.better_than(best) else best
                if progress.stopped:
                    continue
                checked, worse = check_progress(trial, best, progress.fraction, checked)
                if worse:
                    return True
        return False

    def run_trials_apart(
        self, count: int, pool: TrialPool, threads: int, workers: int
    ) -> Iterator[TrialResult]:
        """The same with every trial in processes of its own, several trials at a time."""
        with closing_study(self.folder, self.plan["seed"], parallel=True) as study:
            if not study.trials:
                study.enqueue_trial(self.default_values)
            left = [t for t in study.trials if t.state.name == "RUNNING"]
            begun = sum(trial.state.is_finished() for trial in study.trials)
            active: dict[Any, ActiveTrial] = {}
            while active or begun < count:
                while begun < count and len(active) < pool.slots:
                    found = left.pop(0)._trial_id if left else None
                    trial = (
                        library().trial.Trial(study, found) if found is not None else study.ask()
                    )
                    begun += 1
                    chosen = [each.suggest(trial) for each in self.dimensions]
                    folder = trial_folder(self.folder.resolve(), trial.number)
                    stop_file(folder).unlink(missing_ok=True)
                    words = ["--trial", str(folder.parent), str(trial.number)]
                    words += [str(threads), str(workers), *chosen]
                    active[pool.submit(words, folder)] = ActiveTrial(trial, folder)
                for task in pool.wait(list(active), POLL_SECONDS):
                    ended = active.pop(task)
                    ended.record(study, pool.failure(task))
                    stop_file(ended.folder).unlink(missing_ok=True)
                    known = results(study)
                    self.keep_best(known)
                    yield known[ended.trial.number]
                for each in active.values():
                    each.check(Budget.read(self.plan["budget"]))

    def keep_best(self, found: Sequence[TrialResult]) -> None:
        """Remove the runs of ended trials but the best."""
        ended = TuningResult(self.folder, [each for each in found if each.state != "running"])
        try:
            best = ended.best.number
        except RunError:
            best = -1
        for each in ended.trials:
            if each.number != best:
                shutil.rmtree(trial_folder(self.folder, each.number), ignore_errors=True)

    def finish(self) -> TuningResult:
        """All trials, importances with their figure, and the figures of the best run."""
        with closing_study(self.folder, self.plan["seed"]) as study:
            found = [each for each in results(study) if each.state != "running"]
            result = TuningResult(self.folder, found, importances(study))
        run = load(result.run)
        write_figures(run)
        run.diagnose()
        values = [each.held_out.value if each.held_out else math.nan for each in found]
        held = result.best.held_out
        assert held is not None
        write_importances(self.folder / FIGURE, result.importances, values, held)
        return result


def open_run(
    plan: Mapping[str, Any], folder: Path, chosen: Sequence[str], compute: ComputeConfig
) -> Run:
    """The run of a trial with the chosen settings, started or loaded."""
    if (folder / "run.json").exists():
        return load(folder, compute)
    return start(
        plan["model"],
        plan["data"],
        *plan["settings"],
        *chosen,
        given=plan["given"],
        target=plan["target"] or None,
        seed=plan["seed"],
        out=folder,
        compute=compute,
        budget=plan["budget"],
    )


def trial_folder(folder: Path, number: int) -> Path:
    return folder / f"trial-{number:04d}"


def read_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of the search in a folder, None if it holds nothing."""
    if (folder / FILE).exists():
        return storage.read(folder, FILE)
    return {} if folder.exists() and any(folder.iterdir()) else None


def utility(metric: Metric) -> float:
    """What is maximised: a log-likelihood, or a distance or loss with a minus sign."""
    return -metric.value if metric.kind in ("distance", "loss") else metric.value


def library() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise UsageError(
            "tune needs the package optuna, which is not installed; pip install 'monge[tune]'"
        ) from error


def with_possible_choices(dimension: Dimension, setup: RunSetup) -> Dimension:
    """The dimension without choices that the model refuses on this data, such as one that needs
    another setting beside it."""

    def is_possible(choice: str) -> bool:
        try:
            words = Overrides.parse([f"{dimension.name}={choice}"])
            with torch.device("meta"):
                setup.config.override(*words.model).build(setup.view.space)
        except MongeError:
            return False
        except Exception:  # what cannot be built without values is left to the trials
            return True
        return True

    return replace(dimension, choices=tuple(filter(is_possible, dimension.choices)))


def check_progress(
    trial: Any, best: Metric | None, fraction: float, checked: int
) -> tuple[int, bool]:
    """Report the best metric so far at every tenth of the budget since the `checked`-th; the last
    of them, and whether the trial is worse than others and should stop."""
    due = min(int(fraction * CHECKS), CHECKS)
    if best is None or due <= checked:
        return checked, False
    for check in range(checked + 1, due + 1):
        trial.report(utility(best), check)
    return due, trial.number >= FIRST_WHOLE and trial.should_prune()


def record_result(study: Any, trial: Any, held: Mapping[str, Any] | None, stopped: bool) -> None:
    """Record the held-out metric of a trial that has ended, or was stopped as worse than
    others."""
    if held is None or not math.isfinite(held["value"]):
        record_failure(study, trial, "its held-out metric is not finite")
        return
    trial.set_user_attr("held_out", dict(held))
    if stopped:
        study.tell(trial, state=library().trial.TrialState.PRUNED)
    else:
        study.tell(trial, utility(Metric(**held)))


def record_failure(study: Any, trial: Any, why: str) -> None:
    trial.set_user_attr("failure", why)
    study.tell(trial, state=library().trial.TrialState.FAIL)


class TrialPool(Protocol):
    """Where trials run: on the machines of a cluster, or one at a time here."""

    @property
    def slots(self) -> int: ...
    def submit(self, arguments: Sequence[str], run: Path) -> Any: ...
    def wait(self, tasks: Sequence[Any], seconds: float | None = None) -> list[Any]: ...
    def failure(self, task: Any) -> str | None: ...


class OneAtATime(AbstractContextManager["OneAtATime"]):
    """Runs the processes of one trial at a time on this machine."""

    slots = 1

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.runs: dict[Future[str | None], FitProcesses] = {}
        self.signals = ExitStack()
        self.signals.enter_context(terminable())

    def __exit__(self, *error: Any) -> None:
        for each in self.runs.values():
            each.stop()
        self.pool.shutdown()
        self.signals.close()

    def submit(self, arguments: Sequence[str], run: Path) -> Future[str | None]:
        processes = FitProcesses()
        task = self.pool.submit(processes.run, arguments)
        self.runs[task] = processes
        self.folders = {task: run}
        return task

    def wait(
        self, tasks: Sequence[Future[str | None]], seconds: float | None = None
    ) -> list[Future[str | None]]:
        for task in tasks:
            if stop_file(self.folders[task]).exists():
                self.runs[task].stop()
        return list(wait_for(tasks, seconds, FIRST_COMPLETED).done)

    def failure(self, task: Future[str | None]) -> str | None:
        del self.runs[task]
        return task.result()


class ActiveTrial:
    """A trial whose fit runs in processes of its own; its log says how it goes."""

    def __init__(self, trial: Any, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        self.checked, self.stopped = 0, False

    def check(self, budget: Budget) -> None:
        """Ask the fit to stop if the trial is worse than others at the same part of the budget."""
        scored = [entry for entry in storage.Log(self.folder / "log.jsonl") if entry["held_out"]]
        best = None
        for entry in scored:
            metric = Metric(**entry["held_out"])
            best = metric if metric.better_than(best) else best
        if not scored or self.stopped:
            return
        used = budget.used(scored[-1]["step"], scored[-1]["seconds"], scored[-1]["epoch"])
        self.checked, self.stopped = check_progress(self.trial, best, used, self.checked)
        if self.stopped:
            storage.write(stop_file(self.folder), "")

    def record(self, study: Any, failure: str | None) -> None:
        """Record how the trial ended."""
        if failure is None:
            try:
                result = load(self.folder).result
            except MongeError as error:
                failure = str(error)
        if failure is not None:
            record_failure(study, self.trial, failure)
        else:
            record_result(study, self.trial, result["held_out"], self.stopped)


@contextmanager
def closing_study(folder: Path, seed: int, parallel: bool = False) -> Iterator[Any]:
    """The study in the journal of a folder, which this process alone writes."""
    optuna = library()
    journal = importlib.import_module("optuna.storages.journal")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / JOURNAL
    cut_torn_line(path)

    backend = journal.JournalFileBackend(str(path), lock_obj=NoLock())
    kept = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(
        storage=kept, study_name="tune", direction="maximize", load_if_exists=True
    )
    study.sampler = make_sampler(seed + len(study.trials), parallel)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST_WHOLE)
    yield study


def make_sampler(seed: int, parallel: bool = False) -> Any:
    """What proposes settings; of several trials at once each takes the others for poor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna says that `constant_liar` is experimental
        return library().samplers.TPESampler(seed=seed % 2**32, constant_liar=parallel)


class NoLock:
    """The lock of a journal whose folder is locked already."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


def cut_torn_line(path: Path) -> None:
    """Remove a last line that a killed process has not written to its end."""
    if not path.exists():
        return
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def results(study: Any) -> list[TrialResult]:
    """Every trial of a study, in order."""
    states = {"COMPLETE": "complete", "PRUNED": "stopped", "FAIL": "failed"}
    return [
        TrialResult(
            trial.number,
            dict(trial.params),
            states.get(trial.state.name, "running"),
            Metric(**trial.user_attrs["held_out"]) if "held_out" in trial.user_attrs else None,
            trial.user_attrs.get("failure", ""),
        )
        for trial in study.trials
    ]


def importances(study: Any) -> dict[str, float]:
    """How much of the variance of the metric each setting explains, the largest first; empty with
    few trials or if all are equal."""
    optuna = library()
    complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if len(complete) < FEWEST_FOR_IMPORTANCES or len({trial.value for trial in complete}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(value) for name, value in found.items()}
