"""A saved run, read only: its model, the space it was fitted to, its data and its log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..core.abilities import Ability
from ..core.config import Config, RunRef, sizes
from ..core.ensemble import Ensemble
from ..core.errors import DataError, RunError, UsageError, shown
from ..core.memory import available
from ..core.model import Model
from ..core.rng import derive_seed
from ..core.space import Space
from ..core.train_config import TrainConfig
from ..data.batches import Split
from ..data.builtin import catalogue
from ..data.dataset import Dataset, View
from ..data.frames import is_frame
from ..data.loading import open as open_data
from ..registry import entries, find, is_named, join_with_or
from ..train import checkpoint
from ..train.model_memory import built_within
from . import storage

if TYPE_CHECKING:
    import pandas as pd


Able = TypeVar("Able", bound=Ability)
ALWAYS_SMALL = 10**9
"""Weights up to which memory is not checked: some gigabytes with their optimiser state."""


@dataclass(frozen=True)
class ComputeConfig:
    """Where a model computes and in which precision; none of it is part of the model."""

    device: str = "auto"  # auto, cpu, cuda, mps
    precision: str = "auto"  # of losses: fp32, bf16, or auto: that of the run, fp32 for a new run
    threads: int = 0  # 0: torch's default
    compiled: bool = False
    shard: bool = False  # cut weights over the processes that train together

    def torch_device(self) -> torch.device:
        """The torch device; also sets the number of threads."""
        if self.threads:
            torch.set_num_threads(self.threads)
        name = self.device
        if name == "auto":
            name = best_device()
            if name == "cuda" and "LOCAL_RANK" in os.environ:  # one of several on this machine
                name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        count = {
            "cpu": 1,
            "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
            "mps": int(torch.backends.mps.is_available()),
        }
        kind, colon, number = name.partition(":")
        index = int(number) if number.isdecimal() else -1 if colon else 0
        if not 0 <= index < count.get(kind, 0):
            raise UsageError(f"device {name!r} is not available on this machine; use --device cpu")
        return torch.device(name)


def best_device() -> str:
    """cuda, or else mps if it computes in double precision, in which log-likelihoods are summed,
    or else cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() and has_double("mps") else "cpu"


def has_double(device: str) -> bool:
    """Whether a device computes in double precision."""
    try:
        return torch.ones(1, dtype=torch.float64, device=device).item() == 1
    except (AssertionError, RuntimeError, TypeError):  # of a device that is not there, and of mps
        return False


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

    def new() -> Model:
        torch.manual_seed(derive_seed(seed, "weights"))
        return config.build(space, *([parts] if parts else []))

    with torch.random.fork_rng(devices=[]):
        if train_config is not None and most_weights(config, space) > ALWAYS_SMALL:
            return built_within(available(), new, config, space, parts, train_config).to(device)
        return new().to(device)


def most_weights(config: Config, space: Space) -> int:
    """About the most weights that a model of these sizes has, or a twentieth of them: matrices of
    its largest size, the two next largest being the numbers of layers and of their copies."""
    first, second, third = sorted([*sizes(config), *sizes(space), 1, 1, 1])[:-4:-1]
    return first**2 * second * third


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in errors about what it stores. A value of a wrong type can fail anywhere
    while the stored objects are built again, so every error of that kind counts as damage."""
    try:
        yield
    except KeyError as error:
        raise RunError(f"{path} lacks {shown(error.args[0])}; the run is damaged") from error
    except (DataError, UsageError) as error:
        raise RunError(f"{path}: {error}") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise RunError(
            f"{path}: expected values as Monge writes them, found others ({error}); the run is "
            "damaged"
        ) from error
    except (RecursionError, RuntimeError, MemoryError) as error:
        raise RunError(f"{path} cannot be used ({error}); the run is damaged") from error


def row_labels(what: Any, rows: Split) -> pd.Index | None:
    """The index of the frame that the rows were read from; None for other data, and if a row of
    the data is not a row of the frame, as in a series."""
    if not is_frame(what) or len(what) != len(rows.event.rows):
        return None
    return what.index[rows.index.numpy()]


class SavedRun:
    """A run directory."""

    def __init__(self, where: Path, compute: ComputeConfig, opened: View | None = None) -> None:
        self.folder, self.compute, self.opened = where, compute, opened
        self.notes: Sequence[str] = ()  # notes of the data reader
        self.metadata = storage.read_metadata(where)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder.name}: {'; '.join(self.summary.values())}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        about = {**self.summary, "folder": str(self.folder)}
        return pd.DataFrame({"": about}).to_html(header=False)

    @property
    def summary(self) -> dict[str, str]:
        """What the run is and how far it is trained, in short."""
        found = {"model": self.title, "data": f"{self.space}, {self.space.rows} training rows"}
        if not self.weights.exists():
            return {**found, "training": "not trained"}
        result = self.result
        steps = f"{result['step']} step{'s' * (result['step'] != 1)}"
        found["training"] = f"{steps}, {result['seconds']:.1f} s"
        if held := result["held_out"]:
            found["held out"] = f"{held['value']:.4g} {held['unit']} ({held['kind']})"
        return found

    @cached_property
    def log(self) -> storage.Log:
        return storage.Log(self.folder / "log.jsonl")

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

    @property
    def weights(self) -> Path:
        """The file of the best weights; in a folder for a model hub it has another name."""
        own, shared = self.folder / "best.safetensors", self.folder / storage.SHARED_WEIGHTS
        return shared if shared.exists() and not own.exists() else own

    @cached_property
    def model(self) -> Model:
        """The model with its best weights, in evaluation mode."""
        tensors, _ = checkpoint.load(self.weights)
        with naming_file(self.folder / "run.json"):
            model = self.build()
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise RunError(
                f"{self.weights} does not fit run.json ("
                f"{str(error).splitlines()[0]}); the run is damaged"
            ) from error
        for name, parameter in model.named_parameters():
            if not bool(parameter.isfinite().all()):
                raise RunError(
                    f"{self.weights}: expected finite weights, found others "
                    f"in {name}; the run is damaged: restore the file from a copy, or fit again"
                )
        return model.eval()

    def latest_model(self) -> tuple[Model, int]:
        """The model with the averaged weights of the last checkpoint of a fit that goes on, in
        evaluation mode, and the step of that checkpoint."""
        tensors, about = checkpoint.load(self.folder / "last.safetensors")
        named = {
            name.removeprefix(head): tensor
            for head in ("model/", "ema/")
            for name, tensor in tensors.items()
            if name.startswith(head)
        }
        with naming_file(self.folder / "run.json"):
            model = self.build()
        try:
            model.load_state_dict(named)
        except RuntimeError as error:
            raise RunError(
                f"{self.folder / 'last.safetensors'} does not fit run.json ("
                f"{str(error).splitlines()[0]}); the run is damaged"
            ) from error
        return model.eval(), about["step"]

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
        found = checkpoint.about(self.weights)
        if missing := [name for name in ("step", "seconds", "held_out") if name not in found]:
            raise RunError(
                f"{self.weights} is no checkpoint of best weights ({missing[0]} is missing); "
                "restore it from a copy, or fit again"
            )
        return found

    def source(self, what: Any = None) -> Dataset:
        """The run's own data, checked to be unchanged, or other data read with its fields."""
        about = self.metadata["data"]
        if isinstance(what, Dataset):
            return what  # read with the fields of this run
        if what is not None:
            return open_data(what, fields=storage.read(self.folder, "fields.json"))
        if about["what"] is None:
            raise RunError(
                f"{self.folder} was fitted on arrays, which it does not store; pass the data again"
            )
        return self.find_source(about)

    def find_source(self, about: Mapping[str, Any]) -> Dataset:
        """The run's own data where they were, or where their fingerprint is found."""
        path = about.get("path") or about["what"]
        error: DataError | None = None
        changed: str | None = None
        elsewhere = catalogue.moved(path, about.get("bytes"))
        for place in dict.fromkeys([path, about["what"], *elsewhere]):
            try:
                source = open_data(place, *about["overrides"])
            except DataError as problem:
                error = error or problem
                continue
            if source.fingerprint == about["fingerprint"]:
                return source
            changed = changed or place
        if changed is not None:
            raise RunError(
                f"{changed} has changed since {self.folder} was started; restore it, or start a "
                "new run"
            )
        if os.path.exists(path) and error is not None:
            raise error
        raise RunError(
            f"expected the data of {self.folder} at {path}, found nothing there nor a file of the "
            "same content in the current folder or MONGE_DATA; put it back, or name the data in "
            "the command"
        ) from error

    def open_view(self, what: Any = None) -> View:
        """The view of this run's event and conditions in its own or in other data."""
        source = self.source(what)
        event, given, target = (self.metadata[name] for name in ("event", "given", "target"))
        view = source.view(event, given, target, self.model_class.uses_unlabelled)
        found, own = view.space, self.space
        if found.kind != own.kind or (found.shape != own.shape and not own.varies):
            raise RunError(
                f"{self.folder}: expected rows of {own}, found {found}; run.json and "
                "the data do not belong together"
            )
        return view

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
