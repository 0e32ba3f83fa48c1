"""Samples of a run from a form: options, conditions, seed; as rows, pictures and files."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.abilities import CanSample
from ..core.batch import Batch
from ..core.errors import UsageError
from ..data.codecs.scalar import MISSING, Categorical
from ..data.codecs.tokens import Text
from ..run.run import Run, parse_condition
from ..run.text import continue_text
from ..run.writers import write
from . import forms, loaded, showing
from .pages import settings_of, whole

MAX_PICTURES, MAX_ROWS = 256, 10_000
GIVEN = "given."
"""How the inputs of conditions begin."""


@dataclass(frozen=True)
class Condition:
    """A condition that a person can type or choose."""

    name: str
    kind: str  # choice, text, number, rows
    choices: tuple[str, ...] = ()
    about: str = ""


def conditions(run: Run) -> list[Condition]:
    """The conditions of a run; those that cannot be typed come from rows of its data."""
    found = []
    for name, group in run.view.given.items():
        codec, about = group.fields[0].codec, str(group.space)
        if not group.single or (len(group.space.shape) and not isinstance(codec, Text)):
            found.append(Condition(name, "rows", about=about))
        elif isinstance(codec, Categorical):
            names = tuple(str(each) for each in codec.names if each != MISSING)
            found.append(Condition(name, "choice", names, about))
        elif isinstance(codec, Text):
            found.append(Condition(name, "text", about=about))
        else:
            found.append(Condition(name, "number", about=about))
    return found


def check_settings(settings: Iterable[str]) -> list[str]:
    """Settings of a form; one that names a run may name one of these runs alone."""
    found = list(settings)
    for setting in found:
        name, _, value = setting.partition("=")
        if not name.startswith(("data.", "train.")) and ("/" in value or "\\" in value):
            raise UsageError(
                f"{name}: expected the name of a run or a value, found the path {value!r}; use "
                "the name alone"
            )
    return found


@dataclass(frozen=True)
class Asked:
    """What a form of samples says."""

    count: int
    seed: int
    settings: tuple[str, ...]
    given: dict[str, str]
    where: tuple[str, ...]
    prompt: str
    row: int

    @classmethod
    def of(cls, query: Mapping[str, str], default: int = 16) -> Asked:
        given = {
            key.removeprefix(GIVEN): value.strip()
            for key, value in query.items()
            if key.startswith(GIVEN) and value.strip()
        }
        where = tuple(part.strip() for part in query.get("where", "").split(";") if part.strip())
        return cls(
            whole(query, "n", default, 1, MAX_ROWS),
            whole(query, "seed", 0, 0, 2**31 - 1),
            tuple(check_settings(settings_of(query))),
            given,
            where,
            query.get("prompt", ""),
            whole(query, "row", 1, 1, 10**9) - 1,
        )


def option_inputs(run: Run) -> list[forms.Input]:
    """The sampling options of a model."""
    options = run.require(CanSample).sampling_defaults()
    return [each for each in forms.inputs(options) if each.name != "prompt"]


def given_of(run: Run, asked: Asked, count: int) -> dict[str, Batch] | None:
    """The conditions of all samples: as typed, a label that is not chosen as in the test rows, and
    what cannot be typed as in one test row."""
    known = conditions(run)
    found: dict[str, Batch] = {}
    for name, text in asked.given.items():
        batch = parse_condition(run, name, text, asked.settings)
        found[name] = batch.to(run.compute.torch_device())
    lacking = [each for each in known if each.name not in found]
    if not lacking:
        return found or None
    rows = loaded.with_data(run).split(None, "test", every=True)
    places = torch.arange(count) % max(len(rows), 1)
    if any(each.kind != "choice" for each in lacking):
        places = torch.full((count,), asked.row % max(len(rows), 1))
    own = rows.batch(places).given
    for each in lacking:
        found[each.name] = own[each.name].to(run.compute.torch_device())
    for name, batch in found.items():
        if len(batch) == 1:
            found[name] = batch[torch.zeros(count, dtype=torch.long)]
    return found


def is_text(run: Run) -> bool:
    return run.view.text is not None and not run.space.given


def draw(run: Run, asked: Asked) -> tuple[Tensor | list[str], str]:
    """Samples, and a note about how they were made."""
    with loaded.computing(), torch.no_grad():
        if is_text(run):
            return continued(run, asked), ""
        count = min(asked.count, MAX_PICTURES) if run.space.is_image else asked.count
        given = given_of(run, asked, count)
        if asked.where:
            found = run.sample_where(count, asked.where, given, *asked.settings, seed=asked.seed)
            return found.x, (
                f"{found.kept} of {found.tried} rows satisfy the conditions "
                f"({100 * found.acceptance:.3g} %), sampled by {found.method}"
            )
        x = run.sample_tensor(count, given, *asked.settings, seed=asked.seed)
        return x, "; ".join(run.departures(*asked.settings))


def continued(run: Run, asked: Asked) -> list[str]:
    texts: list[str] = []
    for texts in continue_text(  # noqa: B007
        run, asked.prompt, min(asked.count, 64), asked.settings, asked.seed
    ):
        pass
    return texts


def shown(run: Run, asked: Asked) -> tuple[showing.Shown, str]:
    """Samples for a template. Pictures are drawn by an address of their own."""
    if run.space.is_image:
        run.require(CanSample)
        note = f"at most {MAX_PICTURES} pictures are drawn" if asked.count > MAX_PICTURES else ""
        return showing.Shown("pictures", min(asked.count, MAX_PICTURES)), note
    x, note = draw(run, asked)
    if isinstance(x, list):
        return showing.Shown("texts", len(x), rows=[[text] for text in x]), note
    return showing.show(run.view, x), note


def downloads(run: Run) -> list[str]:
    """The forms in which samples can be downloaded, the form of the data first."""
    form = showing.form_of(run.view)
    own = {
        "pictures": ["png", "npz", "png.zip"],
        "texts": ["txt"],
        "sounds": ["wav", "npz"],
        "points": ["csv", "png", "npz"],
    }
    return own.get(form, ["csv", "npz"])


def download(run: Run, asked: Asked, suffix: str) -> tuple[bytes, str]:
    """Samples as a file, and its name; several files are packed."""
    if suffix not in downloads(run):
        raise UsageError(f"expected one of {', '.join(downloads(run))}, found {suffix}")
    x, _ = draw(run, asked)
    stem = f"{run.folder.name}-samples"
    if isinstance(x, list):
        return "\n".join(x).encode(), f"{stem}.txt"
    with tempfile.TemporaryDirectory() as scratch:
        if suffix == "png.zip":
            paths = single_pictures(run, x, Path(scratch))
        else:
            paths = write(run, x, Path(scratch) / f"{stem}.{suffix}")
        if len(paths) == 1:
            return paths[0].read_bytes(), paths[0].name
        return pack(paths), f"{stem}.zip"


def single_pictures(run: Run, x: Tensor, folder: Path) -> list[Path]:
    """One picture a file, as a folder of pictures holds them."""
    paths = []
    for number, image in enumerate(showing.as_bytes(x.numpy(), run.space), 1):
        path = folder / f"{number:05d}.png"
        path.write_bytes(showing.png(image))
        paths.append(path)
    return paths


def pack(paths: Sequence[Path]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as found:
        for path in paths:
            found.write(path, path.name)
    return out.getvalue()


def sound(run: Run, asked: Asked, number: int) -> bytes:
    """One sample as a wav file."""
    if run.view.sound is None:
        raise UsageError(f"expected a run on sound, found {run.space}; look at its samples")
    x: Any = draw(run, asked)[0]
    with tempfile.TemporaryDirectory() as scratch:
        return write(run, x[number : number + 1], Path(scratch) / "a.wav")[0].read_bytes()
