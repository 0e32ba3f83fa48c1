"""Data: a name, a path or a Python object becomes a Source of named fields and seeded splits."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .builtin.catalogue import names

if TYPE_CHECKING:
    from .dataset import Dataset
    from .options import Options
    from .readers.raw import RawData
    from .view import Split, View


__all__ = ["Dataset", "Split", "View", "names", "open"]


def __getattr__(name: str) -> Any:
    """Source, View and Rows, which need torch, on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(".dataset" if name == "Dataset" else ".view", __name__), name
    )


def open(what: Any, *words: str, fields: Mapping[str, Any] | None = None) -> Dataset:
    """`what` as a Source, read as the words say; with `fields` of an earlier run, in its terms.

    what: a built-in name or a path, either followed by +transforms, two of them that nobody
    paired as A~B, two files of sentences line by line as A,B, an array, a tensor, a frame, an
    (x, y) pair, a torch Dataset, rows, or a Source, which is returned as it is.
    """
    from ..core.errors import UsageError
    from .build import form, ingest
    from .builtin import catalogue
    from .dataset import Dataset
    from .options import Options
    from .readers import files, parallel_text
    from .transforms import pairs, parse

    if isinstance(what, Dataset):
        if words or fields:
            raise UsageError("a Source is read already; give words where it is opened")
        return what
    options = Options().override(*words)
    if not isinstance(what, str | Path):
        return ingest(from_python(what, options), options, (), fields)
    if both := pairs.sides(str(what)):
        each = [open(side, *words) for side in both]
        if fields is not None:
            terms = pairs.terms_of(fields, each)
            each = [
                open(side, *words, fields=kept) for side, kept in zip(both, terms, strict=True)
            ]
        return pairs.pair(*each)
    if couple := parallel_text.sides(str(what)):
        name = couple[0].name.partition(".")[0]
        raw = parallel_text.read({name: couple}, {name: None}, name, options, form((), fields))
        return ingest(raw, options, (), fields)
    place, after = catalogue.locate(str(what))
    changes = parse.find(after)
    before, maker, rest = pairs.parted(changes)
    raw = (
        catalogue.make(place, options)
        if isinstance(place, str)
        else files.read(place, options, form(before, fields))
    )
    if maker is None:
        return ingest(raw, options, changes, fields)
    pictures = ingest(raw, options, before, whole=fields is not None)
    return pairs.make(pictures, maker, rest, fields)


def from_python(what: Any, options: Options) -> RawData:
    """Whatever Python people hold data in; strings are text where the words speak of tokens."""
    import numpy as np
    import torch
    from torch.utils.data import Dataset, IterableDataset

    from ..core.errors import DataError
    from .readers.arrays import from_array, from_pair, from_rows
    from .readers.parallel_text import from_pairs
    from .readers.tables import from_frame, is_frame
    from .readers.text import from_lines

    if options.tokens != "auto" and is_strings(what):
        return from_lines(what, options)
    if (
        options.tokens != "auto"
        and isinstance(what, tuple)
        and len(what) == 2
        and all(map(is_strings, what))
    ):
        return from_pairs(what[0], what[1], options)
    if is_frame(what) or isinstance(what, Mapping):
        return from_frame(what)
    if isinstance(what, np.ndarray | torch.Tensor):
        return from_array(what)
    if isinstance(what, tuple) and len(what) == 2:
        return from_pair(*what)
    if isinstance(what, Dataset) and not isinstance(what, IterableDataset):
        items: Any = what
        return from_rows((items[i] for i in range(len(items))), type(what).__name__.lower())
    try:
        rows = iter(what)
    except TypeError:
        raise DataError(
            f"a {type(what).__name__} is no data; give a name, a path, an array, a "
            "frame, an (x, y) pair, a Dataset or rows"
        ) from None
    return from_rows(rows, "rows")


def is_strings(what: Any) -> bool:
    return isinstance(what, list | tuple) and bool(what) and all(isinstance(x, str) for x in what)
