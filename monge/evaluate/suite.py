"""Every measure a model's abilities admit, each a Score, with real against real as reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.abilities import CanDiagnose, CanEnlarge, CanSample, Finding, HasLikelihood, HasTerms
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space
from .bounds import amortisation
from .c2st import FEWEST
from .efficiency import cost
from .energy_distance import FeatureMap, drawn, energy, repeated
from .forecasts import is_forecast
from .frechet import perceived
from .held_out import HeldOutRows, chunks, objective
from .image_to_image import enlargements, is_translation, translated
from .likelihood import CHUNK, RowLikelihoods, home, row_likelihoods
from .out_of_bag import out_of_bag
from .predictions import measures as predictive
from .predictions import predict, predicts
from .samples import REAL, Density, SampleComparison, ails, beside, judged, spread
from .tabular import cells, columns_of, tabled
from .tstr import targets, taught

COMPARED = 2000
"""Rows of each side of a two-sample distance: its cost grows with the square."""
COPIED_FROM = 10_000
"""Training rows among which copies are looked for."""
TIMED = 4
"""Sequences drawn to see how fast they come."""
SEEN = 1000
"""Training rows whose score is held against that of held-out rows, at most."""


@dataclass(frozen=True)
class Known:
    """What is known of the data beside their rows, and of the fit."""

    density: Density | None = None
    features: Callable[[Batch], Tensor] | None = None  # events as points (n, F) of a network
    columns: Sequence[str] = ()  # what the entries of an event are called
    seconds: float | None = None  # of training
    scored: RowLikelihoods | None = None  # log p of every row, where somebody has it


Groups = dict[str, dict[str, Metric]]
NOTHING = Known()


def measures(
    model: Model, rows: HeldOutRows, others: HeldOutRows, seed: int = 0, known: Known = NOTHING
) -> dict[str, Metric]:
    """All of `groups` in one."""
    return flat(groups(model, rows, others, seed, known))


def flat(groups: Groups) -> dict[str, Metric]:
    return {name: score for group in groups.values() for name, score in group.items()}


def groups(
    model: Model, rows: HeldOutRows, others: HeldOutRows, seed: int = 0, known: Known = NOTHING
) -> Groups:
    """Measures on `rows` by what they tell of; `others` are training rows, whose distance from
    `rows` is what a perfect model would reach, and on which an ensemble of bags is judged where it
    has not seen them. Of a model that predicts, its predictions are measured instead of its
    samples."""
    found: Groups = {"likelihood": likelihoods(model, rows, others, seed, known)}
    speed = None
    if predicts(model):
        found["predictions"] = predictive(predict(model, chunks(rows)))
    elif isinstance(model, CanSample) and not is_forecast(model):
        found["samples"], found["table"], speed = fidelity(model, rows, others, seed, known)
    if not isinstance(model, HasLikelihood | CanSample):
        found["likelihood"]["held_out_loss"] = objective(model, chunks(rows), seed)
    if isinstance(model, CanEnlarge):
        enlarged = enlargements(model, some(rows).to(home(model)), seed)
        found["samples"] = found.get("samples", {}) | enlarged
    found["cost"] = cost(model, speed, known.seconds)
    return {name: group for name, group in found.items() if group}


def likelihoods(
    model: Model, rows: HeldOutRows, others: HeldOutRows, seed: int, known: Known
) -> dict[str, Metric]:
    """Scores of held-out rows, how much better training rows fare, and what scores are made of."""
    found = {}
    if isinstance(model, HasLikelihood):
        every = known.scored or row_likelihoods(model, chunks(rows), model.space.dims, seed=seed)
        found["log_likelihood"] = every.score
        per_bit = every.score.stderr / abs(every.score.value or 1) * abs(every.bits_per_dim)
        found["bits_per_dim"] = Metric(every.bits_per_dim, every.kind, per_bit, "bits/dim")
        count = min(len(rows), len(others), SEEN)
        pick = torch.randperm(len(others), generator=make_generator(seed))[:count].sort().values
        seen, begun = map(others.batch, pick.split(CHUNK)), time.perf_counter()
        found["likelihood_gap"] = row_likelihoods(model, seen, model.space.dims, seed=seed).less(
            every
        )
        speed = count / (time.perf_counter() - begun)
        found["rows_scored_per_second"] = Metric(speed, "estimate", 0.0, "1/s")
        if known.density and not model.space.given:
            found["kl"] = kl(known.density, rows, every)
    if isinstance(model, HasTerms):
        found |= parts(model, rows, seed)
    return found | amortisation(model, rows, seed) | out_of_bag(model, chunks(others))


def kl(density: Density, rows: HeldOutRows, every: RowLikelihoods) -> Metric:
    """KL(p || q) = E_p [log p(x) - log q(x)] of the law p of the data, whose density is known, by
    held-out rows; of a bound, at least that."""
    truth = torch.cat([density(batch.x.double()) for batch in chunks(rows)])
    gap = truth - torch.from_numpy(every.value)
    return Metric(float(gap.mean()), "distance", float(gap.std()) / len(gap) ** 0.5)


def parts(model: HasTerms, rows: HeldOutRows, seed: int) -> dict[str, Metric]:
    """What each named part takes off the bound, in the mean over rows."""
    assert isinstance(model, Model)
    with torch.no_grad():
        each = [
            model.terms(batch.to(home(model)), generator=make_generator(seed))
            for batch in chunks(rows)
        ]
    whole = {name: torch.cat([piece[name] for piece in each]).double() for name in each[0]}
    return {
        name: Metric(value.mean().item(), "bound", value.std().item() / len(value) ** 0.5)
        for name, value in whole.items()
    }


def fidelity(
    model: CanSample, rows: HeldOutRows, others: HeldOutRows, seed: int, known: Known
) -> tuple[dict[str, Metric], dict[str, Metric], float]:
    """How far samples are from data, where rows are points; the same of tables, where they are
    rows of one; and how many come in a second."""
    assert isinstance(model, Model)
    found, table = dict[str, Metric](), dict[str, Metric]()
    if not is_point(model.space):
        asked, x, speed = drawn(model, some(rows)[:TIMED], seed)
    else:
        real, train, eye = some(rows), some(others), FeatureMap.of(model, model.space)
        asked, x, speed = drawn(model, repeated(real), seed)
        if wild := unbounded(x):  # no distance is left to take; all that is not of samples stays
            return wild, table, speed
        fake = Batch(x, given=asked.given)
        look = SampleComparison(eye(fake), eye(real), eye(some(others, COPIED_FROM)), x, real.x)
        found = beside(
            *({"energy_distance": energy(side, look.real)} for side in (look.fake, eye(train)))
        )
        found |= judged(look, known.density, seed)
        if min(len(x), len(real), len(train)) >= FEWEST:
            found |= seen_by(known, fake, real, train)
            table = as_table(eye.space, fake, real, train, known.columns, seed)
        found["samples_compared"] = Metric(len(x), "exact", 0.0, "rows")
    if is_translation(model):
        found |= translated(x, asked, some(others))
    return found, table, speed


def unbounded(x: Tensor) -> dict[str, Metric]:
    """The share of samples that hold a number that is not finite, where there are any."""
    share = 1 - x.flatten(1).isfinite().all(1).double().mean().item()
    return {"samples_not_finite": Metric(share, "estimate", 0.0, "share")} if share else {}


def seen_by(known: Known, fake: Batch, real: Batch, train: Batch) -> dict[str, Metric]:
    """Distances in the features of a network, where there is one, of equally many rows."""
    if known.features is None:
        return {}
    n = min(map(len, (fake, real, train)))
    x, y, others = (spread(known.features(side), n) for side in (fake, real, train))
    return beside(perceived(x, y), perceived(others, y))


def as_table(
    space: Space, fake: Batch, real: Batch, train: Batch, names: Sequence[str], seed: int
) -> dict[str, Metric]:
    """Measures of tables; none where rows are none of a table."""
    columns = columns_of(space, names)
    if columns is None:
        return {}
    x, y, others = (cells(side, space) for side in (fake, real, train))
    n = min(len(x), len(y), len(others))
    held, sides, chosen = spread(y, n), (x, others), targets(others, y, columns)
    found = beside(*(tabled(spread(side, n), held, columns) for side in sides))
    n = min(len(x), len(others))
    return found | beside(*(taught(spread(side, n), y, columns, chosen, seed) for side in sides))


def is_point(space: Space) -> bool:
    """Whether rows have a distance: not where their lengths differ, nor between symbols."""
    parts = (space, *space.given.values())
    return not any(part.varies or part.kind == "tokens" for part in parts)


def draws_points(model: Model) -> bool:
    """Whether its samples are held against data as points."""
    return (
        isinstance(model, CanSample)
        and is_point(model.space)
        and not predicts(model)
        and not is_forecast(model)
    )


def paired(found: Mapping[str, Metric]) -> list[tuple[str, Metric, Metric | None]]:
    """Each measure with its reference, where it has one, for whoever shows them side by side."""
    return [
        (name, score, found.get(name + REAL))
        for name, score in found.items()
        if not name.endswith(REAL)
    ]


def left_out(model: Model, rows: HeldOutRows | None = None) -> list[Finding]:
    """What cannot be measured on these rows, and why."""
    if not isinstance(model, CanSample) or predicts(model) or is_forecast(model):
        return []
    if not is_point(model.space):
        return [
            Finding(
                "energy_distance",
                f"is left out: it needs rows of numbers, all of one length, not {model.space}.",
                "compare models by bits_per_dim",
            )
        ]
    if rows is None or len(rows) >= FEWEST:
        return []
    return [
        Finding(
            "samples",
            f"they are held against {len(rows)} rows by their energy distance "
            f"alone: every other measure of them needs {FEWEST}.",
            "give more rows, or hold out more of them with data.test=0.3",
        )
    ]


def findings(
    model: Model,
    rows: HeldOutRows,
    others: HeldOutRows | None = None,
    density: Density | None = None,
) -> list[Finding]:
    """What the model itself says ails it, seen on held-out rows, and what its samples say beside
    training rows, the `others`."""
    with torch.no_grad():
        found = (
            model.diagnose(some(rows).to(home(model))) if isinstance(model, CanDiagnose) else []
        )
        if others is None or not is_point(model.space):
            return found
        return found + ails(model, some(rows), some(others, COPIED_FROM), density)


def some(rows: HeldOutRows, most: int = COMPARED) -> Batch:
    """At most so many rows, spread over the split."""
    return rows.batch(torch.linspace(0, len(rows) - 1, min(len(rows), most)).long())
