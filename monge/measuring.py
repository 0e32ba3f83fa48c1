"""Everything that can be measured of a run, by what it tells of: one place joins the measures of
laws with those that need the data's own form, a label, a text, a series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.score import Score
from .evaluate.likelihood import Scores
from .evaluate.measure import Groups, Known, groups
from .forecasting import foretold
from .probing import probed
from .sight import sight
from .wording import worded

if TYPE_CHECKING:
    from .run import Run


def measured(run: Run, what: Any = None, split: str | None = None, scored: Scores | None = None
             ) -> Groups:
    """Measures of the run on held-out rows, in groups; `scored` are the scores of these rows,
    where somebody has them."""
    run.opened = run.opened or run.look()
    rows, train = run.rows(what, split), run.rows(None, "train")
    known = Known(density=train.density if what is None else None, features=sight(run),
                  columns=run.view.columns, seconds=run.result["seconds"], scored=scored)
    found = groups(run.model, rows, train, known=known)
    cost = found.pop("cost")
    others: dict[str, dict[str, Score]] = {
        "codes": probed(run, what, split), "words": worded(run, what, split),
        "forecasts": foretold(run, what, split)}
    return found | {name: group for name, group in others.items() if group} | {"cost": cost}
