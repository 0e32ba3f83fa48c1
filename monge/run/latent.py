r"""Latent codes of a run: encode, decode, traverse, interpolate, transfer and arithmetic.

An interpolation from a to b follows the great arc if codes are Gaussian, since the straight line
leaves the shell $|z| \approx \sqrt d$ where the codes are (White 2016):
$z(t) = \frac{\sin (1-t)\omega}{\sin\omega} a + \frac{\sin t\omega}{\sin\omega} b$ with $\omega$
the angle between them. Sums are of the mean codes of labels (Radford, Metz & Chintala 2016). A
generator has codes of its samples only; their labels are predicted by a linear map fitted to the
data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.abilities import CanDecode, CanEncode, CanTransfer, Given, HasBijection, HasPosterior
from ..core.batch import Batch, broadcast_conditions
from ..core.errors import DataError, UsageError
from ..core.model import device_of
from ..core.rng import make_generator
from ..data.codecs.scalar import Categorical, listed
from ..evaluate.energy_distance import FeatureMap
from ..evaluate.likelihood import CHUNK, chunks, padded
from ..evaluate.linear_probe import regress

if TYPE_CHECKING:
    import pandas as pd

    from ..data.batches import Split
    from ..data.dataset import Dataset
    from .run import Run


STEPS = 9
"""Codes of an interpolation or traversal, both ends included."""
LINES = 16
"""Dimensions that are traversed."""
PRIOR_SAMPLES = 4096
"""Codes sampled from the prior if a model has no encoder."""
READ = 10_000
"""Rows that a map from events to labels is fitted to."""
REACH = 0.025
"""Share of codes beyond each end of a dimension's walk."""


@dataclass(frozen=True)
class DecodedGrid:
    """Decoded events in lines of one length."""

    x: Tensor  # (lines columns, *event)
    columns: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class EncodedRows:
    """Rows of data and their codes; of a generator, sampled codes."""

    z: Tensor  # (N, *latent)
    rows: Split
    source: Dataset
    sampled: bool

    def given(self, row: int, n: int) -> dict[str, Batch]:
        """What a row is given, n times."""
        index = torch.full((n,), row % len(self.rows))
        return dict(self.rows.batch(index).given)


def code_frame(z: np.ndarray, labels: Any) -> pd.DataFrame:
    """Codes (N, *latent) as columns z1, z2, ... with these row labels."""
    import pandas as pd

    flat = z.reshape(len(z), -1)
    names = [f"z{place}" for place in range(1, flat.shape[1] + 1)]
    return pd.DataFrame(flat, labels, names)


def encoded(run: Run, rows: Split) -> Tensor:
    """The code of every row, (N, *latent)."""
    model = run.require(CanEncode)
    return torch.cat([codes_of(model, padded(batch))[: len(batch)] for batch in chunks(rows)])


def codes_of(model: CanEncode, batch: Batch) -> Tensor:
    return model.encode(batch.to(device_of(model))).cpu()


def events_of(model: Any, codes: Batch) -> Tensor:
    """The events of codes (B, *latent), which `codes` holds as x, under the conditions it has."""
    like = next(model.parameters(), torch.zeros(()))
    moved = codes.to(device_of(model))
    return model.decode(moved.x.to(like), moved.given).cpu()


def decoded(run: Run, z: Any, given: Given | None = None) -> Tensor:
    """The events that codes (N, *latent) stand for, (N, *event), as the model gives them."""
    model = run.require(CanDecode)
    rows = code_rows(run, z, given)
    pieces = [rows[index] for index in torch.arange(len(rows)).split(CHUNK)]
    return torch.cat([events_of(model, padded(piece))[: len(piece)] for piece in pieces])


def code_rows(run: Run, z: Any, given: Given | None = None) -> Batch:
    """Codes (N, *latent) as rows with the conditions to decode them under."""
    model = run.require(CanDecode)
    z = z if isinstance(z, Tensor) else torch.tensor(np.asarray(z))
    shape = model.latent.shape
    if tuple(z.shape[1:]) != shape or not len(z):
        raise DataError(
            f"the codes have the shape {tuple(z.shape)}, and those of "
            f"{run.metadata['model']} are rows of {shape}; give (N, "
            f"{', '.join(map(str, shape))})"
        )
    return Batch(z, broadcast_conditions(given or {}, run.space, len(z)))


def own_rows(run: Run, what: Any, split: str | None) -> tuple[Dataset, Split]:
    """Data as the run sees them, and the requested rows."""
    own = what is None and run.opened is not None
    source = run.opened.dataset if own and run.opened is not None else run.source(what)
    default = "test" if what is None or source.has_splits else "all"
    view = source.view(run.metadata["event"], run.metadata["given"], run.metadata["target"])
    return source, view.split(split or default, every=True)


def coded(run: Run, what: Any, split: str | None, seed: int) -> EncodedRows:
    """Rows with their codes, or codes sampled from a generator's prior."""
    source, rows = own_rows(run, what, split)
    if isinstance(run.model, CanEncode):
        return EncodedRows(encoded(run, rows), rows, source, False)
    shape = run.require(CanDecode).latent.shape
    return EncodedRows(
        torch.randn(PRIOR_SAMPLES, *shape, generator=make_generator(seed)), rows, source, True
    )


def table(run: Run, what: Any = None, split: str | None = None) -> pd.DataFrame:
    """One line a row: its number, its code, and its label where the data have one."""
    import pandas as pd

    source, rows = own_rows(run, what, split)
    z = encoded(run, rows).flatten(1).numpy()
    columns: dict[str, Any] = {"row": np.arange(1, len(z) + 1)}
    columns |= {f"z{place}": column for place, column in enumerate(z.T, 1)}
    if name := label_field(source):
        columns[name] = names_of(source, name, rows)
    return pd.DataFrame(columns)


def label_field(source: Dataset) -> str | None:
    """The label field: the target, or the only categorical field."""
    known = [name for name, field in source.fields.items() if isinstance(field.codec, Categorical)]
    if source.target in known:
        return source.target
    return known[0] if len(known) == 1 else None


def names_of(source: Dataset, field: str, rows: Split) -> np.ndarray:
    """The label of each row, empty if it is unknown."""
    codec, labels = source.fields[field].codec, source.tensors[field]
    assert isinstance(codec, Categorical)
    assert isinstance(labels, Tensor)
    names = np.array([*map(str, codec.names), ""], object)
    found = labels[rows.index].double().nan_to_num(-1).long().numpy()
    return names[found]


def traverse(
    run: Run,
    what: Any = None,
    split: str | None = None,
    row: int = 0,
    lines: int = LINES,
    steps: int = STEPS,
    seed: int = 0,
) -> DecodedGrid:
    """The code of one row with one dimension at a time moved over its range, a line each; where
    there are many dimensions, those in which codes differ most."""
    have = coded(run, what, split, seed)
    flat = have.z.flatten(1)  # (N, d)
    if row >= len(flat):
        raise UsageError(f"expected a row from 1 to {len(flat)}, found {row + 1}; choose another")
    chosen = flat.var(0, correction=0).argsort(descending=True)[:lines].sort()[0]
    low, high = flat[:, chosen].quantile(torch.tensor([REACH, 1 - REACH]).to(flat), 0)
    z = flat[row].repeat(len(chosen), steps, 1)  # (lines, steps, d)
    place = torch.linspace(0, 1, steps).to(flat)
    z[torch.arange(len(chosen)), :, chosen] = low[:, None] + (high - low)[:, None] * place
    z = z.reshape(-1, *have.z.shape[1:])
    x = decoded(run, z, have.given(row, len(z)))
    return DecodedGrid(x, steps, tuple(f"z{int(dim) + 1}" for dim in chosen))


def interpolate(
    run: Run,
    what: Any = None,
    split: str | None = None,
    lines: int = 8,
    steps: int = STEPS,
    seed: int = 0,
) -> DecodedGrid:
    """Walks from each odd row to the even one after it, given what the first of them is."""
    have = coded(run, what, split, seed)
    lines = min(lines, len(have.z) // 2)
    if not lines:
        raise DataError(
            "expected at least two rows to interpolate between, found fewer; give more rows"
        )
    ends = have.z[: 2 * lines].unflatten(0, (lines, 2))
    t = torch.linspace(0, 1, steps)
    arc = isinstance(run.model, HasPosterior | HasBijection) or have.sampled
    z = (slerp if arc else lerp)(ends[:, 0], ends[:, 1], t).flatten(0, 1)
    index = torch.arange(0, 2 * lines, 2).repeat_interleave(steps) % len(have.rows)
    x = decoded(run, z, have.rows.batch(index).given)
    return DecodedGrid(x, steps, tuple(f"{2 * i + 1} to {2 * i + 2}" for i in range(lines)))


def transfer(
    run: Run,
    what: Any = None,
    split: str | None = None,
    lines: int = 8,
    given: Given | None = None,
) -> DecodedGrid:
    """Each row, and then what its code is under the conditions that `given` names; where it names
    none, under those of each of the rows."""
    model, (_, rows) = run.require(CanTransfer), own_rows(run, what, split)
    batch = rows.batch(torch.arange(min(lines, len(rows)))).to(device_of(model))
    others = [given] if given else [batch[k : k + 1].given for k in range(len(batch))]
    x = torch.stack([batch.x, *(model.transfer(batch, other) for other in others)], 1)
    return DecodedGrid(
        x.flatten(0, 1).cpu(), x.shape[1], tuple(map(str, range(1, len(batch) + 1)))
    )


def lerp(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """The straight walk from a to b (N, *latent) at t (S,), (N, S, *latent)."""
    t = t.to(a).reshape(1, -1, *(1,) * (a.ndim - 1))
    return (1 - t) * a[:, None] + t * b[:, None]


def slerp(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """The walk along the great arc from a to b (N, *latent) at t (S,), (N, S, *latent); straight
    where they point the same way or opposite ones, between which there is no one arc."""
    flat_a, flat_b = a.flatten(1).double(), b.flatten(1).double()
    omega = F.cosine_similarity(flat_a, flat_b).clamp(-1, 1).acos()[:, None]  # (N, 1)
    arc, t = omega.sin(), t.double()
    weights = torch.stack([((1 - t) * omega).sin() / arc, (t * omega).sin() / arc])  # (2, N, S)
    weights = torch.where(arc > 1e-4, weights, torch.stack([1 - t, t])[:, None])
    walk = torch.einsum("kns,knd->nsd", weights, torch.stack([flat_a, flat_b]))
    return walk.unflatten(2, a.shape[1:]).to(a.dtype)


def arithmetic(
    run: Run,
    text: str,
    what: Any = None,
    split: str | None = None,
    field: str | None = None,
    seed: int = 0,
) -> DecodedGrid:
    """The mean code of each label in `text` ("+a -b +c"), decoded, and their sum at the end. Where
    signs do not add up to one, the mean of all codes makes up for it."""
    terms, have = parse(text), coded(run, what, split, seed)
    names = known_names(run, have, field)
    missing = [name for _, name in terms if name not in names]
    if missing:
        there = listed(sorted(set(names) - {""}), 30)
        raise DataError(f"no row has the label {missing[0]!r}; choose from {there}")
    means = torch.stack([have.z[torch.from_numpy(names == name)].mean(0) for _, name in terms])
    signs = torch.tensor([sign for sign, _ in terms]).to(means)
    total = torch.tensordot(signs, means, 1) + (1 - signs.sum()) * have.z.mean(0)
    z = torch.cat([means, total[None]])
    x = decoded(run, z, have.given(0, len(z)))
    return DecodedGrid(
        x, len(z), (" ".join(f"{'+' if sign > 0 else '-'}{n}" for sign, n in terms),)
    )


def parse(text: str) -> list[tuple[int, str]]:
    """ "+a -b +c" as signs and labels; the first sign may be left out."""
    pieces = re.split(r"\s+(?=[+-])", text.strip())
    pieces[0] = pieces[0] if pieces[0][:1] in ("+", "-") else f"+{pieces[0]}"
    if not all(piece[1:].strip() for piece in pieces):
        raise UsageError(f'expected a sum of labels, found {text!r}; write "+a -b +c"')
    return [(1 if piece[0] == "+" else -1, piece[1:].strip()) for piece in pieces]


def known_names(run: Run, have: EncodedRows, field: str | None) -> np.ndarray:
    """The label of each code, (N,): of sampled codes, as a linear probe predicts it."""
    source, name = have.source, field or label_field(have.source)
    labels = [n for n, f in source.fields.items() if isinstance(f.codec, Categorical)]
    if name not in labels:
        wanted = "one field" if name is None else f"a field {name!r}"
        raise UsageError(
            f"sums need {wanted} of labels, and {source.name} has "
            f"{listed(labels) or 'none'}; name one with --field, or give other data"
        )
    if name in run.metadata["given"]:
        raise UsageError(
            f"the run is conditioned on {name!r}, so its codes do not encode it; refit "
            f"without --given {name}"
        )
    return read_names(run, have, name) if have.sampled else names_of(source, name, have.rows)


def read_names(run: Run, have: EncodedRows, field: str) -> np.ndarray:
    """The labels of sampled codes, predicted from their events by a linear probe of the data."""
    about = run.metadata
    train = have.source.view(about["event"], about["given"], about["target"]).split("train")
    train.index = train.index[:READ]
    names = names_of(have.source, field, train)
    feature_map = FeatureMap(replace(run.space, given={}))
    kinds, known = sorted(set(names) - {""}), torch.from_numpy(names != "")
    truth = torch.tensor([kinds.index(name) for name in names if name])
    weights = regress(feature_map(train.whole()[known]), truth, len(kinds))
    given = have.rows.batch(torch.arange(len(have.z)) % len(have.rows)).given
    events = feature_map(Batch(decoded(run, have.z, given)))
    found = (F.pad(events, (0, 1), value=1.0) @ weights).argmax(1)
    return np.array(kinds, object)[found.numpy()]


def plane(z: Tensor) -> Tensor:
    """Codes (N, *latent) in the plane, (N, 2): as they are where they are two numbers, otherwise
    along the two directions in which they differ most."""
    flat = z.flatten(1).double()
    if flat.shape[1] <= 2:
        return F.pad(flat, (0, 2 - flat.shape[1]))
    centred = flat - flat.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:2].T


def manifold(run: Run, z: Tensor, side: int = 15) -> DecodedGrid | None:
    """Events over an even grid of the codes' range, where codes are two numbers."""
    if z[0].numel() != 2 or not isinstance(run.model, CanDecode) or run.space.given:
        return None
    low, high = z.flatten(1).quantile(torch.tensor([REACH, 1 - REACH]).to(z), 0)
    across, down = (
        torch.linspace(float(a), float(b), side) for a, b in zip(low, high, strict=True)
    )
    grid = torch.stack(torch.meshgrid(across, down.flip(0), indexing="xy"), -1).reshape(-1, 2)
    x = decoded(run, grid.reshape(-1, *z.shape[1:]))
    return DecodedGrid(x, side, tuple(f"{float(value):.2f}" for value in down.flip(0)))
