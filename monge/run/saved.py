"""A saved run, read only: its model, the space it was fitted to, its data and its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..compatibility import join_with_or
from ..core.abilities import Ability
from ..core.config import Config, RunRef, sizes
from ..core.ensemble import Ensemble
from ..core.errors import RunError, UsageError
from ..core.model import Model
from ..core.rng import derive_seed
from ..core.space import Space
from ..core.train_config import TrainConfig
from ..data import loading
from ..data.content import available
from ..data.dataset import Dataset, Split, View
from ..data.readers import tables
from ..registry import entries, find, is_named
from ..train import checkpoint
from ..train.device import ComputeConfig
from ..train.log import Log
from ..train.step_memory import check_model_memory
from . import storage

if TYPE_CHECKING:
    import pandas as pd


Able = TypeVar("Able", bound=Ability)
ALWAYS_SMALL = 10**9
"""Weights up to which memory is not checked: some gigabytes with their optimiser state."""


def submodels(config: Config) -> Iterator[tuple[str, RunRef]]:
    """The fields of a configuration, or of its ensemble members, that refer to other runs."""
    config = member(config)
    for field in config.__dataclass_fields__:
        if isinstance(part := getattr(config, field), RunRef):
            yield field, part


def member(config: Config) -> Config:
    """The settings of each member of an ensemble, or those of the one model."""
    return config.member if isinstance(config, Ensemble.Config) else config


def build(
    config: Config,
    space: Space,
    seed: int,
    compute: ComputeConfig,
    helpers: Mapping[str, Path],
    train_config: TrainConfig | None = None,
) -> Model:
    """A model with initial weights, which depend on the seed alone, and with its frozen
    submodels; one that is built to be trained, with a `train_config`, must fit in memory."""
    device = compute.torch_device()
    parts = {field: SavedRun(where, compute).model for field, where in helpers.items()}
    for part in parts.values():
        part.requires_grad_(False)
    if train_config is not None and most_weights(config, space) > ALWAYS_SMALL:
        check_model_memory(config, space, parts, train_config, available())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "weights"))
        return config.build(space, *([parts] if parts else [])).to(device)


def most_weights(config: Config, space: Space) -> int:
    """About the most weights that a model of these sizes has, or a twentieth of them: matrices of
    its largest size, the two next largest being the numbers of layers and of their copies."""
    first, second, third = sorted([*sizes(config), *sizes(space), 1, 1, 1])[:-4:-1]
    return first**2 * second * third


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in errors about settings that it stores."""
    try:
        yield
    except UsageError as error:
        raise RunError(f"{path}: {error}") from error
    except KeyError as error:
        raise RunError(f"{path} lacks {error}; the run is damaged") from error


def row_labels(what: Any, rows: Split) -> pd.Index | None:
    """The index of the frame that the rows were read from; None for other data, and if a row of
    the data is not a row of the frame, as in a series."""
    if not tables.is_frame(what) or len(what) != len(rows.event.rows):
        return None
    return what.index[rows.index.numpy()]


class SavedRun:
    """A run directory."""

    def __init__(self, where: Path, compute: ComputeConfig, opened: View | None = None) -> None:
        self.folder, self.compute, self.opened = where, compute, opened
        self.notes: Sequence[str] = ()  # notes of the data reader
        self.metadata = storage.read_metadata(where)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @cached_property
    def log(self) -> Log:
        return Log(self.folder / "log.jsonl")

    @cached_property
    def view(self) -> View:
        """How tensors are decoded to the form of the data; needs no data."""
        with naming_file(self.folder / "fields.json"):
            return View.from_dict(storage.read(self.folder, "fields.json"))

    @cached_property
    def space(self) -> Space:
        with naming_file(self.folder / "run.json"):
            return Space.from_dict(self.metadata["space"])

    @cached_property
    def train_config(self) -> TrainConfig:
        with naming_file(self.folder / "run.json"):
            return TrainConfig.from_dict(self.metadata["train"])

    @cached_property
    def config(self) -> Config:
        """The settings of the model, and of its members if it is an ensemble."""
        name = self.metadata["model"]
        if name.endswith(".py"):
            if not is_named(name):
                raise RunError(
                    f"{self.folder} was fitted with the model file {name}; if you "
                    f"trust its code, name it: MONGE_MODELS={name}"
                )
            find(name)
        with naming_file(self.folder / "run.json"):
            config = Config.from_dict(self.metadata["config"])
        owner = getattr(member(config), "owner", None)
        if not (isinstance(owner, type) and issubclass(owner, Model)):
            raise RunError(
                f"{self.folder / 'run.json'}: expected the settings of a model, found "
                f"{config.tag}; the run is damaged"
            )
        return config

    @property
    def model_class(self) -> type[Model]:
        """The class of the model, or of the members of an ensemble."""
        return member(self.config).owner

    @property
    def title(self) -> str:
        many = f"{count} x " if (count := self.metadata.get("ensemble")) else ""
        return f"{many}{self.metadata['model']} on {self.metadata['data']['name']}"

    def build(self) -> Model:
        """The model with initial weights."""
        helpers = {field: self.folder / "parts" / field for field, _ in submodels(self.config)}
        return build(self.config, self.space, self.metadata["seed"], self.compute, helpers)

    @cached_property
    def model(self) -> Model:
        """The model with its best weights, in evaluation mode."""
        tensors, _ = checkpoint.load(self.folder / "best.safetensors")
        model = self.build()
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunError(
                f"{self.folder / 'best.safetensors'} does not fit run.json ("
                f"{str(error).splitlines()[0]}); the run is damaged"
            ) from error
        return model.eval()

    def require(self, ability: type[Able]) -> Able:
        """The model if it has this ability; otherwise an error that lists the models that have."""
        if isinstance(self.model, ability):
            return self.model
        others = [
            entry.name
            for entry in entries()
            if ability.ability in entry.abilities and self.space.kind in entry.events
        ]
        raise UsageError(
            f"{self.metadata['model']} cannot {ability.task}; "
            + (
                f"use {join_with_or(others)}"
                if others
                else f"no model of {self.space.kind} data can"
            )
        )

    @property
    def history(self) -> pd.DataFrame:
        """The log as a frame: step, seconds, epoch, each term, the held-out score."""
        import pandas as pd

        rows = [
            {
                "step": r["step"],
                "epoch": r["epoch"],
                "seconds": r["seconds"],
                **r["terms"],
                "held_out": (r["held_out"] or {}).get("value"),
            }
            for r in self.log
        ]
        return pd.DataFrame(rows)

    @property
    def result(self) -> dict[str, Any]:
        """Of the best weights: step, held-out score, seconds, and why training stopped."""
        return checkpoint.about(self.folder / "best.safetensors")

    def source(self, what: Any = None) -> Dataset:
        """The run's own data, checked to be unchanged, or other data read with its fields."""
        about = self.metadata["data"]
        if what is not None:
            return loading.open(what, fields=storage.read(self.folder, "fields.json"))
        if about["what"] is None:
            raise RunError(
                f"{self.folder} was fitted on arrays, which it does not store; pass the data again"
            )
        source = loading.open(about["what"], *about["overrides"])
        if source.fingerprint != about["fingerprint"]:
            raise RunError(
                f"{about['what']} has changed since {self.folder} was started; restore "
                "it, or start a new run"
            )
        return source

    def open_view(self, what: Any = None) -> View:
        """The view of this run's event and conditions in its own or in other data."""
        source = self.source(what)
        return source.view(self.metadata["event"], self.metadata["given"], self.metadata["target"])

    def split(self, what: Any = None, split: str | None = None, every: bool = False) -> Split:
        """A split of the run's own or of other data; if `every` is set, also rows without a value
        of the target, as for predictions."""
        if what is None and self.opened is not None:
            return self.opened.split(split or "test", every)
        view = self.open_view(what)
        default = "test" if what is None or view.dataset.has_splits else "all"
        rows = view.split(split or default, every)
        self.notes = (*view.dataset.notes, *rows.notes) if what is not None else rows.notes
        return rows
