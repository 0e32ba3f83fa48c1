"""The feature network for Fréchet and kernel distances of a run's samples.

Trained once on the training rows, cached in the run directory, and shared with sibling runs on the
same rows, so that all models of a comparison are measured in the same features.
"""

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
from ..data.dataset import View
from ..data.schema import is_class
from ..evaluate.c2st import MIN_TEST_ROWS
from ..evaluate.feature_net import BATCH, NETWORK, STEPS, WIDTH, FeatureNet, train_feature_net
from ..evaluate.suite import samples_points
from ..train import checkpoint
from .storage import FEATURES

if TYPE_CHECKING:
    from .run import Run


@dataclass(frozen=True)
class FeatureExtractor:
    """A feature network, with the data it was trained on and its accuracy."""

    net: FeatureNet
    metadata: dict[str, Any]

    def __call__(self, batch: Batch) -> Tensor:  # (n, 64)
        return self.net(batch)

    def __str__(self) -> str:
        what = "to denoise rows"
        if self.metadata["label"]:
            what = (
                f"to predict {self.metadata['label']}, correct on "
                f"{self.metadata['accuracy']:.1%} of validation rows"
            )
        return (
            f"features: {WIDTH} of a network (not Inception) trained {what} "
            f"on {self.metadata['rows']} training rows of {self.metadata['data']}"
        )


def feature_extractor(run: Run) -> FeatureExtractor | None:
    """The feature network of a run; None if samples are not vectors, or rows are too few."""
    if not samples_points(run.model) or run.space.dims < 2 or run.space.rows < MIN_TEST_ROWS:
        return None
    view = run.opened or run.open_view()
    label = label_of(view)
    classes = 0 if label is None else max(view.dataset.fields[label].space.size, 2)
    net, train = FeatureNet(run.space, classes), view.index("train")
    wanted = {
        "fingerprint": run.metadata["data"]["fingerprint"],
        "event": list(view.selection.event),
        "data": run.metadata["data"]["name"],
        "label": label,
        "rows": len(train),
        "split": hashlib.sha256(train.tobytes()).hexdigest(),
        "how": f"{STEPS} steps of {BATCH} rows: {NETWORK}",
    }
    for path in cached(run.folder):
        with suppress(RunError, RuntimeError):  # a damaged cache is trained again
            if matches(about := checkpoint.about(path), wanted):
                net.load_state_dict(checkpoint.load(path)[0])
                found = FeatureExtractor(net.eval(), about)
                return found if path == run.folder / FEATURES else cache(run.folder, found)
    return cache(run.folder, learn(run, view, wanted, classes))


def matches(about: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(about.get(name) == value for name, value in wanted.items())


def cached(folder: Path) -> Iterator[Path]:
    """Candidate files: in the run, then in sibling runs."""
    if (folder / FEATURES).exists():
        yield folder / FEATURES
    yield from sorted(folder.absolute().parent.glob(f"*/{FEATURES}"))


def cache(folder: Path, found: FeatureExtractor) -> FeatureExtractor:
    """Store it in the run directory if that is writable."""
    with suppress(RunError):
        checkpoint.save(folder / FEATURES, found.net.state_dict(), found.metadata)
    return found


def label_of(view: View) -> str | None:
    """The class label that is the dataset's target, unless it is part of the event."""
    name = view.dataset.target
    if name is None or name in view.selection.event or name not in view.dataset.fields:
        return None
    return name if is_class(view.dataset.fields[name].space) else None


def learn(run: Run, view: View, wanted: dict[str, Any], classes: int) -> FeatureExtractor:
    rows, label = view.split("train"), wanted["label"]
    if label is None:
        return FeatureExtractor(train_feature_net(run.space, rows), wanted)
    valid = view.split("valid")
    net = train_feature_net(run.space, rows, names_of(view, label, rows.index), classes)
    right = net.accuracy(valid, names_of(view, label, valid.index)) if len(valid) else None
    return FeatureExtractor(net, wanted | {"accuracy": right})


def names_of(view: View, label: str, index: Tensor) -> Tensor:
    """The class index of each row (n,), -1 where it is unknown."""
    codes = view.dataset.tensors[label]
    assert isinstance(codes, Tensor), "a class is one code a row"
    found = codes[index]
    return torch.where(found.isnan(), -1, found).long()
