"""Pages that start a fit: which models take the data, a form of settings, the cost, the start."""

from __future__ import annotations

import inspect
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from .. import registry
from ..comparison.plan import Candidate, first_per_family, split_supported
from ..core.config import Overrides
from ..core.errors import DataError, UsageError
from ..core.formulas import as_text
from ..core.train_config import TrainConfig
from ..data.dataset import View
from ..data.options import Options
from ..run import run as runs
from ..run.setup import resolve_setup
from ..train.budget import Budget
from ..train.cost_description import describe_cost
from . import forms, jobs, loaded
from .data import field_choices
from .job import cores
from .pages import render, texts_of, whole
from .sampling import check_settings

router = APIRouter()
BUDGET = "1m"
"""Budget that the form proposes."""


@dataclass(frozen=True)
class FitRequest:
    """What a form of a fit says."""

    data: str
    model: str
    given: tuple[str, ...]
    target: tuple[str, ...]
    words: tuple[str, ...]  # data options, as typed

    @classmethod
    def of(cls, form: Any) -> FitRequest:
        def many(name: str) -> tuple[str, ...]:
            return tuple(value for value in form.getlist(name) if value)

        words = tuple(
            word if word.startswith("data.") else f"data.{word}"
            for word in str(form.get("settings", "")).split()
        )
        data, model = str(form.get("data", "")), str(form.get("model", ""))
        if model.endswith(".py"):
            raise UsageError("expected a model of the library, found a file; use `monge fit`")
        return cls(data, model, many("given"), many("target"), words)

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(word.removeprefix("data.") for word in self.words)

    def view(self) -> View:
        source = loaded.open_data(self.data, *self.options)
        target = self.target
        if not target and self.model and registry.describe(self.model).is_predictor:
            if source.target is None:
                raise UsageError(
                    f"{self.model} predicts one field of {source.name} and the dataset declares "
                    "no target; choose the target"
                )
            target = (source.target,)
        return source.view(None, self.given, target or None)


def supported(view: View, predicting: bool) -> tuple[list[registry.Entry], dict[str, str]]:
    """The models that take the data, and why the others do not."""
    every = [Candidate(entry.name, entry) for entry in registry.entries()]
    taken, refused = split_supported(every, view.space, predicting)
    return [candidate.entry for candidate in taken], {
        name: reason.partition("; use ")[0] for name, reason in refused.items()
    }


def recommended(entries: Sequence[registry.Entry]) -> set[str]:
    """One model of each family."""
    return {c.name for c in first_per_family([Candidate(e.name, e) for e in entries])}


@router.get("/fit")
def choose(request: Request) -> Response:
    """Choose the data, then a model, then its settings."""
    asked = FitRequest.of(request.query_params)
    if not asked.data:
        return render(
            request, "fit_data.html", title="Fit a model", places=loaded.available_data()
        )
    source = loaded.open_data(asked.data, *asked.options)
    shared: dict[str, Any] = {
        "asked": asked,
        "source": source,
        "fields": field_choices(source),
        "data_title": loaded.data_title(asked.data),
    }
    if not asked.model:
        view = asked.view()
        entries, refused = supported(view, bool(asked.target))
        return render(
            request,
            "fit_models.html",
            title=f"Fit a model to {source.name}",
            entries=entries,
            first=recommended(entries),
            refused=refused,
            space=str(view.space),
            **shared,
        )
    return render(request, "fit_form.html", **form_page(asked), **shared, problem="", values={})


def form_page(asked: FitRequest) -> dict[str, Any]:
    """The settings of a model with its defaults for the data."""
    entry, owner = registry.describe(asked.model), registry.find(asked.model)
    view = asked.view()
    short = entry.name.partition(".")[2]
    registry.check_compatible(short, owner, view.space)
    defaults = owner.defaults(view.space)
    return {
        "title": f"Fit {entry.name}",
        "entry": entry,
        "about": as_text(inspect.cleandoc(owner.__doc__ or "")),
        "presets": owner.presets,
        "space": str(view.space),
        "model_inputs": list(forms.inputs(defaults.config)),
        "train_inputs": list(forms.inputs(defaults.train)),
        "data_inputs": [
            each for each in forms.inputs(Options()) if each.name not in ("seed", "augment")
        ],
        "name": jobs.free_name(f"{short}-{view.dataset.name}"),
        "budget": BUDGET,
        "cores": cores(),
        "model_defaults": defaults,
    }


@dataclass(frozen=True)
class Order:
    """A fit as `monge fit` takes it."""

    model: str
    data: str
    settings: tuple[str, ...]
    given: tuple[str, ...]
    target: tuple[str, ...]
    budget: str
    seed: int
    threads: int
    ensemble: int

    @classmethod
    def of(cls, form: FormData) -> Order:
        asked = FitRequest.of(form)
        if not asked.data or not asked.model:
            raise UsageError("expected data and a model, found none; choose them first")
        loaded.check_data(asked.data)
        page = form_page(asked)
        texts = texts_of(form)
        settings = forms.overrides(page["model_inputs"], texts)
        if preset := texts.get("preset"):
            settings.append(f"preset={preset}")
        settings += forms.overrides(page["train_inputs"], texts, "train.")
        settings += forms.overrides(page["data_inputs"], texts, "data.")
        settings += [word for word in asked.words if word not in settings]
        settings += texts.get("more", "").split()
        check_settings(settings)
        budget = texts.get("budget", "").strip() or BUDGET
        Budget.read(budget)
        return cls(
            asked.model,
            asked.data,
            tuple(settings),
            asked.given,
            asked.target,
            budget,
            whole(texts, "seed", 0, 0, 2**31),
            whole(texts, "threads", 1, 1, 1024),
            whole(texts, "ensemble", 0, 0, 100),
        )

    def check(self) -> None:
        """Raise what `monge fit` would say before it starts."""
        overrides = Overrides.parse(self.settings)
        setup = resolve_setup(
            self.model, self.data, overrides, None, self.given, self.target or None,
            self.ensemble, False,
        )  # fmt: skip
        assert isinstance(setup.train_config, TrainConfig)

    @property
    def flags(self) -> list[str]:
        found = ["--seed", str(self.seed), "--threads", str(self.threads)]
        found += [part for name in self.given for part in ("--given", name)]
        found += [part for name in self.target for part in ("--target", name)]
        return found + (["--ensemble", str(self.ensemble)] if self.ensemble else [])

    @property
    def command(self) -> str:
        """What one types for the same fit."""
        flags = [f for f in self.flags if f]
        words = ["monge", "fit", self.model, self.data, *self.settings, "--budget", self.budget]
        return shlex.join([*words, *flags])


@router.post("/fit/cost")
async def cost(request: Request) -> Response:
    """Parameters, memory and time of a fit, measured by a few steps that are thrown away."""
    form = await request.form()
    return await run_in_threadpool(cost_page, request, form)


def cost_page(request: Request, form: FormData) -> Response:
    order = Order.of(form)
    with loaded.computing(), tempfile.TemporaryDirectory() as scratch:
        trial = runs.start(
            order.model,
            order.data,
            *order.settings,
            given=order.given,
            target=order.target or None,
            ensemble=order.ensemble,
            seed=order.seed,
            out=Path(scratch) / "run",
            budget=order.budget,
        )
        sentence = describe_cost(trial.estimate_cost(timed=True), order.budget)
    return render(request, "fit_cost.html", title="Cost", sentence=sentence, command=order.command)


@router.post("/fit")
async def start(request: Request) -> Response:
    """Start the fit as a process of its own, or show the form again with what is wrong."""
    form = await request.form()
    return await run_in_threadpool(start_page, request, form)


def start_page(request: Request, form: FormData) -> Response:
    order = Order.of(form)
    try:
        order.check()
    except (UsageError, DataError) as error:
        asked = FitRequest.of(form)
        source = loaded.open_data(asked.data, *asked.options)
        return render(
            request,
            "fit_form.html",
            422,
            **form_page(asked),
            asked=asked,
            source=source,
            fields=field_choices(source),
            data_title=loaded.data_title(asked.data),
            problem=str(error),
            values=texts_of(form),
        )
    short = registry.describe(order.model).name.partition(".")[2]
    title = f"{short}-{loaded.open_data(order.data).name}"
    name = jobs.free_name(str(form.get("name") or "").strip() or title)
    jobs.submit_fit(name, order.model, order.data, order.settings, order.budget, *order.flags)
    return RedirectResponse(f"/runs/{name}", 303)
