"""A run behind HTTP: what it can be asked; the answers are those of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import BaseModel, create_model
from pydantic import Field as About

from ..core.abilities import (
    CanComplete,
    CanDecode,
    CanEncode,
    CanSample,
    CanStream,
    HasLikelihood,
    HasMarginals,
    HasMode,
)
from ..core.batch import Batch, broadcast_conditions
from ..core.config import apply_overrides
from ..core.errors import DataError, MongeError, UsageError, shown
from ..data.batches import Split
from ..data.codecs.array import Array
from ..data.codecs.sequence import SequenceCodec
from ..evaluate.forecasts import is_forecast
from ..evaluate.likelihood import RowLikelihoods, entries, likelihood_of
from ..evaluate.predictions import TargetPrediction, join, predict_batch
from ..run import run as runs
from ..run.completion import about_unknown_rows, completed_table, unknown_cells
from ..run.forecast import forecast
from ..run.latent import code_rows, codes_of, events_of
from ..run.predict import By, can_vote, predict, table
from ..run.run import Run, encode_conditions
from ..run.storage import locked
from ..run.text import continue_text, source_of, translate
from ..run.where import given_constraints
from .requests import (
    MAX_ROWS,
    Count,
    Number32,
    RowForm,
    Seed,
    Strict,
    String,
    nested,
    options_type,
    plain,
    plain_rows,
    record,
    records,
    settings_of,
    unknown_entries,
    value_type,
)
from .tiles import compute_together, cut

PLAIN_BY = Literal["mean", "mode", "sample"]
"""Predictions of a model that is no ensemble of classifiers."""
NAME = re.compile(r"[\w.+-]+")
MAX_PATHS = 10_000
"""Most trajectories of a forecast."""
MAX_HORIZON = 1000
Notes = Annotated[list[str], About(description="What the reader of the rows remarked.")]
Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class Task:
    """One thing that a run can be asked."""

    name: str
    summary: str
    request: type[Strict]
    response: type[BaseModel]
    answer: Callable[[Any], dict[str, Any]]
    answer_many: Callable[[Sequence[Any]], list[Any]] | None = None
    key: Callable[[Any], Hashable | None] = lambda body: None
    stream: Callable[[Any], Iterator[dict[str, Any]]] | None = None

    def count(self, body: Any) -> int:
        """The rows, codes, texts or samples that are asked for."""
        for name in ("rows", "codes", "texts"):
            if (found := getattr(body, name, None)) is not None:
                return len(found)
        return int(getattr(body, "n", 1))


@dataclass(frozen=True)
class ReadRows:
    """The rows of one request among several."""

    request: int
    chunks: list[Batch]
    numbers: list[int]  # of each row in the request, from 1
    notes: list[str]


def load(names: Sequence[str | Path]) -> list[ServedRun]:
    """The runs to serve, with their weights; an error in a sentence for one that cannot be."""
    served = [ServedRun(runs.load(name)) for name in names]
    known: dict[str, Path] = {}
    for each in served:
        if each.name in known:
            raise UsageError(
                f"expected runs of different names, found {each.name} twice ("
                f"{known[each.name]} and {each.run.folder}); rename one of the folders"
            )
        known[each.name] = each.run.folder
    return served


class ServedRun:
    """A run with its weights in memory."""

    def __init__(self, run: Run) -> None:
        self.run, self.name = run, Path(os.path.realpath(run.folder)).name
        self.batches = 0  # computed so far by what can be batched
        if not NAME.fullmatch(self.name):
            raise UsageError(
                f"expected a run folder named by letters, digits and . _ + -, found "
                f"{shown(self.name)}; rename it"
            )
        if (run.folder / ".lock").exists() and os.access(run.folder, os.W_OK):
            with locked(run.folder):  # raises if the run is being trained
                pass
        run.model.requires_grad_(False)
        _ = run.space, run.view

    @property
    def about(self) -> dict[str, Any]:
        """What the run is, for people and programs that choose one."""
        return {
            "run": self.name,
            "model": self.run.metadata["model"],
            "data": self.run.metadata["data"]["name"],
            "space": str(self.run.space),
            "given": {name: str(part) for name, part in self.run.space.given.items()},
            "tasks": list(self.tasks),
        }

    @cached_property
    def form(self) -> RowForm:
        """Rows with their event, as for log-likelihoods."""
        return RowForm(self.run.view, supports_missing=self.run.model_class.supports_missing)

    @cached_property
    def condition_form(self) -> RowForm:
        """Rows that need no event."""
        return replace(self.form, whole=False)

    @cached_property
    def unknown_form(self) -> RowForm:
        """Rows in which null is filled in."""
        return replace(self.form, unknown=True)

    @cached_property
    def tasks(self) -> dict[str, Task]:
        model, run = self.run.model, self.run
        found: list[Task] = []
        if self.form.is_series:
            found += [self.forecast_task()] if forecasts(run) else []
            return {task.name: task for task in found}
        found += [self.sample_task()] if isinstance(model, CanSample) else []
        found += [self.score_task()] if isinstance(model, HasLikelihood) else []
        found += [self.predict_task()] if isinstance(model, HasMarginals) else []
        found += [self.complete_task()] if completes(run) else []
        found += [self.encode_task()] if isinstance(model, CanEncode) else []
        found += [self.decode_task()] if isinstance(model, CanDecode) else []
        found += [self.translate_task()] if isinstance(model, HasMode) and translates(run) else []
        return {task.name: task for task in found}

    # requests

    def request(self, task: str, **fields: Any) -> type[Strict]:
        return create_model(f"{self.name} {task} request", __base__=Strict, **fields)

    def response(self, task: str, **fields: Any) -> type[BaseModel]:
        return create_model(f"{self.name} {task} answer", notes=(Notes, ...), **fields)

    def sampling_options(self, task: str) -> Any:
        kind: Any = self.run.model_class
        return options_type(kind.SamplingConfig, f"{self.name} {task} options")

    def rows_of(self, form: RowForm) -> tuple[Any, Any]:
        row = form.type
        return Annotated[list[row], Len(1, MAX_ROWS)], About(description="The rows.")  # type: ignore[valid-type]

    @cached_property
    def given_type(self) -> Any:
        """Conditions of one value each: one for all samples, or a list of one for each."""
        columns: dict[str, Any] = {}
        for name, group in self.run.view.given.items():
            field = group.fields[0]
            if not group.single or isinstance(field.codec, Array | SequenceCodec):
                return None
            one = value_type(field.codec, field, True, False)
            columns[name] = one | Annotated[list[one], Len(1, MAX_ROWS)]  # type: ignore[valid-type]
        return record(columns) if columns else None

    def condition_fields(self) -> dict[str, Any]:
        """How the conditions of samples are given."""
        if not self.run.space.given:
            return {}
        fields: dict[str, Any] = {}
        rows, about = self.rows_of(self.condition_form)
        about = About(None, description="Conditions: n samples given each of these rows.")
        fields["rows"] = (rows | None, about)
        if self.given_type is not None:
            text = "Conditions: a value for all samples, or a list of one for each."
            fields["given"] = (self.given_type | None, About(None, description=text))
        return fields

    def conditions(self, body: Any, settings: Sequence[str]) -> tuple[int, Any]:
        """How many samples are asked for, and the conditions of each."""
        given, rows = getattr(body, "given", None), getattr(body, "rows", None)
        if rows is None:
            return body.n, encode_conditions(self.run, given or {}, settings)
        if given is not None:
            raise UsageError("expected `given` or `rows`, found both; remove one of them")
        if len(rows) * body.n > MAX_ROWS:
            raise UsageError(
                f"expected at most {MAX_ROWS} samples in one request, found {len(rows)} rows of "
                f"{body.n} each; send several requests"
            )
        batch = self.split(self.condition_form, rows, every=True).whole()
        repeated = batch[torch.arange(len(batch)).repeat_interleave(body.n)]
        return len(repeated), dict(repeated.to(self.run.compute.torch_device()).given)

    def split(self, form: RowForm, rows: Sequence[Any], every: bool) -> Split:
        """Rows of one request, or of several, read by the schema of the run."""
        about = self.run.metadata
        view = form.dataset(rows).view(about["event"], about["given"], about["target"])
        found = view.split("all", every)
        found.notes = (*view.dataset.notes, *found.notes)
        return found

    # sample

    def sample_task(self) -> Task:
        run = self.run
        fields: dict[str, Any] = {
            "n": (Count, 1),
            "seed": (Seed, 0),
            "options": (self.sampling_options("sample") | None, None),
            **self.condition_fields(),
        }
        if self.is_text:
            fields["prompt"] = (String, About("", description="What the texts begin with."))
        if self.form.is_table and not run.view.selection.predicted:
            text = "Keep rows that satisfy these: 'sex=female', 'age>60'."
            fields["where"] = (
                Annotated[list[String], Len(0, 100)] | None,
                About(None, description=text),
            )
        streams = isinstance(run.model, CanStream)
        if streams:
            text = "Send a line of JSON for each state; the last holds the samples."
            fields["stream"] = (bool, About(False, description=text))
        return Task(
            "sample",
            "Sample from the model",
            self.request("sample", **fields),
            self.response("sample", samples=(list[Any], ...)),
            self.sample,
            stream=self.stream if streams else None,
        )

    @property
    def is_text(self) -> bool:
        """Whether samples are texts that may be prompted."""
        return self.run.view.text is not None and not self.run.space.given

    def sample(self, body: Any) -> dict[str, Any]:
        run, settings = self.run, settings_of(body.options)
        if self.is_text:
            *_, texts = continue_text(run, body.prompt, body.n, settings, body.seed)
            return {"samples": texts, "notes": []}
        count, given = self.conditions(body, settings)
        where = getattr(body, "where", None)
        if where or (run.view.constraints and count):
            chosen = run.sample_where(count, where or (), given, *settings, seed=body.seed)
            note = f"{chosen.kept} of {chosen.tried} rows satisfy the conditions"
            notes = [note, *run.departures(*settings)]
            return {"samples": plain_rows(run, run.view.decode(chosen.x)), "notes": notes}
        x = run.sample_tensor(count, given, *settings, seed=body.seed)
        notes = [*run.departures(*settings)]
        return {"samples": plain_rows(run, run.view.decode(x)), "notes": notes}

    def stream(self, body: Any) -> Iterator[dict[str, Any]]:
        run, settings = self.run, settings_of(body.options)
        if getattr(body, "where", None) or run.view.constraints:
            raise UsageError(
                "expected samples without conditions on columns for a stream, found some; remove "
                "`where` or `stream`"
            )
        if self.is_text:
            texts: list[str] = []
            for texts in continue_text(run, body.prompt, body.n, settings, body.seed):
                yield {"state": texts}
            yield {"samples": texts, "notes": []}
            return
        count, given = self.conditions(body, settings)
        rows: list[Any] = []
        for x in run.stream(count, given, *settings, seed=body.seed):
            rows = plain_rows(run, run.view.decode(x))
            yield {"state": rows}
        yield {"samples": rows, "notes": []}

    # rows in common batches

    def batched(
        self,
        bodies: Sequence[Any],
        form: RowForm,
        every: bool,
        compute: Callable[[Batch], Any],
        take: Callable[[Any, slice], Any],
        finish: Callable[[list[Any], ReadRows], dict[str, Any]],
    ) -> list[Any]:
        """The answer or the error of each request; rows are read together where they may be."""
        answers: list[Any] = [None] * len(bodies)
        ready: list[ReadRows] = []
        for numbers in self.read_groups(bodies, form):
            try:
                ready += self.read_together(numbers, bodies, form, every)
            except MongeError:
                for number in numbers:  # which of them is at fault, in its own words
                    try:
                        ready += self.read_together([number], bodies, form, every)
                    except MongeError as error:
                        answers[number] = error
        with torch.no_grad():
            found, count = compute_together([each.chunks for each in ready], compute, take)
        self.batches += count
        for rows, pieces in zip(ready, found, strict=True):
            try:
                answers[rows.request] = finish(pieces, rows)
            except MongeError as error:
                answers[rows.request] = error
        return answers

    def read_groups(self, bodies: Sequence[Any], form: RowForm) -> list[list[int]]:
        """Requests whose rows may be read as one table: those with the same columns empty."""
        groups: dict[Hashable, list[int]] = {}
        for number, body in enumerate(bodies):
            if not form.is_table:
                key: Hashable = None
            else:
                key = frozenset((name, row.get(name) is None) for row in body.rows for name in row)
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    def read_together(
        self, numbers: Sequence[int], bodies: Sequence[Any], form: RowForm, every: bool
    ) -> list[ReadRows]:
        """Each request with its rows in chunks; DataError if rows do not fit, or if what the
        reader remarks is not about one request alone."""
        rows = [row for number in numbers for row in bodies[number].rows]
        split = self.split(form, rows, every)
        if len(numbers) > 1 and (split.notes or len(split) < len(rows)):
            raise DataError("the rows are read one request at a time")
        found, start = [], 0
        for number in numbers:
            end = start + len(bodies[number].rows)
            index = ((split.index >= start) & (split.index < end)).nonzero()[:, 0]
            own = (split.numbers[index] - start).tolist()
            found.append(ReadRows(number, cut(split.batch(index)), own, list(split.notes)))
            start = end
        return found

    # score

    def score_task(self) -> Task:
        kind: Any = self.run.model_class
        options = options_type(kind.LikelihoodConfig, f"{self.name} score options")
        return Task(
            "score",
            "Log-likelihood of each row, in nats",
            self.request(
                "score",
                rows=self.rows_of(self.form),
                seed=(Seed, 0),
                options=(options | None, None),
            ),
            self.response(
                "score",
                rows=(list[int], About(description="The number of each row, from 1.")),
                nats=(list[float | None], About(description="null if not finite.")),
                kind=(Literal["exact", "bound", "estimate"], ...),
                stderr=(list[float | None] | None, None),
                bits_per_dim=(float | None, ...),
                method=(str, ...),
            ),
            lambda body: self.scores([body])[0],
            self.scores,
            lambda body: ("score", body.seed, settings_of(body.options)),
        )

    def scores(self, bodies: Sequence[Any]) -> list[Any]:
        """Requests that agree in seed and options."""
        run, model = self.run, self.run.require(HasLikelihood)
        settings = settings_of(bodies[0].options)
        options = apply_overrides(model.LikelihoodConfig(), settings, "score")

        def take(found: Any, rows: slice) -> Any:
            stderr = None if found.stderr is None else found.stderr.double().cpu().numpy()[rows]
            value = found.value.double().cpu().numpy()[rows]
            return value, stderr, found.kind, found.description

        def finish(pieces: list[Any], rows: ReadRows) -> dict[str, Any]:
            value = np.concatenate([piece[0] for piece in pieces])
            errors = [piece[1] for piece in pieces if piece[1] is not None]
            stderr = np.concatenate(errors) if errors else None
            kind, description = pieces[-1][2:]
            dims = sum(entries(chunk, run.space.dims) for chunk in rows.chunks) / len(value)
            scored = RowLikelihoods(value, kind, dims, stderr, description)
            if run.view.constraints:
                scored = given_constraints(scored, run.acceptance)
            return {
                "rows": rows.numbers,
                "nats": plain(scored.value),
                "kind": scored.kind,
                "stderr": None if scored.stderr is None else plain(scored.stderr),
                "bits_per_dim": plain(scored.bits_per_dim),
                "method": scored.description,
                "notes": rows.notes,
            }

        return self.batched(
            bodies,
            self.form,
            False,
            lambda batch: likelihood_of(model, batch, options, bodies[0].seed),
            take,
            finish,
        )

    # predict

    def predict_task(self) -> Task:
        return Task(
            "predict",
            "Predict the target of each row",
            self.request(
                "predict",
                rows=self.rows_of(self.condition_form),
                by=(By if can_vote(self.run.model) else PLAIN_BY, "mean"),
                interval=(Share, 0.9),
                seed=(Seed, 0),
                options=(self.sampling_options("predict") | None, None),
            ),
            self.response("predict", predictions=(list[dict[str, Any]], ...)),
            self.predict,
            self.predictions,
            lambda body: (
                None
                if body.by in ("sample", "vote") or settings_of(body.options)
                else ("predict", body.by, body.interval)
            ),
        )

    def predict(self, body: Any) -> dict[str, Any]:
        rows, settings = (
            self.split(self.condition_form, body.rows, True),
            settings_of(body.options),
        )
        found = predict(
            self.run.model, self.run.view, rows, body.by, body.interval, settings, body.seed
        )
        return {"predictions": records(found), "notes": list(rows.notes)}

    def predictions(self, bodies: Sequence[Any]) -> list[Any]:
        """Requests that agree in all but their rows."""
        model: Any = self.run.model
        by, interval = bodies[0].by, bodies[0].interval
        options = model.SamplingConfig()

        def take(found: list[TargetPrediction], rows: slice) -> list[TargetPrediction]:
            return [column.take(rows) for column in found]

        def finish(pieces: list[Any], rows: ReadRows) -> dict[str, Any]:
            columns = [join(column) for column in zip(*pieces, strict=True)]
            found = table(self.run.view, columns, by)
            return {"predictions": records(found), "notes": rows.notes}

        return self.batched(
            bodies,
            self.condition_form,
            True,
            lambda batch: predict_batch(
                model, batch.to(self.run.compute.torch_device()), interval, options
            ),
            take,
            finish,
        )

    # encode and decode

    def encode_task(self) -> Task:
        return Task(
            "encode",
            "The latent code of each row",
            self.request("encode", rows=self.rows_of(self.form)),
            self.response("encode", codes=(list[Any], ...)),
            lambda body: self.encode([body])[0],
            self.encode,
            lambda body: "encode",
        )

    def encode(self, bodies: Sequence[Any]) -> list[Any]:
        model = self.run.require(CanEncode)

        def finish(pieces: list[Any], rows: ReadRows) -> dict[str, Any]:
            return {"codes": plain(torch.cat(pieces).numpy()), "notes": rows.notes}

        return self.batched(
            bodies, self.form, True, partial(codes_of, model), lambda z, rows: z[rows], finish
        )

    def decode_task(self) -> Task:
        shape = self.run.require(CanDecode).latent.shape
        code = nested(Number32, shape, False)
        fields: dict[str, Any] = {
            "codes": (Annotated[list[code], Len(1, MAX_ROWS)], ...),  # type: ignore[valid-type]
        }
        if self.run.space.given:
            rows, _ = self.rows_of(self.condition_form)
            text = "Conditions of each code, or one row for all."
            fields["rows"] = (rows | None, About(None, description=text))
            if self.given_type is not None:
                fields["given"] = (self.given_type | None, None)
        return Task(
            "decode",
            "The row of each latent code",
            self.request("decode", **fields),
            self.response("decode", rows=(list[Any], ...)),
            lambda body: self.decode([body])[0],
            self.decode,
            lambda body: "decode",
        )

    def decode(self, bodies: Sequence[Any]) -> list[Any]:
        run, model = self.run, self.run.require(CanDecode)
        answers: list[Any] = [None] * len(bodies)
        ready = []
        for number, body in enumerate(bodies):
            try:
                given = self.decode_conditions(body)
                ready.append(
                    (number, cut(code_rows(run, np.array(body.codes, np.float64), given)))
                )
            except MongeError as error:
                answers[number] = error
        with torch.no_grad():
            found, count = compute_together(
                [each[1] for each in ready], partial(events_of, model), lambda x, rows: x[rows]
            )
        self.batches += count
        for (number, _), pieces in zip(ready, found, strict=True):
            rows = plain_rows(run, run.view.decode(torch.cat(pieces)))
            answers[number] = {"rows": rows, "notes": []}
        return answers

    def decode_conditions(self, body: Any) -> Mapping[str, Batch]:
        given, rows = getattr(body, "given", None), getattr(body, "rows", None)
        if rows is not None and given is not None:
            raise UsageError("expected `given` or `rows`, found both; remove one of them")
        if rows is not None:
            found: Any = self.split(self.condition_form, rows, True).whole().given
        else:
            found = encode_conditions(self.run, given or {}, ()) or {}
        return broadcast_conditions(found, self.run.space, len(body.codes))

    # complete

    def complete_task(self) -> Task:
        fields: dict[str, Any] = {
            "rows": self.rows_of(self.unknown_form),
            "by": (Literal["sample", "mean", "median"], "sample"),
            "draws": (Annotated[int, Ge(1), Le(1000)], 1),
            "seed": (Seed, 0),
            "options": (self.sampling_options("complete") | None, None),
        }
        if self.form.is_table:
            text = "Columns whose empty cells stay empty."
            fields["keep_holes"] = (list[String], About([], description=text))
        return Task(
            "complete",
            "Fill in what is null, given the rest of each row",
            self.request("complete", **fields),
            self.response("complete", rows=(list[Any], ...), filled=(int, ...), method=(str, ...)),
            self.complete,
        )

    def complete(self, body: Any) -> dict[str, Any]:
        run, settings = self.run, settings_of(body.options)
        if body.draws > 1 and body.by != "sample":
            raise UsageError(
                f"expected one completion of each row by its {body.by}, found draws={body.draws};"
                " leave draws out"
            )
        if len(body.rows) * body.draws > MAX_ROWS:
            raise UsageError(
                f"expected at most {MAX_ROWS} completed rows in one request, found "
                f"{len(body.rows)} rows with {body.draws} draws each; send several requests"
            )
        rows = self.split(self.unknown_form, body.rows, True)
        batch = unknown_cells(rows.whole(), run.space, getattr(body, "keep_holes", ()))
        if not self.form.is_table:
            batch = self.hide(batch, body.rows)
        if batch.observed is None or bool(batch.observed.all()):
            raise DataError("these rows have no missing values; write null for what to fill in")
        found = run.complete_batch(
            batch,
            *settings,
            by=body.by,
            draws=body.draws,
            seed=body.seed,
            implied=rows.implied,
        )
        length = None if batch.length is None else batch.length.repeat_interleave(body.draws)
        return {
            "rows": plain_rows(run, completed_table(run.view, rows, found), length),
            "filled": int(found.filled.sum()),
            "method": run.require(CanComplete).completion,
            "notes": [*rows.notes, *about_unknown_rows(found.unknown_rows)],
        }

    def hide(self, batch: Batch, rows: Sequence[Any]) -> Batch:
        """The rows with every null unknown."""
        field = self.run.view.event.fields[0]
        values = [row[field.name] for row in rows] if isinstance(rows[0], Mapping) else rows
        if not isinstance(field.codec, Array):
            return batch
        hidden = field.codec.arrange(np.stack([unknown_entries(value) for value in values]))
        seen = batch.observed_mask & ~torch.from_numpy(np.ascontiguousarray(hidden))
        return replace(batch, observed=seen)

    # forecast and translate

    def forecast_task(self) -> Task:
        rows, about = self.rows_of(self.form)
        about = About(None, description="The steps so far, in order; by default the run's own.")
        return Task(
            "forecast",
            "Median and interval of the next steps of a series",
            self.request(
                "forecast",
                rows=(rows | None, about),
                horizon=(Annotated[int, Ge(1), Le(MAX_HORIZON)] | None, None),
                n=(Annotated[int, Ge(2), Le(MAX_PATHS)], 1000),
                interval=(Share, 0.8),
                seed=(Seed, 0),
                options=(self.sampling_options("forecast") | None, None),
            ),
            self.response("forecast", forecast=(list[dict[str, Any]], ...)),
            self.forecast,
        )

    def forecast(self, body: Any) -> dict[str, Any]:
        what = None if body.rows is None else self.form.frame(body.rows)
        if what is None and self.run.opened is None:
            self.run.opened = self.run.open_view()  # once; a request may come again
        settings = settings_of(body.options)
        found = forecast(self.run, body.horizon, what, settings, body.n, body.seed)
        return {"forecast": records(found.table(body.interval)), "notes": list(found.series.notes)}

    def translate_task(self) -> Task:
        texts = Annotated[list[Annotated[str, Len(1, 10_000)]], Len(1, 1000)]
        return Task(
            "translate",
            "The most probable translation of each text",
            self.request(
                "translate",
                texts=(texts, ...),
                options=(self.sampling_options("translate") | None, None),
            ),
            self.response("translate", translations=(list[str], ...)),
            self.translate,
        )

    def translate(self, body: Any) -> dict[str, Any]:
        for number, text in enumerate(body.texts, 1):
            if not text.strip():
                raise UsageError(
                    f"expected a text to translate, found none in text {number}; remove it"
                )
        found = translate(self.run, body.texts, *settings_of(body.options))
        return {"translations": found, "notes": []}


def completes(run: Run) -> bool:
    """Whether single entries of a row can be unknown: cells of a table, entries of an array."""
    entries = run.view.selection.schema.table or isinstance(run.view.event.fields[0].codec, Array)
    return entries and isinstance(run.model, CanComplete)


def forecasts(run: Run) -> bool:
    """Whether a run on a series can continue it."""
    whole = run.view.selection.event == ("series",) and isinstance(run.model, CanComplete)
    return whole or is_forecast(run.model)


def translates(run: Run) -> bool:
    try:
        source_of(run)
    except UsageError:
        return False
    return True
