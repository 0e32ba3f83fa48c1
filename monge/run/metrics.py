"""All metrics of a run, in groups: those of its model, and those that need the form of the data
(a label for the linear probe, text, a series)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.abilities import CanEncode, HasLikelihood
from ..core.metric import Metric
from ..data.batches import Split
from ..data.dataset import Dataset
from ..evaluate.disentangle import beta_vae_score, dci, mutual_information_gaps
from ..evaluate.likelihood import RowLikelihoods
from ..evaluate.linear_probe import codes, probe
from ..evaluate.suite import EvaluationContext, Groups, metric_groups
from .feature_extractor import feature_extractor
from .forecast import forecast_metrics
from .text import text_metrics

if TYPE_CHECKING:
    from .run import Run

FACTOR_KINDS = ("label", "levels", "binary", "counts")
"""Kinds of fields that have finitely many values."""


def run_metrics(
    run: Run, what: Any = None, split: str | None = None, scored: RowLikelihoods | None = None
) -> Groups:
    """Metrics of the run on held-out rows, in groups; `scored` are the log-likelihoods of these
    rows if they are known."""
    run.opened = run.opened or run.open_view()
    rows, train = run.split(what, split), run.split(None, "train")
    if scored is None and run.view.constraints and isinstance(run.model, HasLikelihood):
        scored = run.log_likelihood(what, split=split)
    known = EvaluationContext(
        density=train.density if what is None else None,
        features=feature_extractor(run),
        columns=run.view.columns,
        seconds=run.result["seconds"],
        scored=scored,
        obeys=run.view.obeys if run.view.constraints else None,
    )
    found = metric_groups(run.model, rows, train, known=known)
    gap = found.get("likelihood", {}).get("likelihood_gap")
    if gap is not None and run.view.constraints and run.acceptance is not None:
        # the log-likelihood of training rows is raised by the constraints as that of `scored` is
        raised = replace(gap, value=gap.value - run.acceptance.log)
        found["likelihood"] = {**found["likelihood"], "likelihood_gap": raised}
    cost = found.pop("cost")
    others: dict[str, dict[str, Metric]] = {
        "codes": probe_metrics(run, what, split) | factor_metrics(run, what, split),
        "text": text_metrics(run, what, split),
        "forecasts": forecast_metrics(run, what, split),
    }
    return found | {name: group for name, group in others.items() if group} | {"cost": cost}


def probe_metrics(run: Run, what: Any = None, split: str | None = None) -> dict[str, Metric]:
    """Accuracy of a linear probe, fitted to labelled training rows of the run's own data; none if
    the model has no encoder or has read the label itself."""
    if not isinstance(run.model, CanEncode):
        return {}
    own = run.opened.dataset if run.opened is not None else run.source()
    other = own if what is None else run.source(what)
    name = own.target
    if not isinstance(name, str) or own.fields[name].space.kind != "label":
        return {}
    used = {run.metadata["event"], *run.metadata["given"], *own.main}
    if run.metadata["target"] or name in used:
        return {}
    default = "test" if what is None or other.has_splits else "all"
    fitted, asked = labelled(run, own, "train"), labelled(run, other, split or default)
    return {"probe_accuracy": probe(*fitted, *asked)} if fitted and asked else {}


def factor_metrics(run: Run, what: Any = None, split: str | None = None) -> dict[str, Metric]:
    """How the codes separate the factors, the finite fields of the data that the model has not
    read, if there are several: mutual information gaps, DCI and the score of Higgins et al."""
    if not isinstance(run.model, CanEncode) or run.metadata["target"]:
        return {}
    own = run.opened.dataset if run.opened is not None else run.source()
    source = own if what is None else run.source(what)
    used = {run.metadata["event"], *run.metadata["given"], *own.main}
    names = [
        name
        for name, field in source.fields.items()
        if name not in used and field.space.dims == 1 and field.space.kind in FACTOR_KINDS
    ]
    if len(names) < 2:
        return {}
    default = "test" if what is None or source.has_splits else "all"
    view = source.view(run.metadata["event"], run.metadata["given"], run.metadata["target"])
    rows = torch.from_numpy(view.index(split or default))
    factors = {name: Split(source.view(event=name), rows).whole().x.flatten() for name in names}
    z = codes(run.model, Split(view, rows))
    if z.ndim != 2 or z.shape[1] < 2:
        return {}
    gaps = mutual_information_gaps(z, factors)
    found = {name if name == "mig" else f"mig.{name}": gap for name, gap in gaps.items()}
    if any(len(values.unique()) < 2 for values in factors.values()):
        return found
    return found | dci(z, factors) | {"beta_vae_score": beta_vae_score(z, factors)}


def labelled(run: Run, source: Dataset, split: str) -> tuple[Tensor, Tensor] | None:
    """Codes (N, F) and labels (N,) of the rows of a split whose label is known."""
    if source.target not in source.fields:
        return None
    label = source.view(event=source.target)
    index = torch.from_numpy(label.index(split))
    rows = Split(label, index).whole()
    known = rows.observed_mask.nonzero()[:, 0]
    if not len(known):
        return None
    view = source.view(run.metadata["event"], run.metadata["given"], run.metadata["target"])
    assert isinstance(run.model, CanEncode)
    return codes(run.model, Split(view, index[known])), rows.x[known]
