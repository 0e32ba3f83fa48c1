r"""Completion of tables: hide known cells of held-out rows, fill them in and compare.

A share of the known cells is hidden at random, and each row is completed several times. Numbers:
the absolute error of the median of the draws, in standard deviations of the training rows, and
the coverage of the central 80 % interval, whose ends are the 5th and the 45th of 49 draws. Ties
of the true value with draws are broken at random, so the expected coverage of the true
conditional distribution is exactly 40 / 50 for whole numbers and atoms too. Names: the accuracy of
the most frequent draw. All columns together: the energy distance of completed from true rows; a
row shares its known cells with its completions, so only pairs of different rows are compared.
Cells of one row depend on one another, so errors are over rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.abilities import CanComplete
from ..core.batch import Batch
from ..core.errors import DataError
from ..core.metric import Metric, MetricKind
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..core.space import Space
from .energy_distance import FeatureMap
from .likelihood import HeldOutRows, row_subset
from .rejection import Obeys, complete_obeying
from .tabular import NAMES, is_table

PERCENTAGES = (10, 30, 50)
"""Shares of the known cells that are hidden."""
DRAWS, TAIL = 49, 5
"""Completions of each row, and the rank of the draw at each end of the interval."""
INTERVAL = round(100 * (1 - 2 * TAIL / (DRAWS + 1)))
"""Expected coverage of the interval, per cent."""
JOINT = 5
"""Completions of each row in the energy distance."""
MAX_ROWS, CHUNK, PATIENCE = 200, 40, 15.0
"""Most rows, rows completed at once, and seconds after which no further rows are begun."""
MIN_ROWS = 10
"""Fewest rows of a metric, and those that are completed first, however long that takes."""


@dataclass(frozen=True)
class Filled:
    """Rows with hidden cells, and their completions."""

    truth: Tensor  # (n, D)
    hidden: Tensor  # (n, D)
    draws: Tensor  # (n, DRAWS, D)
    points: Tensor  # (n, JOINT, F): completed rows as points
    true_points: Tensor  # (n, F)


def completes_tables(model: Model) -> bool:
    """Whether its completions are evaluated: of rows with two or more columns."""
    return isinstance(model, CanComplete) and is_table(model.space) and model.space.dims > 1


def completion_metrics(
    model: Model, rows: HeldOutRows, seed: int = 0, obeys: Obeys | None = None
) -> dict[str, Metric]:
    """Metrics of completion for each share of hidden cells; none if the model does not complete
    such rows, or they are too few. Completions that do not obey the constraints of the data are
    drawn again, as `monge complete` does."""
    if not completes_tables(model) or len(rows) < MIN_ROWS or refusal(model, rows):
        return {}
    found = dict[str, Metric]()
    pieces = list(completions(model, row_subset(rows, MAX_ROWS), seed, obeys))
    for percent, *parts in zip(PERCENTAGES, *pieces, strict=True):
        scores = completion_scores(joined(parts), model.space)
        found |= {f"hidden_{percent}_{name}": score for name, score in scores.items()}
    count = sum(len(piece[0].truth) for piece in pieces)
    return found | {"rows_completed": Metric(count, "exact", 0.0, "rows")}


def refusal(model: Model, rows: HeldOutRows) -> str:
    """Why the model cannot complete rows whose cells are hidden at random; empty if it can."""
    assert isinstance(model, CanComplete)
    batch, device = row_subset(rows, 2), device_of(model)
    hidden = torch.zeros_like(batch.x, dtype=torch.bool)
    hidden[0, 0] = hidden[1, -1] = True  # neither the first nor the last cells of all rows
    asked = batch.hide(hidden, model.space).to(device)
    try:
        model.complete(asked, None, make_generator(0, device))
    except DataError as error:
        return str(error)
    return ""


def completions(
    model: Model, batch: Batch, seed: int, obeys: Obeys | None = None
) -> Iterator[list[Filled]]:
    """The completions of some rows at a time for each share of hidden cells, as long as there is
    time."""
    started = time.perf_counter()
    first, rest = torch.arange(len(batch)).tensor_split([MIN_ROWS])
    for place, index in enumerate(filter(len, (first, *rest.split(CHUNK)))):
        if place and time.perf_counter() - started > PATIENCE:
            return
        noise = make_generator(seed + place)
        yield [fill(model, batch[index], percent, noise, obeys) for percent in PERCENTAGES]


def fill(
    model: Model,
    batch: Batch,
    percent: float,
    generator: torch.Generator,
    obeys: Obeys | None = None,
) -> Filled:
    """Hide a share of the known cells of the rows and complete them."""
    assert isinstance(model, CanComplete)
    space, device, n = model.space, device_of(model), len(batch)
    known = batch.observed_mask & ~space.empty(batch.x)
    hidden = known & (torch.rand(known.shape, generator=generator) < percent / 100)
    noise = make_generator(int(torch.randint(1 << 31, (), generator=generator)), device)

    def complete(rows: Batch, count: int) -> Tensor:
        return model.complete_several(rows.to(device), count, None, noise).cpu()

    with torch.no_grad():
        x = complete_obeying(complete, batch.hide(hidden, space), DRAWS, obeys)[0]
    feature_map = FeatureMap(replace(space, given={}))
    seen = batch.observed_mask
    few = Batch(x[:, :JOINT].flatten(0, 1), observed=seen.repeat_interleave(JOINT, 0))
    return Filled(
        batch.x,
        hidden,
        x,
        feature_map(few).unflatten(0, (n, JOINT)),
        feature_map(Batch(batch.x, observed=seen)),
    )


def joined(parts: list[Filled]) -> Filled:
    return Filled(
        *(
            torch.cat([getattr(part, name) for part in parts])
            for name in ("truth", "hidden", "draws", "points", "true_points")
        )
    )


def completion_scores(filled: Filled, space: Space) -> dict[str, Metric]:
    """The metrics of one share of hidden cells."""
    names = torch.tensor([part.kind in NAMES for part in space.parts])
    number, name = filled.hidden & ~names, filled.hidden & names
    truth, draws = filled.truth.double(), filled.draws.double()
    middle = draws.sort(1).values[:, DRAWS // 2]
    scale = torch.tensor([part.scale[0] for part in space.parts], dtype=torch.float64)
    rank = random_rank(truth, draws)
    inside = (rank >= TAIL) & (rank <= DRAWS - TAIL)
    right = draws.mode(1).values == truth
    found = {}
    if number.any():
        gap = (middle - truth).abs() / scale
        found["mae"] = mean_over_rows(gap, number, "standard deviations", "distance")
        found[f"coverage_{INTERVAL}"] = mean_over_rows(inside.double(), number, "share")
    if name.any():
        found["accuracy"] = mean_over_rows(right.double(), name, "share")
    if filled.hidden.any():
        found["energy_distance"] = paired_energy(filled.points, filled.true_points)
    return found


def random_rank(truth: Tensor, draws: Tensor) -> Tensor:
    """How many of the draws (n, K, D) are below the true values (n, D), ties broken at random:
    uniform on 0, ..., K if all are of one distribution, continuous or not."""
    below, same = (draws < truth[:, None]).sum(1), (draws == truth[:, None]).sum(1)
    u = torch.rand(truth.shape, generator=make_generator(0), dtype=torch.float64)
    return below + (u * (same + 1)).floor()


def mean_over_rows(
    values: Tensor, where: Tensor, unit: str, kind: MetricKind = "estimate"
) -> Metric:
    """The mean of some cells (n, D); its standard error is over rows, as of a ratio of means."""
    total, count = torch.where(where, values, 0.0).sum(1), where.sum(1).double()
    mean = total.sum() / count.sum()
    n = len(total)
    residual = (total - mean * count).square().sum() * n / max(n - 1, 1)
    return Metric(float(mean), kind, float(residual.sqrt() / count.sum()), unit)


def paired_energy(x: Tensor, y: Tensor) -> Metric:
    """The energy distance between completions x (n, K, F) and true rows y (n, F) by the
    U-statistic over pairs of different rows, with its standard error over rows; not a number
    for a single row."""
    n = len(y)
    if n < 2:
        return Metric(math.nan, "distance", math.nan, "energy")
    within = torch.cdist(y, y)
    kernel = torch.zeros_like(within)
    for each in x.unbind(1):
        cross = torch.cdist(each, y)
        kernel += (cross + cross.T - torch.cdist(each, each) - within) / x.shape[1]
    kernel.fill_diagonal_(0.0)
    rows = kernel.sum(1) / (n - 1)
    return Metric(float(rows.mean()), "distance", float(2 * rows.std() / n**0.5), "energy")
