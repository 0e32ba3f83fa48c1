r"""How predictions change when the pictures they are made from are moved.

A class should not change, M(T x) = M(x): `same_class` is the share of rows where it does not. A
number should not either, and the position of a point (data.points) should move with the picture,
M(T x) = T M(x): `change` is the root mean square of M(T x) - T M(x), in the units of the target
(invariance and equivariance: Chen, Dobriban & Lee 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.abilities import HasMean, HasMode
from ..core.batch import Batch
from ..core.errors import UsageError
from ..core.metric import Metric
from ..core.model import device_of
from ..data.augment import EVENT, Augment
from ..evaluate.likelihood import chunks
from ..evaluate.predictions import predicts

if TYPE_CHECKING:
    from .run import Run


def motion_metrics(
    run: Run, motions: Sequence[str], what: Any = None, split: str | None = None, seed: int = 0
) -> dict[str, Metric]:
    """Invariance or equivariance of the predictions under each motion, such as shift2 or
    rotate15, drawn once for each row."""
    model = run.model
    if not predicts(model) or not any(part.is_image for part in run.space.given.values()):
        raise UsageError(
            f"expected a run that predicts from images, found one that models {run.space}; fit "
            "one with `monge fit predict.cnn`"
        )
    rows = run.split(what, split)
    run.opened = run.opened or run.open_view()
    points = run.view.point_entries(run.opened.dataset.options.points)
    found: dict[str, Metric] = {}
    for motion in motions:
        augment = Augment([motion], run.space, points)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            pieces = [compare(model, augment, batch) for batch in chunks(rows)]
        before, after, truth = (torch.cat(part) for part in zip(*pieces, strict=True))
        found |= summary(motion, run.space.kind in ("label", "binary"), before, after, truth)
    return found


def compare(model: Any, augment: Augment, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """T M(x), M(T x) and the moved truth, (n, targets) each."""
    changes = augment.sample(len(batch))
    given = {
        name: replace(part, x=changes[name](part.x)) if name in changes else part
        for name, part in batch.given.items()
    }
    moves = changes.get(EVENT) if augment.points else None
    before, truth = predict(model, batch.given), batch.x.reshape(len(batch), -1)
    if moves is not None:
        before, truth = moves(before), moves(truth)
    return before, predict(model, given), truth


def predict(model: Any, given: Any) -> Tensor:
    """The most probable class or the mean of each target, (n, targets)."""
    device = device_of(model)
    there = {name: part.to(device) for name, part in given.items()}
    if model.space.kind in ("label", "binary"):
        assert isinstance(model, HasMode), "it predicts classes"
        found = model.mode(there)
    else:
        assert isinstance(model, HasMean), "it predicts numbers"
        found = model.mean(there)
    return found.cpu().reshape(len(found), -1)


def summary(
    motion: str, classes: bool, before: Tensor, after: Tensor, truth: Tensor
) -> dict[str, Metric]:
    if classes:
        return {
            f"{motion}.same_class": share(before == after),
            f"{motion}.accuracy": share(truth == after),
        }
    return {
        f"{motion}.change": root_mean_square(before - after),
        f"{motion}.rmse": root_mean_square(truth - after),
    }


def share(agree: Tensor) -> Metric:
    each = agree.all(1).double()
    return Metric(float(each.mean()), "estimate", float(each.std()) / len(each) ** 0.5, "share")


def root_mean_square(gap: Tensor) -> Metric:
    each = gap.double().square().mean(1)
    value = float(each.mean().sqrt())
    error = float(each.std()) / len(each) ** 0.5 / max(2 * value, 1e-12)
    return Metric(value, "distance", error, "units of the target")
