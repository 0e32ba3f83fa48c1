"""What a linear map reads of the label in a run's codes, where its data have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .core.abilities import CanEncode
from .core.score import Score
from .data import Rows, Source
from .evaluate.probe import codes, probe

if TYPE_CHECKING:
    from .run import Run


def probed(run: Run, what: Any = None, split: str | None = None) -> dict[str, Score]:
    """The linear probe, fitted to the training rows of the run's own data that have a label; none
    where the model has no codes, or has read the label itself."""
    if not isinstance(run.model, CanEncode):
        return {}
    own = run.opened.opened if run.opened is not None else run.source()
    other = own if what is None else run.source(what)
    name = own.target
    if not isinstance(name, str) or own.fields[name].space.kind != "label":
        return {}
    used = {run.about["event"], *run.about["given"], *own.main}
    if run.about["target"] or name in used:
        return {}
    default = "test" if what is None or other.has_splits else "all"
    fitted, asked = labelled(run, own, "train"), labelled(run, other, split or default)
    return {"probe_accuracy": probe(*fitted, *asked)} if fitted and asked else {}


def labelled(run: Run, source: Source, split: str) -> tuple[Tensor, Tensor] | None:
    """Codes (N, F) and labels (N,) of the rows of a split whose label is known."""
    if source.target not in source.fields:
        return None
    label = source.view(event=source.target)
    rows = Rows(label, label.index(split)).whole()
    known = rows.seen.nonzero()[:, 0]
    if not len(known):
        return None
    view = source.view(run.about["event"], run.about["given"], run.about["target"])
    assert isinstance(run.model, CanEncode)
    return codes(run.model, Rows(view, label.index(split)[known])), rows.x[known]
