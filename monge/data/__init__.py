"""Data: a name, a path or a Python object becomes a Source of named fields and seeded splits."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .catalogue import names

if TYPE_CHECKING:
    from .options import Options
    from .raw import Raw
    from .source import Source
    from .view import Rows, View

__all__ = ["Rows", "Source", "View", "names", "open"]


def __getattr__(name: str) -> Any:
    """Source, View and Rows, which need torch, on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".source" if name == "Source" else ".view", __name__),
                   name)


def open(what: Any, *words: str, fields: Mapping[str, Any] | None = None) -> Source:
    """`what` as a Source, read as the words say; with `fields` of an earlier run, in its terms.

    what: a built-in name or a path, either followed by +transforms, two of them that nobody
    paired as A~B, two files of sentences line by line as A,B, an array, a tensor, a frame, an
    (x, y) pair, a torch Dataset, rows, or a Source, which is returned as it is.
    """
    from ..core.error import WordError
    from . import catalogue, derive, folder, pairing, sentences, unpaired
    from .ingest import form, ingest
    from .options import Options
    from .source import Source

    if isinstance(what, Source):
        if words or fields:
            raise WordError("a Source is read already; give words where it is opened")
        return what
    options = Options().override(*words)
    if not isinstance(what, str | Path):
        return ingest(from_python(what, options), options, (), fields)
    if both := unpaired.sides(str(what)):
        each = [open(side, *words) for side in both]
        if fields is not None:
            terms = unpaired.terms_of(fields, each)
            each = [open(side, *words, fields=kept)
                    for side, kept in zip(both, terms, strict=True)]
        return unpaired.pair(*each)
    if couple := sentences.sides(str(what)):
        name = couple[0].name.partition(".")[0]
        raw = sentences.read({name: couple}, {name: None}, name, options, form((), fields))
        return ingest(raw, options, (), fields)
    place, after = catalogue.locate(str(what))
    changes = derive.find(after)
    before, maker, rest = pairing.parted(changes)
    raw = catalogue.make(place, options) if isinstance(place, str) else \
        folder.read(place, options, form(before, fields))
    if maker is None:
        return ingest(raw, options, changes, fields)
    pictures = ingest(raw, options, before, whole=fields is not None)
    return pairing.make(pictures, maker, rest, fields)


def from_python(what: Any, options: Options) -> Raw:
    """Whatever Python people hold data in; strings are text where the words speak of tokens."""
    import numpy as np
    import torch
    from torch.utils.data import Dataset, IterableDataset

    from ..core.error import DataError
    from .array import from_array, from_pair, from_rows
    from .sentences import from_pairs
    from .table import from_frame, is_frame
    from .text import from_lines

    if options.tokens != "auto" and is_strings(what):
        return from_lines(what, options)
    if options.tokens != "auto" and isinstance(what, tuple) and len(what) == 2 \
            and all(map(is_strings, what)):
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
        raise DataError(f"a {type(what).__name__} is no data; give a name, a path, an array, a "
                        "frame, an (x, y) pair, a Dataset or rows") from None
    return from_rows(rows, "rows")


def is_strings(what: Any) -> bool:
    return isinstance(what, list | tuple) and bool(what) and all(isinstance(x, str) for x in what)
