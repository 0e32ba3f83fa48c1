"""Every measure a model's abilities admit, each a Score, with real against real as reference."""

from __future__ import annotations

import torch

from ..core.abilities import CanDiagnose, CanEnlarge, CanSample, Finding, HasLikelihood, HasTerms
from ..core.batch import Batch
from ..core.model import Model
from ..core.noise import fresh
from ..core.score import Score
from ..core.space import Space
from .amortisation import amortisation
from .bagging import out_of_bag
from .enlarge import enlargements
from .fidelity import Eye, drawn, energy, repeated
from .forecast import is_forecast
from .generated import Density, Look, ails, judged
from .judge import Rows, chunks
from .likelihood import home, scores
from .objective import objective
from .predict import measures as predictive
from .predict import predict, predicts
from .translation import is_translation, translated

COMPARED = 2000
"""Rows of each side of a two-sample distance: its cost grows with the square."""
COPIED_FROM = 10_000
"""Training rows among which copies are looked for."""
TIMED = 4
"""Sequences drawn to see how fast they come."""


def measures(model: Model, rows: Rows, others: Rows, seed: int = 0,
             density: Density | None = None) -> dict[str, Score]:
    """Measures on `rows`; `others` are training rows, whose distance from `rows` is what a perfect
    model would reach, and on which an ensemble of bags is judged where it has not seen them. Of a
    model that predicts, its predictions are measured instead of its samples; `density` is that of
    the data, where it is known."""
    found = {}
    if isinstance(model, HasLikelihood):
        every = scores(model, chunks(rows), model.space.dims, seed=seed)
        found["log_likelihood"] = every.score
        per_bit = every.score.stderr / abs(every.score.value or 1) * abs(every.bits_per_dim)
        found["bits_per_dim"] = Score(every.bits_per_dim, every.kind, per_bit, "bits/dim")
    if isinstance(model, HasTerms):
        found |= parts(model, rows, seed)
    found |= amortisation(model, rows, seed)
    if predicts(model):
        found |= predictive(predict(model, chunks(rows)))
    elif isinstance(model, CanSample) and not is_forecast(model):
        found |= fidelity(model, rows, others, seed, density)
    if not isinstance(model, HasLikelihood | CanSample):
        found["held_out_loss"] = objective(model, chunks(rows), seed)
    found |= out_of_bag(model, chunks(others))
    if isinstance(model, CanEnlarge):
        found |= enlargements(model, some(rows).to(home(model)), seed)
    count = sum(p.numel() for p in model.parameters())
    found["parameters"] = Score(count, "exact", 0.0, "numbers")
    return found


def parts(model: HasTerms, rows: Rows, seed: int) -> dict[str, Score]:
    """What each named part takes off the bound, in the mean over rows."""
    assert isinstance(model, Model)
    with torch.no_grad():
        each = [model.terms(batch.to(home(model)), generator=fresh(seed))
                for batch in chunks(rows)]
    whole = {name: torch.cat([piece[name] for piece in each]).double() for name in each[0]}
    return {name: Score(value.mean().item(), "bound", value.std().item() / len(value) ** 0.5)
            for name, value in whole.items()}


def fidelity(model: CanSample, rows: Rows, others: Rows, seed: int,
             density: Density | None = None) -> dict[str, Score]:
    """How far samples are from data, where rows are points, and how fast they come."""
    assert isinstance(model, Model)
    if not is_point(model.space):
        real, found = some(rows)[:TIMED], {}
        asked, x, speed = drawn(model, real, seed)
    else:
        real, eye = some(rows), Eye.of(model, model.space)
        asked, x, speed = drawn(model, repeated(real), seed)
        look = Look(eye(Batch(x, given=asked.given)), eye(real), eye(some(others, COPIED_FROM)), x)
        found = {"energy_distance": energy(look.fake, look.real),
                 "energy_distance_of_real_rows": energy(eye(some(others)), look.real)}
        found |= judged(look, density, seed)
        found["samples_compared"] = Score(len(x), "exact", 0.0, "rows")
    if is_translation(model):
        found |= translated(x, asked, some(others))
    return found | {"samples_per_second": Score(speed, "estimate", 0.0, "1/s")}


def is_point(space: Space) -> bool:
    """Whether rows have a distance: not where their lengths differ, nor between symbols."""
    parts = (space, *space.given.values())
    return not any(part.varies or part.kind == "tokens" for part in parts)


def left_out(model: Model) -> list[Finding]:
    """What cannot be measured, and why."""
    if is_point(model.space) or not isinstance(model, CanSample) or predicts(model):
        return []
    return [Finding("energy_distance", "is left out: it needs rows of numbers, all of one length, "
                    f"not {model.space}.", "Compare models by bits_per_dim.")]


def findings(model: Model, rows: Rows, others: Rows | None = None,
             density: Density | None = None) -> list[Finding]:
    """What the model itself says ails it, seen on held-out rows, and what its samples say beside
    training rows, the `others`."""
    with torch.no_grad():
        found = model.diagnose(some(rows).to(home(model))) if isinstance(model, CanDiagnose) \
            else []
        if others is None or not is_point(model.space):
            return found
        return found + ails(model, some(rows), some(others, COPIED_FROM), density)


def some(rows: Rows, most: int = COMPARED) -> Batch:
    """At most so many rows, spread over the split."""
    return rows.batch(torch.linspace(0, len(rows) - 1, min(len(rows), most)).long())
