"""The network in whose features a run's samples are judged: learned once from its training rows,
kept in its folder, and taken from a run beside it that has seen the same, so that all of one
comparison are looked at with the same eyes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import RunError
from ..data import View
from ..data.selection import is_class
from ..evaluate.c2st import FEWEST
from ..evaluate.feature_net import BATCH, NETWORK, STEPS, WIDTH, FeatureNet, learned
from ..evaluate.suite import draws_points
from ..train import checkpoint

if TYPE_CHECKING:
    from .run import Run


FILE = "features.safetensors"


@dataclass(frozen=True)
class FeatureExtractor:
    """A feature network, with what it was learned from and how well."""

    net: FeatureNet
    about: dict[str, Any]

    def __call__(self, batch: Batch) -> Tensor:  # (n, 64)
        return self.net(batch)

    def __str__(self) -> str:
        what = "to take noise off rows"
        if self.about["label"]:
            what = (
                f"to tell {self.about['label']}, right on {self.about['accuracy']:.1%} of "
                "validation rows"
            )
        return (
            f"features of our own network, not Inception: {WIDTH} of a network that learned "
            f"{what}, from {self.about['rows']} training rows of {self.about['data']}"
        )


def feature_extractor(run: Run) -> FeatureExtractor | None:
    """The network of a run; none where samples are no points of several numbers, or rows few."""
    if not draws_points(run.model) or run.space.dims < 2 or run.space.rows < FEWEST:
        return None
    view = run.opened or run.look()
    label = label_of(view)
    classes = 0 if label is None else max(view.opened.fields[label].space.size, 2)
    net, train = FeatureNet(run.space, classes), view.index("train")
    wanted = {
        "fingerprint": run.about["data"]["fingerprint"],
        "event": list(view.terms.event),
        "data": run.about["data"]["name"],
        "label": label,
        "rows": len(train),
        "split": hashlib.sha256(train.numpy().tobytes()).hexdigest(),
        "how": f"{STEPS} steps of {BATCH} rows: {NETWORK}",
    }
    for path in cached(run.folder):
        with suppress(RunError, RuntimeError):  # what is damaged is learned anew
            if matches(about := checkpoint.about(path), wanted):
                net.load_state_dict(checkpoint.load(path)[0])
                found = FeatureExtractor(net.eval(), about)
                return found if path == run.folder / FILE else cache(run.folder, found)
    return cache(run.folder, learn(run, view, wanted, classes))


def matches(about: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(about.get(name) == value for name, value in wanted.items())


def cached(folder: Path) -> Iterator[Path]:
    """Where the network may be: in the run, or in one beside it."""
    if (folder / FILE).exists():
        yield folder / FILE
    yield from sorted(folder.absolute().parent.glob(f"*/{FILE}"))


def cache(folder: Path, found: FeatureExtractor) -> FeatureExtractor:
    """Keep it with the run, where that can be written to."""
    with suppress(RunError):
        checkpoint.save(folder / FILE, found.net.state_dict(), found.about)
    return found


def label_of(view: View) -> str | None:
    """The class that the data say is their target, unless it is part of the event."""
    name = view.opened.target
    if name is None or name in view.terms.event or name not in view.opened.fields:
        return None
    return name if is_class(view.opened.fields[name].space) else None


def learn(run: Run, view: View, wanted: dict[str, Any], classes: int) -> FeatureExtractor:
    rows, label = view.rows("train"), wanted["label"]
    if label is None:
        return FeatureExtractor(learned(run.space, rows), wanted)
    valid = view.rows("valid")
    net = learned(run.space, rows, names_of(view, label, rows.index), classes)
    right = net.accuracy(valid, names_of(view, label, valid.index)) if len(valid) else None
    return FeatureExtractor(net, wanted | {"accuracy": right})


def names_of(view: View, label: str, index: Tensor) -> Tensor:
    """The codes of rows (n,), below 0 where they are not known."""
    codes = view.opened.tensors[label]
    assert isinstance(codes, Tensor), "a class is one code a row"
    found = codes[index]
    return torch.where(found.isnan(), -1, found).long()
