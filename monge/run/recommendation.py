"""Which models take some data, by what they do, which to start with, and the command to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import registry
from ..core.config import as_settings
from ..core.errors import DataError, UsageError
from ..core.space import Space
from ..data import description
from ..data.codecs.window import Window
from ..data.dataset import Dataset
from ..data.description import Problem
from ..data.frames import as_pandas
from ..data.readers.base import SPLITS
from . import storage

if TYPE_CHECKING:
    import pandas as pd

GENERATE = "sample, score and complete rows"
TABLES = (
    (f"{GENERATE}, fitted in seconds", ("baseline.chow_liu", "baseline.mixture")),
    (
        f"{GENERATE}, more exactly, in minutes",
        ("autoregressive.made", "autoregressive.deep_nade", "latent.vae", "diffusion.ddpm"),
    ),
)
ROWS = (
    (
        f"{GENERATE}",
        ("flow.coupling", "autoregressive.made", "baseline.mixture", "baseline.chow_liu"),
    ),
)
SERIES = (
    ("forecast", ("sequence.direct_forecast", "sequence.recursive_forecast")),
    ("forecast, sample and score, fitted in seconds", ("sequence.linear_ar",)),
)
IMAGES = (
    ("sample, score and encode images", ("latent.vae",)),
    ("sample and complete images", ("diffusion.ddpm", "autoregressive.pixelcnn")),
)
IMAGE_PAIRS = (("turn one image into the other", ("adversarial.pix2pix", "flow.cflow")),)
UNPAIRED = (
    ("map one dataset to the other", ("transport.entropic_map", "transport.neural_map")),
    ("turn images of one dataset into the other", ("adversarial.cyclegan",)),
)
TEXT = (("sample, score and continue text", ("sequence.ssm", "autoregressive.gpt")),)
SENTENCE_PAIRS = (("translate sentences", ("sequence.transformer", "sequence.seq2seq")),)
SOUND = (("sample, score and continue sound", ("autoregressive.wavenet", "sequence.rnn")),)
DESCRIPTIONS = ("sequence.seq2seq", "sequence.transformer")
"""Models of a text given an image or a sound."""
PREDICTORS = ("predict.mlp", "predict.logistic")
IMAGE_PREDICTORS = ("predict.cnn",)
VERBS = ("forecast", "predict", "translate")
"""Commands that use a run, besides `sample`."""


NOTHING = "No model takes these data as they are; `monge models` lists what each takes."


@dataclass(frozen=True)
class Recommendation:
    """Models that do one thing with the data."""

    does: str
    models: tuple[str, ...]
    command: str
    then: str


@dataclass(frozen=True, repr=False)
class Description:
    """How data are read, their problems with a remedy each, and the models to start with."""

    source: Dataset
    problems: list[Problem]
    settings: tuple[str, ...]  # under which the data can be read
    recommended: list[Recommendation]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per column: its kind, values, share of empty cells and what else is known."""
        import pandas as pd

        return pd.DataFrame(description.columns(self.source)).dropna(axis=1, how="all")

    @property
    def headline(self) -> str:
        view = self.source.view()
        splits = {name: view.count(name) for name in SPLITS}
        return description.headline(self.source, splits)

    @property
    def lines(self) -> list[str]:
        """Notes, problems and the models to start with."""
        return [
            *self.source.notes,
            *(f"{problem.sentence}; {problem.remedy}" for problem in self.problems),
            *(f"{each.does}: {', '.join(each.models)}" for each in self.recommended),
            *([] if self.recommended else [NOTHING]),
        ]

    def __repr__(self) -> str:
        return "\n".join(
            [self.headline, self.frame.to_string(index=False, na_rep=""), *self.lines]
        )

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        shown = self.frame.to_html(index=False, na_rep="")
        return f"<p>{escape(self.headline)}</p>{shown}<ul>{items}</ul>"


def describe(what: Any, *settings: str, **fields: Any) -> Description:
    """Describe data and recommend models for them, as `monge data` does.

    Parameters
    ----------
    what : str, Path, frame, array or rows
        The data.
    *settings : str
        Data options such as "header=no"; also as keyword arguments: header="no".

    Returns
    -------
    Description
        `frame` has one row per column; `problems`, `recommended` and `source`, the open dataset.

    Examples
    --------
    >>> import monge
    >>> "mixture" in str(monge.describe("iris").recommended)
    True
    """
    words = [each.removeprefix("data.") for each in (*settings, *as_settings(fields))]
    plain = what if isinstance(what, str | Path) else as_pandas(what)
    source, problems, used = description.describe(plain, *words)
    return Description(source, problems, used, recommend(source, plain, used))


def recommend(source: Dataset, what: Any, settings: Sequence[str]) -> list[Recommendation]:
    """The models to use, the one to start with first."""
    name = str(what) if isinstance(what, str | Path) else "DATA"
    name = description.transformed(name, settings)
    words = [f"data.{each}" for each in description.plain(settings)]
    panel = list(panel_recommendations(source, what, name, settings)) if source.panel else []
    if (sound := source.view().sound) is not None and sound.bits > 8:
        name += "+mulaw"
    return [*panel, *recommendations(source, name, words)]


def panel_recommendations(
    source: Dataset, what: Any, name: str, settings: Sequence[str]
) -> Iterator[Recommendation]:
    """Forecasts of a table that is read as rows, but has one for each time of several series."""
    try:
        chosen = description.merged(settings, [f"series={source.panel}"])
        panel, _, used = description.describe(what, *chosen)
    except DataError:
        return
    for each in recommendations(panel, name, [f"data.{setting}" for setting in used]):
        yield replace(each, does=f"{each.does}, one series for each {source.panel}")


def recommendations(
    source: Dataset, name: str, settings: Sequence[str]
) -> Iterator[Recommendation]:
    if is_described(source):
        does, words = f"predict {source.target} from {source.main[0]}", ["--given", source.main[0]]
        own = name.removesuffix("+mulaw")
        yield recommendation(does, DESCRIPTIONS, source, own, [*settings, *words])
    for does, models in choices(source, name):
        if taken := supported(models, source, None):
            yield recommendation(does, taken, source, name, settings)
    target = source.target or (source.main[-1] if source.schema.table else None)
    if target is None or is_series(source) or len(source.fields) < 2 or is_described(source):
        return
    is_pair = source.fields[target].space.is_image
    predictors = IMAGE_PREDICTORS if source.view().space.is_image else PREDICTORS
    if not is_pair and (taken := supported(predictors, source, target)):
        chosen = [] if source.target else ["--target", target]
        does = f"predict {source.target or 'a column, such as ' + target}"
        yield recommendation(does, taken, source, name, [*settings, *chosen])


def recommendation(
    does: str, models: tuple[str, ...], source: Dataset, name: str, words: Sequence[str]
) -> Recommendation:
    """With the command that fits the first of the models, and one that uses the run."""
    short = models[0].partition(".")[2]
    transformed = "+mulaw" if name.endswith("+mulaw") and "+mulaw" not in source.name else ""
    run = storage.default_path(f"{short}-{source.name}{transformed}").name
    verb = next((verb for verb in VERBS if does.startswith(verb)), "sample")
    table = source.schema.table or is_series(source)
    shown = ["-n", "1000", "-o", "new.csv"] if table else []
    if source.view().space.is_image:
        options: Any = getattr(registry.find(models[0]), "SamplingConfig", None)
        fields = getattr(options, "__dataclass_fields__", {})
        shown = ["-n", "64", *(["mean=true"] if "mean" in fields else []), "-o", "new.png"]
    use = {
        "sample": [run, *shown],
        "forecast": [run, "-o", "next.csv", "--plot", "next.png"],
        "predict": [run, *(["NEW.csv", "-o", "predictions.csv"] if table else [])],
        "translate": [run, "TEXT"],
    }[verb]
    return Recommendation(
        does,
        models,
        shlex.join(["monge", "fit", short, name, *words]),
        shlex.join(["monge", verb, *use]),
    )


def choices(source: Dataset, name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Models for data of this form, by what they do."""
    view = source.view()
    if is_series(source):
        return SERIES
    if view.sound is not None:
        return SOUND
    pair = source.fields[source.target].space if source.target in source.fields else None
    if view.text is not None:
        return SENTENCE_PAIRS + TEXT if pair is not None and pair.kind == "tokens" else TEXT
    if "~" in name:
        return UNPAIRED
    if pair is not None and pair.is_image:
        return IMAGE_PAIRS + IMAGES
    if view.space.is_image:
        return IMAGES
    return TABLES if source.schema.table else ROWS


def is_described(source: Dataset) -> bool:
    """Whether each row is an image or a sound with a text about it."""
    text = source.target in source.fields and source.fields[source.target].space.kind == "tokens"
    return text and source.view().text is None and not source.schema.table


def is_series(source: Dataset) -> bool:
    return any(isinstance(field.codec, Window) for field in source.schema.fields)


def supported(models: Sequence[str], source: Dataset, target: str | None) -> tuple[str, ...]:
    """Those of the models that take the data."""
    return tuple(name for name in models if takes(name, source, target))


def takes(name: str, source: Dataset, target: str | None) -> bool:
    owner = registry.entry(name)
    goal = target or (source.target if owner.is_predictor else None)
    if owner.is_predictor and goal is None:
        return False
    try:
        space: Space = source.view(None, (), goal).space
        registry.check_compatible(name, owner, space)
    except (DataError, UsageError):
        return False
    return True
