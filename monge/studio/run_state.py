"""What the pages of a run share: its state, and the form of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.abilities import CanSample
from ..core.errors import MongeError, RunError
from ..data.codecs.scalar import Categorical
from ..run.run import Run
from . import charts, jobs, loaded, sampling, showing
from .pages import link


def page_state(name: str) -> dict[str, Any]:
    """What the head of every page of a run shows."""
    known = jobs.listing()
    status = loaded.status(name, known)
    folder = loaded.place_of(name)
    there = (folder / "run.json").exists()
    if not there and not any(job.name == name for job in known):
        loaded.folder_of(name)  # says what is expected
        if not (folder / "fields.json").exists():
            raise RunError(f"there is no run {name!r}; choose one from the list of runs")
    if there:
        summary = loaded.summary(folder)
    elif (folder / "fields.json").exists():
        summary = loaded.read_summary(folder)
    else:
        about = next(job.about for job in known if job.name == name)
        data = Path(str(about["data"])).name
        summary = loaded.Summary(name, model=str(about["model"]), data=data)
    return {
        "name": name,
        "title": name.replace(":", " · "),
        "status": status,
        "summary": summary,
        "there": there and not summary.error,
        "folder": folder,
        "has_weights": any(
            (folder / file).exists() for file in ("best.safetensors", "last.safetensors")
        ),
    }


def example_where(run: Run) -> str:
    """What a condition on the columns of a table looks like."""
    parts: dict[str, str] = {}
    for field in run.view.event.fields:
        if isinstance(field.codec, Categorical) and field.codec.names:
            parts.setdefault("names", f"{field.key or field.name}={field.codec.names[0]}")
        elif field.space.kind == "real" and not field.space.shape:
            middle = charts.number(float(field.space.mean[0]))
            parts.setdefault("numbers", f"{field.key or field.name}>{middle}")
    return "; ".join(parts.values())


def sample_form(name: str, query: Any) -> dict[str, Any] | None:
    """The form of samples, as its options stand in the address."""
    try:
        run = loaded.load(name)
        if not isinstance(run.model, CanSample):
            return None
        inputs = sampling.option_inputs(run)
        is_image = run.space.is_image
        default = 32 if is_image else 4 if sampling.is_text(run) else 12
        if showing.form_of(run.view) == "points":
            default = 500
        asked = sampling.Asked.of(query, default)
        return {
            "inputs": inputs,
            "values": dict(query),
            "conditions": sampling.conditions(run),
            "is_text": sampling.is_text(run),
            "is_table": bool(run.view.selection.schema.table),
            "where": example_where(run),
            "has_rows": any(c.kind == "rows" for c in sampling.conditions(run)),
            "asked": asked,
            "downloads": sampling.downloads(run),
            "address": link(f"/runs/{name}/samples", **dict(query)),
        }
    except MongeError as error:
        return {"error": str(error)}
