"""Models to check: small ones with random weights on small spaces, and those of finished runs.

A small model is its class's `smallest_config` on a space that can be enumerated or integrated.
Its weights are perturbed, since at a symmetric start much holds by accident, and what it fits in
closed form is fitted to random rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .. import registry
from ..core.batch import Batch
from ..core.config import Config
from ..core.errors import UsageError
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space

ROWS = 8
"""Rows an identity is given."""
FITTED = 200
"""Random rows that a closed-form model is fitted to."""
PASSES = 3
"""How often it is fitted: EM starts from its own last state."""
SHAKE = 0.2
"""Standard deviation of the noise added to every weight."""

LABEL = Space(kind="label", size=3, name="label", rows=FITTED)
SPACES = (
    Space(kind="binary", shape=(6,), size=2, mean=(0.5,), scale=(0.5,), rows=FITTED),
    Space(
        kind="levels", shape=(1, 2, 2), size=3, mean=(1.0,), scale=(0.8,), high=(2.0,), rows=FITTED
    ),
    Space(kind="label", size=4, rows=FITTED),
    Space(
        kind="counts",
        shape=(2,),
        mean=(3.0, -1.0),
        scale=(2.0, 1.5),
        low=(-3.0, -5.0),
        high=(9.0, 3.0),
        rows=FITTED,
    ),
    Space(
        kind="real",
        shape=(2,),
        mean=(1.0, -2.0),
        scale=(2.0, 0.5),
        low=(-5.0, -3.5),
        high=(7.0, -0.5),
        rows=FITTED,
    ),
    Space(
        kind="columns",
        shape=(3,),
        rows=FITTED,
        columns=(
            Space(kind="binary", size=2, mean=(0.5,), scale=(0.5,), name="flag", rows=FITTED),
            Space(kind="label", size=3, name="name", rows=FITTED),
            Space(
                kind="real",
                mean=(10.0,),
                scale=(3.0,),
                low=(1.0,),
                high=(19.0,),
                name="number",
                rows=FITTED,
            ),
        ),
    ),
    Space(
        kind="binary",
        shape=(4,),
        size=2,
        mean=(0.5,),
        scale=(0.5,),
        rows=FITTED,
        given={"label": LABEL},
    ),
    Space(
        kind="real",
        shape=(1,),
        mean=(-1.0,),
        scale=(0.3,),
        low=(-2.0,),
        high=(0.0,),
        rows=FITTED,
        given={"label": LABEL},
    ),
)

PAIRED = (
    replace(SPACES[1], given={"source": replace(SPACES[1], shape=(1, 1, 1), name="source")}),
    replace(SPACES[1], given={"source": replace(SPACES[1], name="source")}),
    replace(
        SPACES[4],
        given={
            "source": Space(
                kind="real",
                shape=(2,),
                mean=(1.0,),
                scale=(2.0,),
                low=(-5.0,),
                high=(7.0,),
                name="source",
                rows=FITTED,
            )
        },
    ),
    Space(kind="label", size=3, rows=FITTED, given={"inputs": replace(SPACES[4], name="inputs")}),
    replace(
        SPACES[7],
        shape=(3,),
        given={"past": replace(SPACES[7], shape=(5,), name="past", given={})},
    ),
    Space(
        kind="tokens",
        shape=(3,),
        size=4,
        rows=FITTED,
        given={"source": Space(kind="tokens", shape=(3,), size=3, name="source", rows=FITTED)},
    ),
)
"""Spaces conditioned on numbers or symbols, for models that take none of the others."""


@dataclass(frozen=True)
class Subject:
    """A model with a few rows of its space, in float64."""

    name: str
    model: Model
    batch: Batch


def able(ability: type) -> Iterator[Subject]:
    """Every model of the library that has this ability, on every small space that it takes."""
    tag = vars(ability).get("ability")  # None for a family, which is found by its base class
    for entry in registry.entries():
        if tag in entry.abilities if tag else issubclass(registry.find(entry.name), ability):
            yield from small(entry.name)


@cache
def small(name: str) -> tuple[Subject, ...]:
    """A model on every small space that it takes."""
    return tuple(fresh(name))


def fresh(name: str) -> Iterator[Subject]:
    """The same, each built when it is asked for."""
    owner = registry.find(name)
    short = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
    taken = [space for space in SPACES if takes(owner, space)]
    taken = taken or [space for space in PAIRED if takes(owner, space) and fits(owner, space)]
    return (subject(short, owner.smallest_config(space), space) for space in taken)


def fits(owner: type[Model], space: Space) -> bool:
    """Whether its smallest network can be built on so small an image."""
    try:
        owner.smallest_config(space).build(space)
    except UsageError:
        return False
    return True


def subject(name: str, config: Config, space: Space) -> Subject:
    """The model of a configuration on a small space."""
    return Subject(
        f"{name}, {describe_space(space)}",
        build(config, space),
        random_rows(space, ROWS, make_generator(2)),
    )


def trained(name: str, model: Model, rows: Batch) -> Subject:
    """A fitted model on rows it was not fitted to, those without missing values if there are
    any."""
    whole = rows.observed_mask.reshape(len(rows), -1).all(1).nonzero()[:ROWS, 0]
    batch = replace(rows[whole], observed=None) if len(whole) else rows[:ROWS]
    return Subject(name, copy.deepcopy(model).cpu().double().eval(), batch.to("cpu").double())


def takes(owner: type[Model], space: Space) -> bool:
    kinds = {part.kind for part in space.given.values()}
    return (
        space.kind in owner.events
        and kinds <= owner.givens
        and owner.unsupported_reason(space) is None
    )


def describe_space(space: Space) -> str:
    """A short description of a small space."""
    given = "".join(f" given {name}" for name in space.given)
    return f"{space.kind} {'x'.join(map(str, space.shape)) or '1'}{given}"


def build(config: Config, space: Space) -> Model:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: Model = config.build(space).double()
        for parameter in model.parameters():
            parameter.add_(SHAKE * torch.randn_like(parameter))
        rows = random_rows(space, FITTED, make_generator(1))
        model.initialise_from_data(rows)
        for update in [update for update in model.updates() if not update.params] * PASSES:
            update.loss(rows)
    return model.eval()


def random_rows(space: Space, n: int, generator: Generator) -> Batch:
    """Valid rows of a space whose entries depend on one common cause, float64. A given image of
    half the height and width is that of the event, shrunk."""
    given = {name: random_rows(part, n, generator) for name, part in space.given.items()}
    own, lean = torch.rand(2, n, space.dims, generator=generator, dtype=torch.float64)
    cause = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    uniform = torch.where(lean < 0.5, cause, own)  # (n, D)
    entries = [quantile(part, uniform[:, i]) for i, part in enumerate(space.parts)]
    x = torch.stack(entries, 1).reshape(n, *space.shape)
    if space.is_image:
        halves = (space.shape[0], *(side // 2 for side in space.shape[1:]))
        small = {name for name, part in space.given.items() if part.shape == halves}
        given |= {name: Batch(F.avg_pool2d(x, 2).round()) for name in small}
    return Batch(x.long() if space.kind == "label" else x, given)


def strangers(model: object, batch: Batch) -> Tensor:
    """Valid values that are not those of the batch, laid out flat, (B, D)."""
    assert isinstance(model, Model)
    space = replace(model.space, given={})
    return random_rows(space, len(batch), make_generator(3)).x.to(batch.x).reshape(len(batch), -1)


def quantile(part: Space, uniform: Tensor) -> Tensor:
    """Values of a scalar space: normal for numbers, for codes the small ones are more likely."""
    if part.kind in ("real", "counts"):
        x = part.mean[0] + part.scale[0] * torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
        return x if part.kind == "real" else x.round()
    size = 2 if part.kind == "binary" else part.size
    return (uniform.pow(1.3) * size).floor().clamp(max=size - 1)
