"""Opening data: one ordered list of readers, then the stages that make a dataset.

`open` locates the input, the first of READERS that recognises it reads it, and `build` encodes and
splits the rows and computes statistics. Optional stages (series, text columns, transforms, the
schema of an earlier run) run only if the data need them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from ..core.errors import DataError, UsageError, nearest
from ..core.space import Space
from . import constraints, content, row_keys
from .builtin import catalogue
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.scalar import Offset
from .codecs.sequence import SequenceCodec
from .codecs.sound import Sound
from .codecs.time_index import ISO_TIME
from .codecs.tokens import Text
from .codecs.window import Series, Window
from .dataset import Dataset, single_columns
from .derived import (
    Construction,
    Derived,
    Difference,
    construct,
    find_derived,
    in_numbers,
    refuse_broken_rows,
)
from .options import Options
from .packed import PackedTensor, holes
from .readers import (
    arrays,
    audio,
    folders,
    images,
    parallel_text,
    series,
    tables,
    text,
    text_columns,
)
from .readers.base import RawData, ReadFormat
from .schema import (
    Field,
    Schema,
    Selection,
    condition_fields,
    mark_missing,
    read_schema,
    selection_of,
    with_missing_marks,
)
from .schema_match import encode as encode_matched
from .schema_match import match as match_schema
from .schema_match import without_unseen
from .splits import divide, keep
from .support import find_support, refuse_outside
from .transforms import pairs, parse


def open(data: Any, *settings: str, fields: Mapping[str, Any] | None = None) -> Dataset:
    """Open `data` as a dataset with these settings, and with the schema of an earlier run if its
    `fields` are given.

    data: a built-in name or a path, either followed by +transforms, two unpaired datasets as
    A~B, two files of sentences line by line as A,B, an array, a tensor, a frame (of pandas, or of
    a library whose frames have `to_pandas`, such as polars and Arrow), an (x, y) pair,
    a torch Dataset, rows, or a dataset, which is returned unchanged.
    """
    if isinstance(data, Dataset):
        if settings or fields:
            raise UsageError(
                "expected settings when the dataset is first opened, found them for a dataset "
                "that is already open; pass them to the first open"
            )
        return data
    options = Options().override(*settings)
    data = data if isinstance(data, str | Path) else tables.as_pandas(data)
    if isinstance(data, str | Path) and "~" in str(data) and (both := pairs.sides(str(data))):
        return open_unpaired(both, settings, fields)
    source, transforms = locate(data)
    before, maker, after = pairs.parted(transforms) if transforms else ((), None, ())
    raw = read(source, options, read_format(before, fields))
    if maker is None:
        return build(raw, options, transforms, fields)
    unpaired = build(raw, options, before, whole=fields is not None)
    return pairs.make(unpaired, maker, after, fields)


def open_unpaired(
    names: tuple[str, str], settings: Sequence[str], fields: Mapping[str, Any] | None
) -> Dataset:
    """The two unpaired datasets of A~B."""
    each = [open(name, *settings) for name in names]
    if fields is not None:
        schemas = pairs.schemas_of_sides(fields, each)
        each = [
            open(name, *settings, fields=schema)
            for name, schema in zip(names, schemas, strict=True)
        ]
    return pairs.pair(*each)


def open_series(data: Any, settings: Sequence[str], fields: Mapping[str, Any]) -> Series:
    """A series of any length in the schema of a run, with columns known after its end."""
    options = Options().override(*settings)
    source, _ = locate(tables.as_pandas(data))
    if isinstance(source, str):
        raise DataError(f"expected a table with a column of times, found the built-in {data}")
    schema, _ = read_schema(fields)
    found = series.read(prepare(read(source, options), options), options, schema)
    series.first_tick(found, schema)  # refuses steps of another length
    return found


def locate(data: Any) -> tuple[Any, Sequence[parse.Change]]:
    """The input to read (an object, a built-in name, a path or two parallel files), and the
    transforms in its name."""
    if not isinstance(data, str | Path):
        return data, ()
    if "," in str(data) and (files := parallel_text.sides(str(data))):
        return files, ()
    place, transforms = catalogue.locate(str(data))
    return place, parse.find(transforms) if transforms else ()


@dataclass(frozen=True)
class DataReader:
    """A kind of input: how it is recognised and what reads it."""

    read: Callable[[Any, Options, ReadFormat], RawData]
    recognises: Callable[[Any, Options], bool] = lambda source, options: True
    suffixes: tuple[str, ...] = ()  # of files of this kind

    def accepts(self, source: Any, options: Options) -> bool:
        """Whether the input is of this kind; files are recognised by their suffix first."""
        named = isinstance(source, Path) and source.name.lower().endswith(self.suffixes)
        if self.suffixes and (not named or source.is_dir()):
            return False
        return self.recognises(source, options)


def read(source: Any, options: Options, form: ReadFormat | None = None) -> RawData:
    """Read the input with the first reader that recognises it."""
    if isinstance(source, Path):
        content.check_kind(source)
    for reader in READERS:
        if reader.accepts(source, options):
            return reader.read(source, options, form or ReadFormat())
    if isinstance(source, Path):
        raise DataError(
            f"expected a table ({', '.join(TABLE_SUFFIXES[:4])} or their .gz), an array "
            f"({', '.join(ARRAY_SUFFIXES)}), idx, images or {audio.SUFFIX}, found {source}; "
            "convert it"
        )
    raise DataError(
        f"expected a name, a path, an array, a frame, an (x, y) pair, a torch Dataset or rows, "
        f"found a {type(source).__name__}; convert it"
    )


TABLE_SUFFIXES = (".csv", ".tsv", ".data", ".txt", ".csv.gz", ".tsv.gz", ".data.gz", ".txt.gz")
ARRAY_SUFFIXES = (".npy", ".npz")
IDX_NAME = re.compile(r".*[-.]idx.*")
"""train-images-idx3-ubyte.gz, mine.idx and the like."""


def is_folder(source: Any) -> bool:
    return isinstance(source, Path) and source.is_dir()


def is_idx(source: Any) -> bool:
    return isinstance(source, Path) and bool(IDX_NAME.fullmatch(source.name.lower()))


def is_strings(source: Any) -> bool:
    return (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(each, str) for each in source)
    )


def is_sentence_pairs(source: Any) -> bool:
    return isinstance(source, tuple) and len(source) == 2 and all(map(is_strings, source))


def is_torch_dataset(source: Any) -> bool:
    return isinstance(source, TorchDataset) and not isinstance(source, IterableDataset)


def is_iterable(source: Any) -> bool:
    """Whether a Python object yields rows, by iteration or by index."""
    try:
        iter(source)
    except TypeError:
        return False
    return True


def read_items(source: Any, options: Options, form: ReadFormat) -> RawData:
    """The items of a torch Dataset, which may not be iterable."""
    rows = (source[i] for i in range(len(source)))
    return arrays.from_rows(rows, type(source).__name__.lower())


def read_table_folder(source: Path, options: Options, form: ReadFormat) -> RawData:
    def is_table(path: Path) -> bool:
        return any(reader.accepts(path, options) for reader in TABLE_READERS)

    return folders.read_tables(source, is_table, lambda path: read(path, options))


TABLE_READERS = (
    DataReader(
        lambda source, options, form: arrays.read_file(source),
        suffixes=ARRAY_SUFFIXES,
    ),
    DataReader(
        lambda source, options, form: images.read_idx([source], tables.stem(source)),
        lambda source, options: is_idx(source) and source.is_file(),
    ),
    DataReader(
        lambda source, options, form: tables.read_file(source, options),
        suffixes=TABLE_SUFFIXES,
    ),
)
"""Readers of files with a table, an array or idx; several in a folder are one split each."""

READERS = (
    # built-in datasets
    DataReader(
        lambda source, options, form: catalogue.make(source, options),
        lambda source, options: isinstance(source, str),
    ),
    # files
    DataReader(
        lambda source, options, form: images.read_images([source], source.parent, form.side),
        suffixes=images.SUFFIXES,
    ),
    DataReader(
        lambda source, options, form: audio.read(
            {source.parent: [source]}, source.stem, options, form
        ),
        lambda source, options: source.name[0] != ".",
        suffixes=(audio.SUFFIX,),
    ),
    DataReader(
        lambda source, options, form: text.read(
            {source: None}, tables.stem(source), options, form
        ),
        lambda source, options: text.is_text(source, options),
        suffixes=text.SUFFIXES,
    ),
    DataReader(
        lambda source, options, form: parallel_text.read_columns(
            source, tables.stem(source), options, form
        ),
        lambda source, options: parallel_text.is_columns(source, options),
        suffixes=(".tsv", ".tsv.gz"),
    ),
    *TABLE_READERS,
    # two parallel files
    DataReader(
        lambda source, options, form: parallel_text.read_pair(source, options, form),
        lambda source, options: isinstance(source, parallel_text.FilePair),
    ),
    # folders
    DataReader(
        lambda source, options, form: folders.read_numbered(source, options),
        lambda source, options: is_folder(source) and folders.is_numbered(source),
    ),
    DataReader(
        lambda source, options, form: folders.read_idx(source),
        lambda source, options: is_folder(source) and folders.has_idx(source),
    ),
    DataReader(
        lambda source, options, form: folders.read_images(source, form),
        lambda source, options: is_folder(source) and folders.has_images(source),
    ),
    DataReader(
        lambda source, options, form: folders.read_sounds(source, options, form),
        lambda source, options: is_folder(source) and folders.has_sounds(source),
    ),
    DataReader(
        lambda source, options, form: folders.read_sentence_pairs(source, options, form),
        lambda source, options: is_folder(source) and folders.has_sentence_pairs(source),
    ),
    DataReader(
        lambda source, options, form: folders.read_texts(source, options, form),
        lambda source, options: is_folder(source) and folders.has_texts(source, options),
    ),
    DataReader(read_table_folder, lambda source, options: is_folder(source)),
    # Python objects
    DataReader(
        lambda source, options, form: text.from_lines(source, options),
        lambda source, options: options.tokens != "auto" and is_strings(source),
    ),
    DataReader(
        lambda source, options, form: parallel_text.from_pairs(source[0], source[1], options),
        lambda source, options: options.tokens != "auto" and is_sentence_pairs(source),
    ),
    DataReader(
        lambda source, options, form: tables.from_frame(source),
        lambda source, options: tables.is_frame(source) or isinstance(source, Mapping),
    ),
    DataReader(
        lambda source, options, form: arrays.from_array(source),
        lambda source, options: isinstance(source, np.ndarray | Tensor),
    ),
    DataReader(
        lambda source, options, form: arrays.from_pair(*source),
        lambda source, options: isinstance(source, tuple) and len(source) == 2,
    ),
    DataReader(read_items, lambda source, options: is_torch_dataset(source)),
    DataReader(
        lambda source, options, form: arrays.from_rows(source, "rows"),
        lambda source, options: is_iterable(source),
    ),
)
"""Every kind of input, in order: the first reader that accepts the input reads it."""


def build(
    raw: RawData,
    options: Options,
    changes: Sequence[parse.Change] = (),
    stored: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> Dataset:
    """A dataset of the raw data, with a new schema or that of an earlier run. Too few rows to
    split are refused, unless `whole` is set or the schema of a run is given."""
    schema, needed = (None, set()) if stored is None else read_schema(stored)
    raw = prepare(raw, options)
    if may_be_series(raw, options, schema):
        raw = series.windows(raw, options, schema)
    if may_have_text(raw, options, schema):
        raw = text_columns.read(raw, options, schema)
    keys = find_keys(raw, options) if schema is None else schema.row_keys
    if keys:
        raw = row_keys.separate(raw, keys)
    if schema is not None:
        raw = match_schema(raw, schema, needed)
        raw = without_unseen(raw, schema, condition_fields(stored or {}))
    codecs, tensors = encode(raw, options, changes, schema)
    comparisons: Sequence[constraints.Comparison] = ()
    if schema is None and options.constraints:
        comparisons = read_constraints(raw, options, codecs, tensors)
    if stored is not None:
        refuse_impossible(selection_of(stored), raw, codecs, tensors)
    read = len(raw)
    if options.missing == "drop":
        raw, tensors = select_rows(raw, tensors, complete_rows(tensors, raw.name))
    dropped = read - len(raw)
    if options.rows:
        raw, tensors = select_rows(raw, tensors, keep(len(raw), options, raw.split))
    splits = divide(len(raw), options, raw.split, raw.name, whole or schema is not None)
    name = re.sub(r"[^\w.+-]+", "-", "+".join([raw.name, *(change.text for change in changes)]))
    schema_of_rows = (
        fit_schema(raw, name, codecs, tensors, splits["train"], options, keys, comparisons)
        if schema is None
        else with_missing_marks(schema, name, tensors)
    )
    given = raw.split is not None and not raw.carved
    notes = raw.notes + (schema_of_rows.relation_notes if schema is None else ())
    return Dataset(
        schema_of_rows,
        tensors,
        splits,
        given,
        raw.density,
        notes,
        dropped,
        options,
        raw.row_keys,
    )


def finds_support(raw: RawData, options: Options) -> bool:
    """Whether empty cells, atoms, bounds, keys and derived columns of a table are found."""
    return raw.table and not raw.plain and options.space == "auto"


def find_keys(raw: RawData, options: Options) -> tuple[row_keys.RowKey, ...]:
    """The columns of a table that only identify its rows, unless a setting names them."""
    if not finds_support(raw, options):
        return ()
    named = {*options.names, *options.sentences, *raw.labels, *raw.inputs, raw.target or ""}
    return row_keys.find(raw, named | constraint_columns(options, list(raw.values)))


def constraint_columns(options: Options, known: Sequence[str]) -> set[str]:
    found = constraints.parse(options.constraints, known)
    return {name for each in found for name in each.columns}


def read_constraints(
    raw: RawData,
    options: Options,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
) -> list[constraints.Comparison]:
    """The constraints of the settings, which all rows obey."""
    if not options.constraints:
        return []
    if not finds_support(raw, options):
        raise UsageError(
            f"data.constraints: expected a table of your own, read with data.space=auto, found "
            f"{raw.name}; remove it"
        )
    found = constraints.parse(options.constraints, raw.main)
    constraints.refuse_other_columns(found, codecs)
    used = {name for each in found for name in each.columns}
    codes = {name: column for name, column in single_columns(tensors).items() if name in used}
    constraints.refuse_broken(found, in_numbers(codes, codecs), raw.places)
    formulas = construct(found, codes, codecs).formulas
    refuse_broken_rows(formulas, codes, codecs, raw.places)
    return found


def refuse_impossible(
    selection: Selection,
    raw: RawData,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
) -> None:
    """DataError about a row that the model of a run excludes: by bounds, constraints or derived
    columns."""
    schema, restored = selection.schema, selection.restored
    if not selection.is_whole or not schema.table:
        return
    codes = {name: x for name, x in single_columns(tensors).items() if name in raw.values}
    known = {**{field.name: field.codec for field in schema.fields}, **codecs}
    above = {each.name for each in restored.differences}  # the difference alone has a bound
    for field in schema.fields:
        if field.name in codes and field.name in {*selection.event} - above:
            refuse_outside(field.space, codes[field.name], raw.at(field.name))
    found = constraints.parse(schema.declared, [field.name for field in schema.fields])
    present = [each for each in found if {*each.columns} <= {*codes}]
    numbers = in_numbers({n: codes[n] for each in present for n in each.columns}, known)
    constraints.refuse_broken(present, numbers, raw.places)
    refuse_broken_rows(restored.derived, codes, known, raw.places)
    for each in restored.differences:
        each.refuse_undefined(codes, raw.places)


def may_be_series(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """Whether rows can be the steps of a series: by the run, a setting, or a column whose first
    cell is a time."""
    if schema is not None:
        return any(isinstance(field.codec, Window) for field in schema.fields)
    if any(getattr(options, name) != getattr(Options, name) for name in series.SETTINGS):
        return True
    return raw.table and any(
        column.dtype.kind == "M"
        or (
            column.dtype.kind == "O"
            and isinstance(column.iloc[0], str)
            and ISO_TIME.fullmatch(column.iloc[0].strip()) is not None
        )
        for column in raw.values.values()
    )


def may_have_text(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """Whether a field can be text: by the run, a setting, or a column of many strings."""
    if options.sentences:
        return True
    if schema is not None:
        return any(isinstance(field.codec, Text) for field in schema.fields)
    return len(raw) > text_columns.FEWEST and any(
        name not in raw.codecs and column.dtype.kind in "OTU"
        for name, column in raw.values.items()
    )


def encode(
    raw: RawData, options: Options, changes: Sequence[parse.Change], schema: Schema | None
) -> tuple[dict[str, Codec], dict[str, PackedTensor]]:
    """Fit codecs, encode the rows and apply the transforms."""
    values = {name: values_of(raw, name) for name in raw.values}
    codecs = fit_codecs(raw, values, options, schema)
    tensors = {name: codec.encode(values[name], raw.at(name)) for name, codec in codecs.items()}
    for change in changes:
        parse.apply(change, codecs, tensors, raw.name)
    return codecs, tensors if schema is None else encode_matched(raw, schema, codecs, tensors)


def select_rows(
    raw: RawData, tensors: Mapping[str, PackedTensor], rows: Tensor
) -> tuple[RawData, dict[str, PackedTensor]]:
    """The rows that the settings select, in order."""
    if len(rows) == len(raw):
        return raw, dict(tensors)
    split = None if raw.split is None else raw.split[rows.numpy()]
    keys = {name: cells[rows.numpy()] for name, cells in raw.row_keys.items()}
    return replace(raw, split=split, places=raw.places.take(rows.numpy()), row_keys=keys), {
        name: tensor[rows] for name, tensor in tensors.items()
    }


def prepare(raw: RawData, options: Options) -> RawData:
    """Apply data.drop and data.names; DataError if there are no rows."""
    if options.split and not raw.numbered:
        raise UsageError(
            f"data.split={options.split}: {raw.name} does not have several splits; remove it"
        )
    for name in options.names:
        if name not in raw.values:
            raise UsageError(
                f"data.names={name}: there is no such column{nearest(name, raw.values)}"
            )
    raw = tables.without(raw, options.drop) if options.drop else raw
    if not len(raw):
        raise DataError(f"{raw.name} has no rows; add some")
    return raw


def read_format(changes: Sequence[parse.Change], stored: Mapping[str, Any] | None) -> ReadFormat:
    """The format to read files in: from the transforms, and the file-name parts of a run."""
    plain = parse.form(changes) if changes else ReadFormat()
    fields = () if stored is None else read_schema(stored)[0].fields
    sounds = [field.codec for field in fields if isinstance(field.codec, Sound)]
    texts = {field.name: field.codec for field in fields if isinstance(field.codec, Text)}
    return replace(plain, parts=sounds[0].parts if sounds else (), texts=texts)


def fit_codecs(
    raw: RawData, values: Mapping[str, np.ndarray], options: Options, schema: Schema | None
) -> dict[str, Codec]:
    """The codec of each field; one error names all columns that have none."""
    found, wrong = {}, {}
    for name in values:
        try:
            found[name] = fit(raw, name, values[name], options, schema)
        except tables.Unfit as error:
            wrong[name] = error
    if wrong:
        raise tables.together(wrong)
    return found


def fit(
    raw: RawData, name: str, values: np.ndarray, options: Options, schema: Schema | None
) -> Codec:
    """The codec of a field: given, taken from the run, or fitted to its values. Arrays are first
    read as they are and converted to the run's codec after the transforms."""
    taken = None if schema is None else schema.field(name).codec
    if taken is not None and not isinstance(taken, Array | SequenceCodec):
        return taken
    if name in raw.codecs:
        return raw.codecs[name]
    label = name in raw.labels or name in options.names
    if raw.table:
        return tables.fit(raw.values[name], values, name, label, options, raw.at(name))
    return arrays.fit(values, raw.at(name), label)


def values_of(raw: RawData, name: str) -> np.ndarray:
    as_is = not raw.table or isinstance(raw.codecs.get(name), Text)
    return raw.values[name] if as_is else tables.cells(raw.values[name], raw.at(name))


def complete_rows(tensors: Mapping[str, PackedTensor], name: str) -> Tensor:
    """The rows without missing cells."""
    masks = [found > 0 for rows in tensors.values() if (found := holes(rows)) is not None]
    rows = (
        (~torch.stack(masks).any(0)).nonzero()[:, 0]
        if masks
        else torch.arange(len(next(iter(tensors.values()))))
    )
    if not len(rows):
        raise DataError(
            f"every row of {name} has a missing cell, and data.missing=drop leaves "
            "none; use data.missing=model"
        )
    return rows


def is_number(space: Space) -> bool:
    return space.kind in ("real", "counts") and not space.shape


def fit_schema(
    raw: RawData,
    name: str,
    codecs: Mapping[str, Codec],
    tensors: Mapping[str, PackedTensor],
    train: Tensor,
    options: Options,
    keys: tuple[row_keys.RowKey, ...] = (),
    comparisons: Sequence[constraints.Comparison] = (),
) -> Schema:
    """Fields with the statistics of the training rows and the support of all."""
    columns = single_columns(tensors)
    made = construct(comparisons, columns, codecs) if comparisons else Construction()
    fields = []
    for field, codec in codecs.items():
        space, column = codec.measure(tensors[field][train], field), tensors[field]
        if finds_support(raw, options) and is_number(space) and isinstance(column, Tensor):
            bounds = made.bounds.get(field, (None, None))
            has_zero = not isinstance(codec, Date | Offset)
            space = find_support(space, column, options.models_empty, bounds, has_zero)
        fields.append(
            Field(
                name=field,
                codec=codec,
                space=mark_missing(space, column),
                key=raw.keys.get(field, field),
            )
        )
    derived: tuple[Derived, ...] = made.formulas
    if finds_support(raw, options):
        used = {column for each in comparisons for column in each.columns}
        fixed = {*used, *raw.labels, *raw.inputs, *([raw.target] if raw.target else [])}
        modelled = {column: columns[column] for column in raw.main if column in columns}
        derived += find_derived(modelled, codecs, fixed)
    absent = {each.name for each in derived}
    differences = tuple(
        difference(small, large, columns, codecs, train, options.models_empty)
        for small, large in made.orderings
    )
    return Schema(
        name=name,
        fields=tuple(fields),
        main=tuple(field for field in raw.main if field not in absent),
        target=raw.target,
        inputs=raw.inputs,
        table=raw.table,
        row_keys=keys,
        derived=derived,
        differences=differences,
        constraints=tuple(each.spelled for each in made.rejected),
        declared=tuple(dict.fromkeys(each.text for each in comparisons)),
    )


def difference(
    small: str,
    large: str,
    columns: Mapping[str, Tensor],
    codecs: Mapping[str, Codec],
    train: Tensor,
    models_empty: bool,
) -> Difference:
    """The column `large` as its distance above the column `small`."""
    shift = constraints.zero_of(codecs[large]) - constraints.zero_of(codecs[small])
    bare = Difference(name=large, base=small, shift=shift, space=Space(kind="real"))
    distance = bare.subtract(columns)
    space = codecs[large].measure(distance[train], large)
    space = find_support(space, distance, models_empty, (0.0, None), has_zero=False)
    return replace(bare, space=mark_missing(space, distance))
