"""A run as a folder for the Hugging Face hub: weights, settings and a card, nothing to execute.

    README.md          the card, with the front matter that the hub reads
    config.json        the model and its settings, for people and programs
    model.safetensors  the weights
    run.json fields.json tokens/ parts/     what `monge.load` needs besides

`monge.load(folder)` reads it as any run; it cannot be resumed. Of the data the name stays, without
their place on this machine.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..core.errors import UsageError
from . import storage

if TYPE_CHECKING:
    from .run import Run

COPIED = ("fields.json", "findings.json", "log.jsonl", "tokens", "parts")
TASKS = {
    "sequence.transformer": "translation",
    "sequence.seq2seq": "translation",
    "sequence.direct_forecast": "time-series-forecasting",
    "sequence.recursive_forecast": "time-series-forecasting",
    "sequence.linear_ar": "time-series-forecasting",
}
"""What the hub calls the task of a model, where the data do not decide it."""


def export_to_hub(run: Run, folder: Path) -> dict[str, Any]:
    """Write the folder, whole or not at all; returns its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"expected a new or empty folder, found files in {folder}; name another")
    if not run.weights.exists():
        raise UsageError(f"{run.folder} has no weights yet; fit it first with --resume")
    run.model.state_dict()  # refuses damaged weights before anything is written
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".monge-hub-", dir=folder.parent))
    try:
        fill(run, draft)
        draft.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return {"folder": str(folder), "files": sorted(path.name for path in folder.iterdir())}


def fill(run: Run, draft: Path) -> None:
    """Write the files of the folder."""
    for name in COPIED:
        place = run.folder / name
        if place.is_dir():
            unneeded = shutil.ignore_patterns("last.safetensors", ".*", "figures")
            shutil.copytree(place, draft / name, ignore=unneeded)
        elif place.exists():
            shutil.copyfile(place, draft / name)
    shutil.copyfile(run.weights, draft / storage.SHARED_WEIGHTS)
    metadata = dict(run.metadata)
    named = Path(str(metadata["data"]["what"])).name
    metadata |= {"data": metadata["data"] | {"what": named, "path": named}, "compacted": True}
    storage.write(draft / "run.json", dumped(storage.with_format(metadata)))
    shown = {
        key: metadata[key] for key in ("model", "config", "train", "given", "target", "monge")
    }
    storage.write(draft / "config.json", dumped({"library_name": "monge", **shown}))
    storage.write(draft / "README.md", card(run))


def dumped(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def card(run: Run) -> str:
    """The card of the run after the front matter of the hub, with how to use it."""
    front = yaml.safe_dump(front_matter(run), sort_keys=False)
    text = (run.folder / "card.md").read_text(encoding="utf-8")
    use = (
        '```python\nimport monge\n\nrun = monge.load("path/of/this/folder")\nrun.sample(5)\n```\n'
    )
    return f"---\n{front}---\n\n{text}\n## Use\n\n{use}"


def front_matter(run: Run) -> dict[str, Any]:
    """What the hub reads: the library, the task and tags."""
    model = run.metadata["model"]
    tags = ["monge", model.partition(".")[0], model, run.space.kind]
    found: dict[str, Any] = {"library_name": "monge", "tags": list(dict.fromkeys(tags))}
    if name := task(run):
        found["pipeline_tag"] = name
    return found


def task(run: Run) -> str | None:
    """The task of the hub that is nearest; None if there is none."""
    model, space = run.metadata["model"], run.space
    if model in TASKS:
        return TASKS[model]
    if space.kind == "tokens":
        return "text-generation"
    if len(space.shape) == 3:
        return None if space.given else "unconditional-image-generation"
    if model.startswith("predict."):
        return "tabular-classification" if space.kind == "label" else "tabular-regression"
    return None
