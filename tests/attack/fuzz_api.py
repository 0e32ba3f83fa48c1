"""Random arguments of the Python interface: each call succeeds or raises an error of ours.

    python tests/attack/fuzz_api.py --tries 100000 --seed 7

Hypothesis draws data objects, settings, budgets, conditions, constraints, seeds and counts for
`open`, `describe`, `fit`, `load`, and for `sample`, `log_likelihood`, `complete` and `predict` of
a run. Anything but success or a `MongeError` of one sentence counts as failed.
"""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import torch
from attacking import Seed, main
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import monge
from monge.core.config import Overrides
from monge.core.errors import MongeError
from monge.run.run import start
from monge.train.budget import Budget


def people(rows: int = 40) -> pd.DataFrame:
    return made_people(rows).copy()


@cache
def made_people(rows: int) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draw.normal(40, 10, rows).round(1),
            "count": draw.integers(0, 5, rows),
            "kind": draw.choice(["a", "b", "c"], rows),
            "flag": draw.random(rows) < 0.5,
            "end": draw.normal(60, 5, rows).round(1),
        }
    )


PIECE = 1000
"""Calls that Hypothesis draws together; it remembers them all, which takes time."""
NAMES = [*people(1).columns]
FIELDS = (
    "width", "depth", "head", "net", "net.width", "prior", "start", "preset", "order", "x", "",
    "train.lr", "train.batch_size", "train.betas", "train.optimiser", "train.patience",
    "train.ema_decay", "train.grad_clip", "train.max_steps", "train.schedule", "data.seed",
    "data.rows", "data.valid", "data.test", "data.missing", "data.names", "data.drop", "data.time",
    "data.header", "data.text", "data.group", "data.weight", "data.constraints", "data.augment",
    "data.tokens", "data.context", "data.labels", "data.balance", "data.lookback", "data.split",
    "sample.steps", "score.samples", "temperature", "range", "samples", "steps", "moves",
)  # fmt: skip
WORDS = (
    "", "0", "1", "-1", "2", "3.5", "0.1", "1e-3", "1e9", "1e30", "1e999", "nan", "inf", "true",
    "none", "auto", "x", "a,b", "1,2", "[1,2]", "{}", "()", "None", "\0", "é", "age", "kind",
    "age,kind", "mlp", "adam", "sgd", "observed", "model", "drop", "../..", "9" * 400, "1_0", "½",
    "iris", "moons", "digits", "gaussian", "mixture",
)  # fmt: skip
SIGNS = ("=", ">", "<", ">=", "<=", "!=", "==", "~", "", "+", "-", "*", "(", ")", ";", " ")


@cache
def text() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(WORDS), st.text(max_size=12))


@cache
def settings() -> st.SearchStrategy[list[str]]:
    pair = st.tuples(st.sampled_from(FIELDS), text()).map("=".join)
    return st.lists(st.one_of(pair, pair, text()), max_size=3)


@cache
def formula() -> st.SearchStrategy[str]:
    """A condition or a constraint, or what looks like one."""
    word = st.one_of(st.sampled_from([*NAMES, *SIGNS]), st.sampled_from(WORDS))
    return st.lists(word, min_size=1, max_size=7).map("".join)


@cache
def scalars() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.integers(),
        st.floats(),
        text(),
        st.binary(max_size=4),
        st.dates(),
        st.datetimes(),
        st.complex_numbers(),
    )


KINDS = ("f4", "f8", "f2", "i8", "u8", "i1", "u1", "?", "U2", "S2", "O", "c8", "M8[s]", "m8[D]")


@cache
def arrays() -> st.SearchStrategy[Any]:
    shapes = st.one_of(
        st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        st.tuples(st.just(12), st.integers(1, 4)),
        st.just((12,)),
        st.just((12, 1, 4, 4)),
    )

    def make(kind: str, shape: tuple[int, ...], seed: int, odd: float) -> Any:
        draw = np.random.default_rng(seed)
        if kind == "O":
            mixed = np.empty(shape, object)
            for place in np.ndindex(shape):
                mixed[place] = draw.choice(["a", "b", None, 3])
            return mixed
        raw = draw.bytes(int(np.prod(shape)) * np.dtype(kind).itemsize)
        if kind in ("U2", "S2", "?"):
            return draw.integers(0, 2, shape).astype(kind)
        if odd < 0.7 and kind[0] in "fiu":
            return draw.integers(0, 100, shape).astype(kind)
        return np.frombuffer(raw, kind).reshape(shape)

    made = st.builds(make, st.sampled_from(KINDS), shapes, st.integers(0, 10**6), st.floats(0, 1))
    return st.one_of(made, made.map(as_tensor))


def as_tensor(array: np.ndarray) -> Any:
    return torch.tensor(array.copy()) if array.dtype.kind in "fiub" else array


@cache
def frames() -> st.SearchStrategy[pd.DataFrame]:
    """A table like that of the run, with columns and cells changed, or an odd one."""

    def change(column: str, place: int, cell: Any, drop: list[str], name: Any) -> pd.DataFrame:
        table = people(12).astype({column: object})
        table.at[place, column] = cell
        return table.drop(columns=drop).rename(columns={"flag": name})

    near = st.builds(
        change,
        st.sampled_from(NAMES),
        st.integers(0, 11),
        scalars(),
        st.lists(st.sampled_from(["count", "end"]), max_size=1),
        st.one_of(st.just("flag"), scalars().filter(lambda name: name == name)),
    )
    odd = st.dictionaries(text(), st.lists(scalars(), min_size=4, max_size=4), max_size=3)
    return st.one_of(near, near, odd.map(pd.DataFrame))


@cache
def objects() -> st.SearchStrategy[Any]:
    nested = st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.tuples(inner, inner),
            st.dictionaries(st.one_of(text(), st.integers()), inner, max_size=3),
        ),
        max_leaves=8,
    )
    pairs = st.tuples(arrays(), arrays())
    return st.one_of(arrays(), frames(), nested, pairs, st.lists(text(), max_size=5))


@cache
def counts() -> st.SearchStrategy[int]:
    return st.sampled_from((0, 1, 2, 5, -1, 10**12, 10**20, 2**63))


@cache
def seeds() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 5), st.sampled_from((-1, 2**63 - 1, 2**63, 10**30)))


@cache
def given_values() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), text()), scalars(), max_size=2),
    )


@cache
def where_values() -> st.SearchStrategy[Any]:
    pairs = st.dictionaries(st.sampled_from(NAMES), st.one_of(scalars(), formula()), max_size=2)
    return st.one_of(st.none(), formula(), st.lists(formula(), max_size=2), pairs)


@cache
def fitted(model: str) -> monge.Run:
    target = "kind" if model == "mlp" else None
    out = Path(os.environ["MONGE_RUNS"]) / model
    return monge.fit(model, people(), "width=4", budget="3steps", target=target, out=out)


def begin(folder: str, model: str, data: Any, words: list[str], fields: dict[str, Any]) -> None:
    """What `fit` does before its first step, and a step if the model is small."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        run = start(model, data, "width=4", *words, out=Path(scratch) / "run", **fields)
        if run.trainer is None or run.trainer.batch_size > 64:
            return
        if sum(each.numel() for each in run.trainer.model.parameters()) < 10**4:
            for _ in run.train("1step"):
                pass


def calls(folder: str) -> dict[str, Callable[[st.DataObject], Any]]:
    """The calls, each with arguments that it draws."""

    options = st.fixed_dictionaries(
        {},
        optional={
            "event": st.one_of(st.none(), st.sampled_from(NAMES), text()),
            "given": st.lists(st.one_of(st.sampled_from(NAMES), text()), max_size=2),
            "target": st.one_of(st.sampled_from(NAMES), text()),
            "ensemble": st.sampled_from((0, 1, 2, -1, 10**12)),
            "seed": seeds(),
            "budget": text(),
        },
    )
    models = st.sampled_from(("made", "independent", "gaussian", "vae", "mlp", "", "x", "\0"))
    run = st.sampled_from(("made", "mlp", "independent")).map(fitted)
    split = st.one_of(st.none(), st.sampled_from(("train", "valid", "test", "all")), text())
    return {
        "open": lambda d: monge.open(d(objects()), *d(settings())),
        "describe": lambda d: str(monge.describe(d(objects()), *d(settings()))),
        "constraints": lambda d: monge.open(people(), f"constraints={d(formula())}"),
        "fit": lambda d: begin(folder, d(models), people(), d(settings()), d(options)),
        "fit an object": lambda d: begin(folder, d(models), d(objects()), [], {}),
        "budget": lambda d: Budget.read(d(text())),
        "settings": lambda d: Overrides.parse(d(settings())),
        "load": lambda d: monge.load(d(text())),
        "sample": lambda d: d(run).sample(
            d(counts()),
            d(given_values()),
            *d(settings()),
            where=d(where_values()),
            seed=d(seeds()),
        ),
        "log_likelihood": lambda d: d(run).log_likelihood(
            d(objects()), *d(settings()), split=d(split), seed=d(seeds())
        ),
        "complete": lambda d: d(run).complete(
            d(objects()), *d(settings()), split=d(split), seed=d(seeds()), draws=d(counts())
        ),
        "predict": lambda d: d(run).predict(d(objects()), *d(settings()), split=d(split)),
    }


def attack(tries: int, seed: Seed) -> list[str]:
    """The calls that raised what is not ours, each in a line."""
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = os.environ.get("MONGE_RUNS")
        os.environ["MONGE_RUNS"] = scratch
        fitted.cache_clear()
        every = calls(scratch)
        drawn: list[str] = []

        def call(name: str, data: st.DataObject) -> None:
            arguments: list[Any] = []

            def draw(strategy: st.SearchStrategy[Any]) -> Any:
                arguments.append(data.draw(strategy))
                return arguments[-1]

            drawn.append(name)
            try:
                every[name](draw)
            except MongeError as error:
                if not str(error).strip() or "\n" in str(error):
                    failed.append(f"{name}{arguments!r:.300}: not one sentence: {error!r:.300}")
            except hypothesis.errors.HypothesisException:
                raise
            except Exception as error:  # what this script looks for
                if type(error).__module__.startswith("hypothesis"):
                    raise
                place = traceback.extract_tb(error.__traceback__)
                own = [f for f in place if "/monge/" in f.filename] or place
                where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
                failed.append(f"{name}{arguments!r:.300}: {error!r:.200} at {where}")

        place = 0
        while len(drawn) < tries:
            piece = hypothesis.given(st.sampled_from(sorted(every)), st.data())(call)
            hypothesis.settings(
                max_examples=min(PIECE, tries - len(drawn)),
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )(piece)
            hypothesis.seed(f"{seed} {place}")(piece)()
            place += 1
        fitted.cache_clear()
        os.environ.pop("MONGE_RUNS") if before is None else os.environ.update(MONGE_RUNS=before)
    return failed


if __name__ == "__main__":
    main(__doc__, attack, 100_000, 1000)
