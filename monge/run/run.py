"""Runs: fit a model to data in a directory, load it again, and use it.

`start` creates the directory before the first step, `Run.train` trains with a log and checkpoints,
`load` needs only the directory. This module alone joins models, data and training.
"""

from __future__ import annotations

import math
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from .. import __version__
from ..core.abilities import (
    CanComplete,
    CanDecode,
    CanSample,
    CanStream,
    Finding,
    HasLikelihood,
    HasMarginals,
    HasMode,
)
from ..core.batch import Batch, broadcast_conditions
from ..core.config import Config, Overrides, apply_overrides, as_settings
from ..core.ensemble import Ensemble
from ..core.errors import DataError, RunError, UsageError, nearest
from ..core.memory import require_memory
from ..core.metric import Metrics
from ..core.model import Model
from ..core.rng import check_seed, make_generator
from ..data.codecs.sequence import SequenceCodec
from ..data.codecs.tokens import Text
from ..data.codecs.window import Window
from ..data.frames import as_pandas, in_kind, is_frame, opened
from ..data.packed import as_tensor
from ..evaluate.likelihood import RowLikelihoods, chunks, row_likelihoods
from ..evaluate.rejection import CompleteRows
from ..train.budget import Budget
from ..train.cost_estimate import Cost, estimate
from ..train.distributed import code_digest, join_workers, was_restarted
from ..train.loop import Progress, stop_requested
from ..train.trainer import Trainer
from . import storage
from .completion import (
    Completed,
    FillBy,
    about_known_cells,
    about_unknown_rows,
    array_rows,
    complete_rows,
    completed_table,
    in_form_of,
    unknown_cells,
)
from .latent import code_frame, decoded, encoded, own_rows
from .predict import By, beside_inputs, predict, predict_parts, read_table
from .relations import RelatedCells
from .saved import ComputeConfig, SavedRun, build, row_labels, submodels
from .session import LossUnit, TrainingSession, follow
from .setup import resolve_setup
from .storage import locked
from .track import check_tracker, tracked
from .where import (
    ACCEPTANCE_SAMPLES,
    Acceptance,
    ConditionalSamples,
    Where,
    complete_given,
    given_constraints,
    observed_range,
    parse_where,
    sample_where,
)
from .writers import PART

if TYPE_CHECKING:
    import pandas as pd

    from .detect import Detection

Able = TypeVar("Able")
BUDGET = "2m"
"""Default training budget; early stopping usually ends a fit sooner."""
ALWAYS_FEW_SAMPLES = 10_000
"""Samples up to which memory is not checked."""
COPIES_OF_SAMPLES = 4
"""Numbers held for each number of the samples, at least: noise, sample, decoded value, file."""
PRECISION = "fp32"
"""Default precision of the losses of a new run."""


def start(
    model: str | Config,
    what: Any,
    *settings: str,
    event: str | None = None,
    given: Sequence[str] = (),
    target: str | Sequence[str] | None = None,
    ensemble: int = 0,
    bag: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    name: str | None = None,
    compute: ComputeConfig | None = None,
    budget: str | None = None,
) -> Run:
    """Create a run directory: data opened, model built, nothing trained yet. A budget
    of less than one step is refused."""
    check_seed(seed)
    workers = join_workers()
    with workers.together():
        overrides, compute = Overrides.parse(settings), compute or ComputeConfig()
        what, form = (what, None) if isinstance(what, str | Path) else opened(what)
        precision = PRECISION if compute.precision == "auto" else compute.precision
        setup = resolve_setup(
            model, what, overrides, event, given, target, ensemble, bag, workers.size
        )
        metadata = {
            "monge": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **setup.metadata,
            "seed": seed,
            "precision": precision,
        }
        wanted = Path(out) if out else storage.default_path(name or setup.title)
        helpers = {field: storage.locate(part.run) for field, part in submodels(setup.config)}
        network = build(setup.config, setup.view.space, seed, compute, helpers, setup.train_config)
        # invalid settings are reported before there is a directory
        trainer = Trainer(
            network,
            setup.view.training(),
            setup.train_config,
            seed,
            precision,
            compute.compiled,
            workers,
            compute.shard,
        )
        if budget is not None:
            Budget.check(budget, trainer.epoch_steps)
        files = {
            "run.json": storage.with_format(metadata),
            "fields.json": storage.with_format(setup.view.to_dict()),
            **setup.view.selection.schema.vocabulary_files(),
        }
    workers.check_same(shared_facts(metadata))

    def create() -> str:
        again = storage.find_same(wanted, not out, metadata) if was_restarted() else None
        return str(again or storage.create(wanted, not out, files, helpers))

    folder = Path(workers.agree(create))
    with workers.together():  # the machines share the folder
        run = Run(folder, compute, setup.view)
    run.notes, run.trainer = setup.view.notes, trainer
    run.form = form
    return run


def shared_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What all processes that train together must have in common."""
    return {
        "code": code_digest(),
        "version of Python": metadata["python"],
        "version of torch": metadata["torch"],
        "data": metadata["data"]["fingerprint"],
        "settings": {name: metadata[name] for name in ("model", "config", "train", "seed")},
        "space": metadata["space"],
    }


def fit(
    model: str | Config,
    what: Any,
    *settings: str,
    budget: str = BUDGET,
    event: str | None = None,
    given: Sequence[str] = (),
    target: str | Sequence[str] | None = None,
    ensemble: int = 0,
    bag: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    name: str | None = None,
    threads: int = 0,
    progress: bool | None = None,
    track: str | None = None,
    compute: ComputeConfig | None = None,
    **fields: Any,
) -> Run:
    """Fit a model to data and return its run, as `monge fit` does.

    Parameters
    ----------
    model : str or Config
        The name of a model (`monge models` lists them), a file of one's own, or a whole config.
    what : str, Path, frame, array, (x, y) pair, torch Dataset, DataLoader or rows
        The data: a built-in name, a path, or a Python object. Frames may be of pandas, polars or
        Arrow; samples are then frames of that library.
    *settings : str
        Settings as on the command line: "latent=8", "train.lr=1e-3", "data.seed=1".
    budget : str
        When training ends at the latest: "90s", "5m", "500steps" or "3epochs".
    event : str, optional
        The field to model, if it is not the usual one.
    given : list of str
        Fields that the model is conditioned on.
    target : str or list of str, optional
        The columns to predict from the others.
    ensemble : int
        Members of an ensemble; 0 fits one model.
    bag : bool
        Fit each member to rows drawn with replacement.
    seed : int
        Seed of the initial weights and of training. That of the splits is data={"seed": 1}.
    out : str or Path, optional
        The folder of the run; it must not exist yet.
    name : str, optional
        The name of the run among the runs; a taken name gets a number.
    threads : int
        CPU threads; 0 lets torch decide.
    progress : bool, optional
        A progress bar; by default on a terminal and in a notebook only.
    track : str, optional
        Also write the progress to "tensorboard", "mlflow" or "wandb".
    compute : ComputeConfig, optional
        Device, precision and threads together.
    **fields
        Settings as keyword arguments: latent=8, net={"width": 64}, train={"lr": 1e-3},
        data={"seed": 1}. A setting that has the name of a parameter above is given as text.

    Returns
    -------
    Run
        The fitted run: `sample`, `log_likelihood`, `predict`, `complete`, `encode`, `forecast`,
        `evaluate`; `monge.load(run.folder)` loads it again.

    Examples
    --------
    >>> import monge
    >>> run = monge.fit("made", "iris", budget="3epochs", width=32, train={"lr": 1e-2})
    >>> len(run.sample(5))
    5
    """
    Budget.read(budget)
    if name is not None and out is not None:
        raise UsageError(f"expected a name or a folder, found name={name} and out={out}; give one")
    if track is not None:
        check_tracker(track)
    compute = compute or ComputeConfig()
    run = start(
        model,
        what,
        *settings,
        *as_settings(fields),
        event=event,
        given=given,
        target=target,
        ensemble=ensemble,
        bag=bag,
        seed=seed,
        out=out,
        name=name,
        compute=replace(compute, threads=threads) if threads else compute,
        budget=budget,
    )
    workers = join_workers()
    steps = run.train(budget)
    steps = tracked(steps, run, track) if track and workers.is_first else steps
    follow(steps, progress, LossUnit.of(run))
    if workers.is_first:
        run.diagnose()
    return run


def load(name: str | Path, compute: ComputeConfig | None = None) -> Run:
    """Load a run by path or by name.

    Examples
    --------
    >>> import monge
    >>> name = monge.fit("gaussian", "iris", name="mine", progress=False).folder.name
    >>> monge.load(name).sample(5, seed=1).shape
    (5, 4)
    """
    return Run(storage.locate(name), compute or ComputeConfig())


class Run(SavedRun):
    """A run directory: train its model, sample from it, score and predict with it.

    `monge.fit` makes one and `monge.load` reads one; the folder is all there is.

    Examples
    --------
    >>> import monge
    >>> run = monge.fit("gaussian", "iris", progress=False)
    >>> len(run.sample(5)), run.log_likelihood().kind
    (5, 'exact')
    >>> sorted(run.evaluate())[0]
    'bits_per_dim'
    """

    trainer: Trainer | None = None  # the one that `start` built, until `train` takes it
    form: Any = None  # a frame without rows of the library that samples are given in

    def load_sibling(self, name: str) -> Run:
        """Load another run on the same device."""
        return load(name, self.compute)

    @cached_property
    def cost(self) -> Cost:
        """Parameters and memory of training here, from losses of few rows."""
        return self.estimate_cost()

    def estimate_cost(self, timed: bool = False) -> Cost:
        """Parameters and memory of training here, and the time per step if a few steps of a model
        that is thrown away are `timed`."""
        self.opened = self.opened or self.open_view()
        model = self.build() if timed or self.trainer is None else self.trainer.model
        rows, seed = self.opened.training(), self.metadata["seed"]
        return estimate(model, rows, self.train_config, seed, self.precision, timed)

    @property
    def precision(self) -> str:
        """The precision of the losses, constant over the whole training."""
        own, requested = self.metadata["precision"], self.compute.precision
        if requested not in ("auto", own):
            raise UsageError(
                f"{self.folder} is trained with --precision {own}, found {requested}; "
                "leave it out, or start a new run"
            )
        return own

    def train(self, budget: str = BUDGET) -> Iterator[Progress]:
        """Train from the last checkpoint and yield progress; closing the iterator stops training
        and saves its state."""
        limit = Budget.read(budget)
        if self.metadata.get("compacted"):
            raise RunError(
                f"{self.folder} was compacted and cannot be resumed; start a new run, or use this "
                "one as it is"
            )
        workers = join_workers()
        with workers.together():
            view = self.opened or self.open_view()
        asked = {"budget": budget, "choice of --shard": self.compute.shard}
        workers.check_same(shared_facts(self.metadata) | asked)
        with ExitStack() as held:
            with workers.together():
                if workers.is_first:
                    held.enter_context(locked(self.folder))
                session = TrainingSession(
                    self.folder,
                    self.log,
                    self.build,
                    view,
                    self.train_config,
                    self.metadata["seed"],
                    self.precision,
                    self.compute.compiled,
                    self.trainer,
                    workers,
                    self.compute.shard,
                )
            should_stop = held.enter_context(stop_requested())
            self.trainer = None
            try:
                yield from session.train(limit, should_stop)
                workers.barrier()  # the files of the run are there in every process
            finally:
                if workers.is_first:
                    self._reset()

    def _reset(self) -> None:
        """Drop the loaded weights and write the card of the new ones."""
        self.__dict__.pop("model", None)
        self.__dict__.pop("acceptance", None)
        if (self.folder / "best.safetensors").exists():
            self.write_card()

    def write_card(self, findings: Sequence[Finding] | None = None) -> None:
        """Write the model card, with the findings of the diagnostics if there are any."""
        from .model_card import card

        helpers = {
            field: Run(self.folder / "parts" / field, self.compute).title
            for field, _ in submodels(self.config)
        }
        text = card(
            self.metadata, self.model_class.__doc__, self.space, self.result, helpers, findings
        )
        storage.write(self.folder / "card.md", text)

    def sample(
        self,
        n: int = 1,
        given: Mapping[str, Any] | None = None,
        *settings: str,
        where: Where | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Any:
        """n samples in the form of the data: a frame or an array.

        given={"label": 3} conditions all samples on one value, or each on its own of n values.
        where={"sex": "female", "age": ">60"} keeps samples of a table whose columns satisfy the
        conditions. Sampling options are keyword arguments or text: steps=20 or "steps=20"; with
        range="observed" samples outside the range of the training rows are drawn again. Without a
        seed every call gives other samples, which follow from `torch.manual_seed`.
        """
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        settings = (*settings, *as_settings(options))
        self.notes = ()
        if where is not None:
            x = self.sample_where(n, where, given, *settings, seed=seed).x
        else:
            x = self.sample_tensor(n, given, *settings, seed=seed)
        self.notes = (*self.notes, *self.departures(*settings))
        return in_kind(self.view.decode(x), self.form)

    def sample_where(
        self,
        n: int,
        where: Where = (),
        given: Mapping[str, Any] | None = None,
        *settings: str,
        seed: int = 0,
    ) -> ConditionalSamples:
        """n samples whose columns satisfy the conditions and the constraints of the data, and how
        many were tried."""
        self.check_count(n)
        settings, observed = observed_range(settings)
        model, options = self.require(CanSample), sampling_options(self, settings)
        device = self.compute.torch_device()
        conditions = encode_conditions(self, given, settings)

        def sample(size: int, generator: torch.Generator) -> torch.Tensor:
            return model.sample(size, conditions, options, generator).cpu()

        def complete(batch: Batch, generator: torch.Generator) -> torch.Tensor:
            rows = replace(
                batch, given=broadcast_conditions(conditions or {}, self.space, len(batch))
            )
            return self.require(CanComplete).complete(rows.to(device), options, generator).cpu()

        found = sample_where(
            model,
            self.view,
            parse_where(self.view, where) if where else (),
            n,
            sample,
            complete,
            make_generator(seed, device),
            observed,
        )
        self.notes = found.notes
        return found

    def departures(self, *settings: str) -> tuple[str, ...]:
        """What to say of samples whose settings change the distribution."""
        found = sampling_options(self, observed_range(settings)[0]).departure()
        return (f"{found}: these samples are not of the model's distribution",) if found else ()

    def check_count(self, n: int) -> None:
        """Refuse a number of samples that is negative or does not fit into memory."""
        if n < 0:
            raise UsageError(f"expected 0 or more samples, found n={n}; give a larger n")
        size = COPIES_OF_SAMPLES * 4.0 * n * math.prod(self.space.shape)
        if n > ALWAYS_FEW_SAMPLES:
            require_memory(f"n={n}", size, "sample fewer rows at a time, each with another seed")

    def sample_tensor(
        self, n: int, given: Mapping[str, Any] | None = None, *settings: str, seed: int = 0
    ) -> torch.Tensor:
        """n samples as a tensor (n, *event)."""
        self.check_count(n)
        if not n:  # a row that is left out gives the others their shape and type
            return self.sample_tensor(1, given, *settings, seed=seed)[:0]
        if self.view.constraints or any("range=" in word for word in settings):
            return self.sample_where(n, (), given, *settings, seed=seed).x
        model, options = self.require(CanSample), sampling_options(self, settings)
        generator = make_generator(seed, self.compute.torch_device())
        conditions = encode_conditions(self, given, settings)
        if n <= PART:
            return model.sample(n, conditions, options, generator).cpu()
        return torch.cat(list(self.sample_parts(n, given, *settings, seed=seed)))

    def sample_parts(
        self, n: int, given: Mapping[str, Any] | None = None, *settings: str, seed: int = 0
    ) -> Iterator[torch.Tensor]:
        """The same n samples as `sample_tensor`, some at a time: they are drawn in parts of PART
        rows from one generator."""
        model, options = self.require(CanSample), sampling_options(self, settings)
        generator = make_generator(seed, self.compute.torch_device())
        conditions = encode_conditions(self, given, settings)
        for rows in torch.arange(n).split(PART):
            here = conditions and {
                name: batch if len(batch) == 1 else batch[rows]
                for name, batch in conditions.items()
            }
            yield model.sample(len(rows), here, options, generator).cpu()

    def stream(
        self, n: int, given: Mapping[str, Any] | None = None, *settings: str, seed: int = 0
    ) -> Iterator[torch.Tensor]:
        """The intermediate states of n samples, (n, *event) each; the last are the samples."""
        model, options = self.require(CanStream), sampling_options(self, settings)
        generator = make_generator(seed, self.compute.torch_device())
        for x in model.stream(n, encode_conditions(self, given, settings), options, generator):
            yield x.cpu()

    def log_likelihood(
        self,
        what: Any = None,
        *settings: str,
        split: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> RowLikelihoods:
        """log p of every row: of the test split of the run's own data or of a dataset that has
        splits, of every row of other data. `series` has the index of a frame. Scoring options are
        keyword arguments or text: samples=1000 or "samples=1000"."""
        what = as_pandas(what)
        model, rows = self.require(HasLikelihood), self.split(what, split)
        settings = (*settings, *as_settings(options))
        scoring = apply_overrides(model.LikelihoodConfig(), settings, "score")
        found = row_likelihoods(model, chunks(rows), self.space.dims, scoring, seed, pad=True)
        found = replace(found, numbers=rows.numbers.numpy(), index=row_labels(what, rows))
        return given_constraints(found, self.acceptance) if self.view.constraints else found

    def score(
        self,
        what: Any = None,
        *settings: str,
        split: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """`log_likelihood` as a frame of the library of the data, as `monge score -o` writes it:
        nats, kind and rank (1 is the least likely) of every row, with the index of a frame."""
        what, form = opened(what)
        found = self.log_likelihood(what, *settings, split=split, seed=seed, **options)
        return in_kind(found.table(found.rank), self.form if what is None else form, False)

    @cached_property
    def acceptance(self) -> Acceptance | None:
        """The share of samples that obey the constraints which are met by rejection; None if it
        depends on conditions."""
        if self.space.given:
            return None
        generator = make_generator(0, self.compute.torch_device())
        x = self.require(CanSample).sample(ACCEPTANCE_SAMPLES, None, None, generator).cpu()
        return Acceptance(int(self.view.obeys(x).sum()), len(x))

    def predict(
        self,
        what: Any = None,
        *settings: str,
        split: str | None = None,
        by: By = "mean",
        interval: float = 0.9,
        keep_columns: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Predict the target of every row (by default of the run's test rows): for a class its
        name and probabilities, for a number its mean, mode or a sample, and its interval, as a
        frame of the library of the data. The index of a frame is that of its predictions; with
        `keep_columns` its columns stand before them, and a column of the target's name becomes
        NAME_true. Of text, the most probable one that a search finds."""
        self.require(HasMarginals if self.view.text is None else HasMode)
        what, form = opened(what)
        rows = self.split(what, split or (None if what is None else "all"), every=True)
        settings = (*settings, *as_settings(options))
        table = predict(self.model, self.view, rows, by, interval, settings, seed)
        labels = row_labels(what, rows)
        table = table if labels is None else table.set_axis(labels)
        if keep_columns:
            table = beside_inputs(read_table(what), table, rows)
        return in_kind(table, self.form if what is None else form)

    def predict_parts(
        self,
        what: Any = None,
        *settings: str,
        split: str | None = None,
        by: By = "mean",
        interval: float = 0.9,
        seed: int = 0,
    ) -> Iterator[pd.DataFrame]:
        """The rows of `predict` some at a time, so that a table of any length needs little
        memory."""
        self.require(HasMarginals if self.view.text is None else HasMode)
        rows = self.split(what, split or (None if what is None else "all"), every=True)
        return predict_parts(self.model, self.view, rows, by, interval, settings, seed)

    def forecast(
        self,
        horizon: int | None = None,
        what: Any = None,
        *settings: str,
        n: int = 1000,
        interval: float = 0.8,
        paths: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Median and central interval of every step after the end of a series, by default the
        run's own, as a frame; with `paths`, the n trajectories instead, one row per step."""
        from .forecast import forecast

        what, form = opened(what)
        found = forecast(self, horizon, what, (*settings, *as_settings(options)), n, seed)
        self.notes = found.notes
        table = found.in_type(found.sampled() if paths else found.table(interval))
        return in_kind(table, self.form if what is None else form)

    def translate(self, texts: Any, *settings: str, **options: Any) -> Any:
        """The most probable translation of a text, or of each of several: of a list as a list, of
        a column as a column, of a frame with a column of sources as a frame; search options such
        as beams=10 are keyword arguments or text. A run that maps images or sounds to text takes
        the names of files instead."""
        from .text import like_texts, reads_files, texts_in, translate, translate_files

        what, form = opened(texts)
        answer = translate_files if reads_files(self) else translate
        found = answer(self, texts_in(self, what), *settings, *as_settings(options))
        return in_kind(like_texts(self, found, what), form)

    def complete(
        self,
        what: Any = None,
        *settings: str,
        by: FillBy = "sample",
        draws: int = 1,
        keep_holes: Sequence[str] = (),
        split: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Rows (by default the run's test rows) with their empty cells filled in, in the form of
        the data that were passed in: sampled `draws` times given the other cells, or by their mean
        or median, with the most frequent name. Empty cells of the columns `keep_holes` stay
        empty."""
        what, form = opened(what)
        settings = (*settings, *as_settings(options))
        if (batch := array_rows(self.view, what, has_noise(settings))) is not None:
            x = self.complete_batch(batch, *settings, by=by, draws=draws, seed=seed).x
            keeps = self.require(CanComplete).keeps_observed(sampling_options(self, settings))
            found = in_form_of(np.asarray(self.view.decode(x)), what, draws, keeps)
            return in_kind(found, form)
        rows = self.split(what, split or (None if what is None else "all"), every=True)
        batch = unknown_cells(rows.whole(), self.space, keep_holes)
        done = self.complete_batch(
            batch, *settings, by=by, draws=draws, seed=seed, implied=rows.implied
        )
        self.notes = [
            *dict.fromkeys(
                [
                    *self.notes,
                    *done.notes,
                    *about_unknown_rows(done.unknown_rows),
                    *about_known_cells(self.view, rows),
                ]
            )
        ]
        found = completed_table(self.view, rows, done)
        labels = row_labels(what, rows)
        if isinstance(found, np.ndarray):
            return found
        if isinstance(what, np.ndarray | torch.Tensor):
            return found.to_numpy()
        if labels is not None:
            found = found.set_axis(labels.repeat(len(found) // len(labels)))
        return in_kind(found, self.form if what is None else form)

    def complete_batch(
        self,
        batch: Batch,
        *settings: str,
        by: FillBy = "sample",
        draws: int = 1,
        interval: float | None = None,
        seed: int = 0,
        generator: torch.Generator | None = None,
        implied: Mapping[str, torch.Tensor] | None = None,
    ) -> Completed:
        """Rows whose unobserved entries are filled in given the observed ones, and given the codes
        (N,) of computed columns that are known (`implied`, NaN elsewhere); the parts of one table
        share a generator."""
        device, options = self.compute.torch_device(), sampling_options(self, settings)
        model, generator = self.require(CanComplete), generator or make_generator(seed, device)

        def several(rows: Batch, count: int) -> torch.Tensor:
            return model.complete_several(rows.to(device), count, options, generator).cpu()

        related = RelatedCells(self.view, model, several, device, generator, implied or {})
        complete: CompleteRows = several
        if self.view.constraints or implied:
            complete = complete_given(self.view, several, batch, related)
        keeps = model.keeps_observed(options)
        done = complete_rows(batch, self.space, complete, by, draws, interval, keeps)
        if by != "sample" and related.known:
            first = int(batch.row[0]) if batch.row is not None and len(batch) else 0
            done = replace(done, x=related.agree(batch, done.x, first))
        return replace(done, notes=tuple(sorted(related.notes)))

    def encode(self, what: Any = None, split: str | None = None) -> Any:
        """The code of every row, (N, *latent); of a frame, a frame with its index and the entries
        of the code as columns z1, z2, ..."""
        what, form = opened(what)
        _, rows = own_rows(self, what, split)
        z, labels = encoded(self, rows).numpy(), row_labels(what, rows)
        return z if labels is None else in_kind(code_frame(z, labels), form)

    def decode(self, z: Any, given: Mapping[str, Batch] | None = None) -> Any:
        """Decode latent codes (N, *latent), or a frame of them, to the form of the data."""
        codes, form = opened(z)
        labels = getattr(codes, "index", None) if is_frame(codes) else None
        if labels is not None:
            codes = np.array(codes).reshape(len(codes), *self.require(CanDecode).latent.shape)
        found = self.view.decode(decoded(self, codes, given))
        if labels is not None and not isinstance(found, np.ndarray):
            found = found.set_axis(labels)
        return in_kind(found, self.form if form is None else form)

    def export(self, out: str | Path, what: str | None = None) -> dict[str, Any]:
        """Write a function of the model as .pt2 or .onnx, and return its inputs: what="decode",
        "predict", "score" or, for diffusion, "step"; by default the first that the model has."""
        from .export import export

        return export(self, Path(out), what)

    def evaluate(
        self, what: Any = None, split: str | None = None, scored: RowLikelihoods | None = None
    ) -> Metrics:
        """Every metric that the model supports on held-out rows; `scored` are the
        log-likelihoods of these rows if they are known."""
        from ..evaluate.suite import flat
        from .metrics import run_metrics

        return Metrics(flat(run_metrics(self, what, split, scored)))

    def detect(self, what: Any, background: Run | None = None, seed: int = 0) -> Detection:
        """Scores of rows by how unlike the data of the run they are, beside those of its held-out
        rows: likelihood, typicality, Mahalanobis distance, and ratios to what the row costs a
        compressor or another run (`background`)."""
        from .detect import detect

        return detect(self, what, background, seed)

    def diagnose(self) -> list[Finding]:
        """Diagnose the fit once; findings.json and the card store the findings."""
        from . import diagnostics

        found = diagnostics.saved_findings(self.folder, self.result["step"])
        if found is None:
            found = diagnostics.diagnose(
                self.model,
                self.split(None, "valid"),
                self.log,
                self.result,
                self.split(None, "train"),
            )
            diagnostics.save_findings(self.folder, found, self.result["step"])
            self.write_card(found)
        resumed = f"--resume {shlex.quote(str(self.folder))} "  # a moved run has another path
        return [replace(f, remedy=f.remedy.replace("--resume RUN ", resumed)) for f in found]


def has_noise(settings: Sequence[str]) -> bool:
    """Whether rows to complete are noisy, which discrete ones then may be between their values."""
    found = dict(word.removeprefix("sample.").split("=", 1) for word in settings if "=" in word)
    return "noise" in found and found["noise"] not in ("0", "0.0")


def sampling_options(run: Run, settings: Sequence[str]) -> Config:
    """The sampling options that overrides set; the runs that they name are loaded."""
    options = apply_overrides(run.require(CanSample).sampling_defaults(), settings, "sample")
    for field, part in submodels(options):
        submodel = run.load_sibling(part.run).model.requires_grad_(False)
        for model in members(run.model):
            model.parts[field] = submodel
    return options


def members(model: Model) -> list[Model]:
    return model.each if isinstance(model, Ensemble) else [model]


def parse_condition(run: Run, name: str, text: str, settings: Sequence[str]) -> Batch:
    """Encode a typed condition: one of the run's, or the event of a run that options name."""
    if name not in run.view.given:
        named = list(
            submodels(
                apply_overrides(run.require(CanSample).sampling_defaults(), settings, "sample")
            )
        )
        for _, part in named:
            other = run.load_sibling(part.run)
            if other.space.name == name:
                return other.view.encode_word(other.view.event, name, text)
        if named:
            guides = " or ".join(f"{field}={part.run}" for field, part in named)
            raise DataError(
                f"this run was not conditioned on {name!r} and {guides} does not predict it; "
                f"refit with --given {name}, or name a run that predicts it"
            )
    return run.view.encode_given(name, text)


def encode_conditions(
    run: Run, given: Mapping[str, Any] | None, settings: Sequence[str]
) -> dict[str, Batch] | None:
    """Encode Python conditions: batches, one value for all samples, or one for each."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(
            f"`given` must be a dict such as {{'label': 3}}, found {given!r}; pass options such "
            "as 'steps=5' as extra arguments"
        )
    found, columns = dict[str, Batch](), dict[str, dict[str, Any]]()
    for name, value in given.items():
        whole = run.view.group_of(name) if name not in run.view.given else None
        if whole is not None:
            columns.setdefault(whole, {})[name] = value
        elif isinstance(value, Batch):
            found[name] = value
        else:
            found[name] = encode_condition(run, name, value, settings)
    for name, values in columns.items():
        found[name] = run.view.encode_columns(name, values).to(run.compute.torch_device())
    return found


def encode_condition(run: Run, name: str, value: Any, settings: Sequence[str]) -> Batch:
    """Encode one value as if it were typed, or one value per row in the form of the data."""
    if np.ndim(value) == 0:
        return parse_condition(run, name, str(value), settings).to(run.compute.torch_device())
    if name not in run.view.given:
        raise DataError(f"this run was not conditioned on {name!r}{nearest(name, run.view.given)}")
    group = run.view.given[name]
    codecs = [field.codec for field in group.fields]
    if isinstance(codecs[0], Text):
        return run.view.read_given(name, list(value)).to(run.compute.torch_device())
    if not group.single or isinstance(codecs[0], Window | SequenceCodec):
        raise DataError(f"{name} has more than one value per row; pass a Batch of its rows")
    rows = codecs[0].encode(np.asarray(value), lambda row: f"{name}, row {row + 1}")
    packed = group.compact({group.fields[0].name: as_tensor(rows)})
    batch = packed.batch(torch.arange(len(value)), False)
    return batch.to(run.compute.torch_device())
