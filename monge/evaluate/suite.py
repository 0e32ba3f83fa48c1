"""Every metric that a model supports, in groups, with training rows as the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.abilities import CanEnlarge, CanSample, Finding, HasLikelihood, HasScore, HasTerms
from ..core.batch import Batch
from ..core.gaussian_modes import GaussianModes
from ..core.metric import Metric
from ..core.model import Model, device_of
from ..core.rng import make_generator
from ..core.space import Space
from ..prob.divergence import fisher_divergence
from .bounds import amortisation
from .c2st import MIN_TEST_ROWS
from .completion import completes_tables, completion_metrics, refusal
from .efficiency import cost
from .energy_distance import FeatureMap, energy, repeated, sample_timed
from .forecasts import is_forecast
from .frechet import feature_space_distances
from .image_to_image import enlargements, is_translation, translation_metrics
from .likelihood import (
    CHUNK,
    HeldOutRows,
    RowLikelihoods,
    chunks,
    objective,
    row_likelihoods,
    row_subset,
)
from .out_of_bag import out_of_bag
from .predictions import predict, predicts, votes
from .predictions import prediction_metrics as predictive
from .privacy import TRAIN_ROWS, privacy_metrics
from .ranks import rank_metrics, rank_statistics
from .rejection import Obeys
from .samples import (
    COPIED_FROM,
    REAL,
    Density,
    SampleComparison,
    sample_metrics,
    spread,
    with_references,
)
from .sharpness import sharpness
from .tabular import Coding, cells, columns_of, detection, table_metrics
from .tstr import targets, tstr_scores

TIMED = 4
"""Sequences sampled to time sampling."""
MAX_GAP_ROWS = 1000
"""Most training rows of the likelihood gap."""


@dataclass(frozen=True)
class EvaluationContext:
    """Facts about the data and the fit besides the rows."""

    density: Density | None = None
    features: Callable[[Batch], Tensor] | None = None  # events as points (n, F) of a network
    columns: Sequence[str] = ()  # names of the entries of an event
    seconds: float | None = None  # of training
    scored: RowLikelihoods | None = None  # log p of every row, if known
    obeys: Obeys | None = None  # which samples obey the constraints met by rejection


Groups = dict[str, dict[str, Metric]]
NOTHING = EvaluationContext()


def all_metrics(
    model: Model,
    rows: HeldOutRows,
    others: HeldOutRows,
    seed: int = 0,
    known: EvaluationContext = NOTHING,
) -> dict[str, Metric]:
    """All metrics of `groups` in one dictionary."""
    return flat(metric_groups(model, rows, others, seed, known))


def flat(groups: Groups) -> dict[str, Metric]:
    return {name: score for group in groups.values() for name, score in group.items()}


def metric_groups(
    model: Model,
    rows: HeldOutRows,
    others: HeldOutRows,
    seed: int = 0,
    known: EvaluationContext = NOTHING,
) -> Groups:
    """Metrics on `rows` in groups. `others` are training rows: their distance from `rows` is the
    reference of a perfect model, and bagged ensembles have their out-of-bag error on them. For a
    predictor the predictions are evaluated instead of samples."""
    found: Groups = {"likelihood": likelihoods(model, rows, others, seed, known)}
    speed = None
    if predicts(model):
        found["predictions"] = predictive(predict(model, chunks(rows))) | votes(
            model, chunks(rows)
        )
    elif isinstance(model, CanSample) and not is_forecast(model):
        samples, speed = fidelity(model, rows, others, seed, known)
        found |= samples
        found["completion"] = completion_metrics(model, rows, seed, known.obeys)
        ranks = rank_statistics(model, rows, known.columns, seed, known.obeys)
        found["calibration"] = rank_metrics(ranks)
    if not isinstance(model, HasLikelihood | CanSample):
        found["likelihood"]["held_out_loss"] = objective(model, chunks(rows), seed)
    if isinstance(model, CanEnlarge):
        enlarged = enlargements(model, row_subset(rows).to(device_of(model)), seed)
        found["samples"] = found.get("samples", {}) | enlarged
    found["cost"] = cost(model, speed, known.seconds)
    return {name: group for name, group in found.items() if group}


def likelihoods(
    model: Model, rows: HeldOutRows, others: HeldOutRows, seed: int, known: EvaluationContext
) -> dict[str, Metric]:
    """Log-likelihood of held-out rows, the gap to training rows, and the terms of the bound."""
    found = {}
    if isinstance(model, HasLikelihood):
        every = known.scored or row_likelihoods(model, chunks(rows), model.space.dims, seed=seed)
        found["log_likelihood"] = every.mean
        per_bit = every.mean.stderr / abs(every.mean.value or 1) * abs(every.bits_per_dim)
        found["bits_per_dim"] = Metric(every.bits_per_dim, every.kind, per_bit, "bits/dim")
        count = min(len(rows), len(others), MAX_GAP_ROWS)
        pick = torch.randperm(len(others), generator=make_generator(seed))[:count].sort().values
        seen, started = map(others.batch, pick.split(CHUNK)), time.perf_counter()
        found["likelihood_gap"] = row_likelihoods(model, seen, model.space.dims, seed=seed).minus(
            every
        )
        speed = count / (time.perf_counter() - started)
        found["rows_scored_per_second"] = Metric(speed, "estimate", 0.0, "1/s")
        if known.density and not model.space.given:
            found["kl"] = kl(known.density, rows, every)
    if isinstance(known.density, GaussianModes) and isinstance(model, HasScore):
        found["fisher_divergence"] = score_error(known.density, model, rows)
    if isinstance(model, HasTerms):
        found |= bound_terms(model, rows, seed)
    return found | amortisation(model, rows, seed) | out_of_bag(model, chunks(others))


def kl(density: Density, rows: HeldOutRows, every: RowLikelihoods) -> Metric:
    """KL(p || q) = E_p [log p(x) - log q(x)] for data with known density p, over held-out
    rows; an upper bound if log q is a bound."""
    truth = torch.cat([density(batch.x.double()) for batch in chunks(rows)])
    gap = truth - torch.from_numpy(every.value)
    return Metric(float(gap.mean()), "distance", float(gap.std()) / len(gap) ** 0.5)


def score_error(density: GaussianModes, model: HasScore, rows: HeldOutRows) -> Metric:
    """E_p |score - grad log p|^2 / 2 over held-out rows: explicit score matching."""

    def score(x: Tensor) -> Tensor:
        return model.score(x.float()).double()

    with torch.no_grad():
        every = [fisher_divergence(score, density, batch.x.double()) for batch in chunks(rows)]
    found = torch.cat(every)
    return Metric(float(found.mean()), "distance", float(found.std()) / len(found) ** 0.5)


def bound_terms(model: HasTerms, rows: HeldOutRows, seed: int) -> dict[str, Metric]:
    """The mean of each named term of the bound over rows."""
    assert isinstance(model, Model)
    with torch.no_grad():
        each = [
            model.terms(batch.to(device_of(model)), generator=make_generator(seed))
            for batch in chunks(rows)
        ]
    whole = {name: torch.cat([piece[name] for piece in each]).double() for name in each[0]}
    return {
        name: Metric(value.mean().item(), "bound", value.std().item() / len(value) ** 0.5)
        for name, value in whole.items()
    }


def fidelity(
    model: CanSample, rows: HeldOutRows, others: HeldOutRows, seed: int, known: EvaluationContext
) -> tuple[Groups, float]:
    """Distances of samples from data if rows are vectors, metrics of tables and of privacy if they
    are table rows, and samples per second."""
    assert isinstance(model, Model)
    found: Groups = {"samples": {}}
    if not is_point(model.space):
        requested, x, speed = sample_timed(model, row_subset(rows)[:TIMED], seed, known.obeys)
    else:
        real, train, feature_map = (
            row_subset(rows),
            row_subset(others),
            FeatureMap.of(model, model.space),
        )
        requested, x, speed = sample_timed(model, repeated(real), seed, known.obeys)
        if wild := unbounded(x, model.space):  # no distance is defined
            return {"samples": wild}, speed
        fake, searched = Batch(x, given=requested.given), row_subset(others, COPIED_FROM)
        compared = SampleComparison(
            feature_map(fake), feature_map(real), feature_map(searched), x, real.x
        )
        samples = with_references(
            *(
                {"energy_distance": energy(side, compared.real)}
                for side in (compared.fake, feature_map(train))
            )
        )
        samples |= sample_metrics(compared, known.density, seed)
        if model.space.is_image and min(model.space.shape[1:]) > 2:
            samples |= with_references(
                *({"sharpness": sharpness(side, real.x)} for side in (x, train.x))
            )
        columns = columns_of(feature_map.space, known.columns)
        if min(len(x), len(real), len(train)) >= MIN_TEST_ROWS:
            samples |= feature_distances(known, fake, real, train)
            if columns is not None:
                sampled, held, some, every = (
                    cells(side, feature_map.space)
                    for side in (fake, real, train, row_subset(others, TRAIN_ROWS))
                )
                found["table"] = as_table(columns, sampled, held, some, seed)
                found["privacy"] = privacy_metrics(sampled, held, every, columns, seed)
        samples["samples_compared"] = Metric(len(x), "exact", 0.0, "rows")
        found["samples"] = samples
    if is_translation(model):
        found["samples"] |= translation_metrics(x, requested, row_subset(others))
    return found, speed


def unbounded(x: Tensor, space: Space) -> dict[str, Metric]:
    """The share of samples with values that are neither finite nor empty, if there are any."""
    known = x.isfinite() | space.empty(x)
    share = 1 - known.reshape(len(x), -1).all(1).double().mean().item()
    return {"samples_not_finite": Metric(share, "estimate", 0.0, "share")} if share else {}


def feature_distances(
    known: EvaluationContext, fake: Batch, real: Batch, train: Batch
) -> dict[str, Metric]:
    """Distances in the features of a network, if there is one, with equal numbers of rows."""
    if known.features is None:
        return {}
    n = min(map(len, (fake, real, train)))
    x, y, others = (spread(known.features(side), n) for side in (fake, real, train))
    return with_references(feature_space_distances(x, y), feature_space_distances(others, y))


def as_table(
    columns: Space, fake: Tensor, real: Tensor, train: Tensor, seed: int
) -> dict[str, Metric]:
    """Metrics of tables (n, D), with training rows in place of samples beside them."""
    n = min(len(fake), len(real), len(train))
    held, sides, coding = spread(real, n), (fake, train), Coding.of(train, columns)
    found = with_references(*(table_metrics(spread(side, n), held, coding) for side in sides))
    found |= with_references(
        *({"detection_auc": detection(spread(side, n), held, columns, seed)} for side in sides)
    )
    n, chosen = min(len(fake), len(train)), targets(train, real, columns)
    return found | with_references(
        *(tstr_scores(spread(side, n), real, columns, chosen, seed) for side in sides)
    )


def is_point(space: Space) -> bool:
    """Whether rows are vectors with a distance: fixed length and no tokens."""
    parts = (space, *space.given.values())
    return not any(part.varies or part.kind == "tokens" for part in parts)


def samples_points(model: Model) -> bool:
    """Whether its samples are compared with data as vectors."""
    return (
        isinstance(model, CanSample)
        and is_point(model.space)
        and not predicts(model)
        and not is_forecast(model)
    )


def paired(found: Mapping[str, Metric]) -> list[tuple[str, Metric, Metric | None]]:
    """Each metric with its reference, or None."""
    return [
        (name, score, found.get(name + REAL))
        for name, score in found.items()
        if not name.endswith(REAL)
    ]


def skipped_metrics(model: Model, rows: HeldOutRows | None = None) -> list[Finding]:
    """Metrics that cannot be computed on these rows, and why."""
    if not isinstance(model, CanSample) or predicts(model) or is_forecast(model):
        return []
    if not is_point(model.space):
        return [
            Finding(
                "energy_distance",
                f"is not computed: it needs numeric rows of one length, found {model.space}.",
                "compare models by bits_per_dim",
            )
        ]
    if rows is None:
        return []
    if len(rows) >= MIN_TEST_ROWS:
        return uncompleted(model, rows)
    return [
        Finding(
            "samples",
            f"only the energy distance is computed on {len(rows)} rows; "
            f"the other metrics need {MIN_TEST_ROWS}.",
            "give more rows, or hold out more of them with data.test=0.3",
        )
    ]


def uncompleted(model: Model, rows: HeldOutRows) -> list[Finding]:
    """Why completion was not evaluated, if the model completes other rows."""
    reason = refusal(model, rows) if completes_tables(model) else ""
    if not reason:
        return []
    return [
        Finding(
            "completion",
            f"is not evaluated with cells hidden at random: {reason}",
            "compare models that complete any cells, such as vae and deep_nade",
        )
    ]
