"""Opening data: one ordered list of readers, then the stages that make a dataset.

`open` locates the input, the first of READERS that recognises it reads it, and `build` encodes and
splits the rows and computes statistics. Optional stages (series, text columns, transforms, the
schema of an earlier run) run only if the data need them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.deferred import torch
from ..core.errors import DataError, MongeError, UsageError, nearest
from ..core.memory import gigabytes
from . import constraints, frames, splits
from .builtin import catalogue
from .codecs import time_index
from .codecs.array import Array
from .codecs.base import Codec
from .codecs.date import Date
from .codecs.date import align as align_dates
from .codecs.date_format import is_date
from .codecs.scalar import listed
from .codecs.sequence import SequenceCodec
from .codecs.sound import Sound
from .codecs.tokens import Text
from .codecs.window import Series, Window
from .dataset import Dataset
from .options import Options
from .packed import FieldRows, missing_counts, single_columns
from .prepared import SUFFIX as PREPARED_SUFFIX
from .prepared import (
    Inputs,
    NotATable,
    OtherColumns,
    cache_place,
    cache_root,
    is_prepared,
    unchanged_files,
)
from .prepared import read as read_prepared
from .prepared import writing as writing_prepared
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
from .readers.base import (
    ARROW_SUFFIXES,
    RawData,
    ReadFormat,
    RowLocations,
    check_kind,
    is_arrow,
    is_large,
    size_of,
)
from .schema import Schema, read_selection, with_missing_marks
from .schema_fit import find_keys, finds_support, fit_schema, read_constraints, separate_keys
from .schema_match import encode as encode_matched
from .schema_match import fill_sources, refuse_impossible, without_new_names
from .schema_match import match as match_schema
from .transforms import pairs, parse


def open(data: Any, *settings: str, fields: Mapping[str, Any] | None = None) -> Dataset:
    """Open `data` as a dataset with these settings, and with the schema of an earlier run if its
    `fields` are given.

    data: a built-in name or a path, either followed by +transforms, two unpaired datasets as
    A~B, two files of sentences line by line as A,B, an array, a tensor, a frame (of pandas,
    polars, Arrow or another library that narwhals knows), an (x, y) pair, a dict of columns or of
    arrays, a torch Dataset or DataLoader, rows, or a dataset, which is returned unchanged.

    >>> import monge
    >>> monge.open("iris", "seed=1")
    Dataset('iris', 150 rows, 2 fields)
    """
    if isinstance(data, Dataset):
        if settings or fields:
            raise UsageError(
                "expected settings when the dataset is first opened, found them for a dataset "
                "that is already open; pass them to the first open"
            )
        return data
    options = Options().override(*settings)
    data = data if isinstance(data, str | Path) else frames.as_pandas(data)
    if isinstance(data, str | Path) and "~" in str(data) and (both := pairs.sides(str(data))):
        return open_unpaired(both, settings, fields)
    source, transforms = locate(data)
    if place := prepared_place(source, options, transforms, fields):
        try:
            return with_original(read_prepared(place, settings, fields), source, options)
        except OtherColumns as other:
            known = with_original(other.dataset, source, options)
            return build(decoded(known), options, stored=fields)
    before, maker, after = pairs.parted(transforms) if transforms else ((), None, ())
    form = read_format(before, fields)
    raw = read(source, as_text_of_run(source, options, form), form)
    if maker is None:
        return build(raw, options, transforms, fields)
    unpaired = build(raw, options, before, whole=fields is not None)
    return pairs.make(unpaired, maker, after, fields)


def prepared_place(
    source: Any,
    options: Options,
    transforms: Sequence[parse.Change],
    fields: Mapping[str, Any] | None,
) -> Path | None:
    """The folder of data that are prepared, or are so large that they are prepared in the cache
    first; None for others."""
    if isinstance(source, Path) and source.is_dir() and is_prepared(source):
        if transforms:
            raise UsageError(
                f"expected {source} without a transform, found +{transforms[0].text}; prepare "
                "the data with it"
            )
        return source
    inputs = large_inputs(source, options, transforms)
    if inputs is None:
        return None
    place = cache_place(inputs, options, fields)
    if not is_prepared(place):
        try:
            prepare_files(inputs, source, place, options, fields, transforms)
        except NotATable:
            return None  # a series or sequences, which are held in memory
    return place


def announcement(data: Any, settings: Sequence[str] = ()) -> str:
    """A note if opening these data takes long, as they are prepared first; empty otherwise."""
    try:
        options = Options().override(*settings)
        source, transforms = locate(data)
        inputs = large_inputs(source, options, transforms)
    except (MongeError, OSError):
        return ""  # opening them says it better
    if inputs is None or is_prepared(cache_place(inputs, options, None)):
        return ""
    return (
        f"{data} has {gigabytes(inputs.size)} and is prepared in "
        f"{cache_root()} first (MONGE_CACHE names another folder)"
    )


def large_inputs(
    source: Any, options: Options, transforms: Sequence[parse.Change]
) -> Inputs | None:
    """The files of data that are prepared before they are used; None for other data."""
    if not isinstance(source, Path | tables.TableFiles):
        return None
    if isinstance(source, Path) and source.is_file() and not is_large(size_of([source])):
        return None
    inputs = inputs_of(source, options, transforms)
    return inputs if inputs is not None and is_large(inputs.size) else None


def inputs_of(source: Any, options: Options, transforms: Sequence[parse.Change]) -> Inputs | None:
    """The files of an input that can be prepared; None for other data."""
    changes = tuple(change.text for change in transforms)
    if isinstance(source, tables.TableFiles):
        return None if changes else Inputs(source.paths, "table", source.name)
    if not isinstance(source, Path):
        return None
    name = folders.name_of(source) if source.is_dir() else tables.stem(source)
    reader = next((reader for reader in READERS if reader.accepts(source, options)), None)
    kind = None if reader is None else reader.stored
    if kind == "pictures" and source.is_dir():
        if any(change.function != "resize" for change in transforms) or len(transforms) > 1:
            return None
        return Inputs(folders.images_of(source), kind, name, changes)
    if kind is None or transforms:
        return None
    if kind == "table" and folders.is_arrow_dataset(source):
        return Inputs(folders.files_of_dataset(source), kind, name)
    paths = folders.texts_of(source, options) if source.is_dir() else [source]
    return Inputs(paths, kind, name)


def table_name(source: Any) -> str:
    if isinstance(source, Path) and source.is_dir():
        return folders.name_of(source)
    return source.name if isinstance(source, tables.TableFiles) else tables.stem(source)


def decoded(dataset: Dataset) -> RawData:
    """The rows of a table as they were before they were encoded."""
    columns = single_columns(dataset.stored)
    values = {
        field.name: tables.series(field.codec, field.codec.decode(columns[field.name]))
        for field in dataset.schema.fields
    }
    values |= {name: tables.as_column(cells) for name, cells in dataset.row_keys.items()}
    places = RowLocations.count(len(dataset))
    original = dataset.original
    return RawData(dataset.name, values, tuple(values), places, table=True, original=original)


def with_original(dataset: Dataset, source: Any, options: Options) -> Dataset:
    """A table that was prepared, with the rows of its files as they are, if these are there and
    are what it was prepared from."""
    if isinstance(source, Path) and source.is_dir():
        paths: Sequence[Path] = unchanged_files(source) if is_prepared(source) else []
        options = dataset.options
    else:
        paths = source.paths if isinstance(source, tables.TableFiles) else [source]
    every_row = not dataset.dropped and not options.rows
    if paths and dataset.schema.table and every_row:
        dataset.original = tables.original_of(paths, dataset.name, options)
    return dataset


def prepare(data: Any, out: str | Path, *settings: str) -> Dataset:
    """Write data of any size as a prepared folder of memory-mapped files, and open it: a table in
    one file or in several (a list, or a pattern such as big/*.parquet), text, an array, or a
    folder of images."""
    out, options = Path(out), Options().override(*settings)
    many = data if isinstance(data, list | tuple) else [data]
    names = [str(name) for name in many]
    found = table_files(" ".join(names), list(map(Path, names))) if len(names) > 1 else None
    source, transforms = (found, ()) if found else locate(names[0])
    inputs = inputs_of(source, options, transforms)
    if inputs is None:
        raise DataError(
            f"expected a table in a file ({', '.join(TABLE_SUFFIXES[:4])} or "
            f"{', '.join(ARROW_SUFFIXES)}) or in several, text, an array ("
            f"{', '.join(ARRAY_SUFFIXES)}) or a folder of images without a transform but "
            f"+resize64, found {names[0]}; convert it"
        )
    if out.suffix != PREPARED_SUFFIX:
        raise UsageError(
            f"expected a folder whose name ends in {PREPARED_SUFFIX}, found {out}; name it "
            f"{out.with_suffix(PREPARED_SUFFIX)}"
        )
    if out.exists():
        raise UsageError(f"expected a new folder, found {out}; remove it, or choose another")
    return prepare_files(inputs, source, out, options, changes=transforms, whole=True)


def prepare_files(
    inputs: Inputs,
    source: Any,
    out: Path,
    options: Options,
    fields: Mapping[str, Any] | None = None,
    changes: Sequence[parse.Change] = (),
    whole: bool = False,
) -> Dataset:
    """Write data of any size as a prepared folder. The cells of a table are read once into columns
    in files, from which codecs are fitted and rows encoded, one column at a time; other readers
    write their rows to files themselves."""
    with writing_prepared(inputs, out, options, fields, whole) as store:
        if store is not None and inputs.kind == "table":
            raw = store.resume()
            if raw is None:
                name = table_name(source)
                raw = store.finish_reading(
                    tables.read_files(inputs.paths, name, options, store.cells)
                )
            store.write(build(replace(raw, store=store), options, stored=fields))
        elif store is not None:
            form = replace(read_format(changes, fields), store=store)
            raw = replace(read(source, options, form), store=store)
            store.write(build(raw, options, changes, fields))
    return read_prepared(out, (), fields)


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
    source, _ = locate(frames.as_pandas(data))
    if isinstance(source, str):
        raise DataError(f"expected a table with a column of times, found the built-in {data}")
    schema = read_selection(fields).schema
    raw = series.arranged(choose_columns(read(source, options), options), options, schema)
    found = series.read(raw, options, schema)
    series.first_tick(found, schema)  # refuses steps of another length
    return found


def locate(data: Any) -> tuple[Any, Sequence[parse.Change]]:
    """The input to read (an object, a built-in name, a path or two parallel files), and the
    transforms in its name."""
    if not isinstance(data, str | Path):
        files = frames.files_of(data)
        return (table_files("the dataset", list(map(Path, files))) if files else data), ()
    if "," in str(data) and (pair := parallel_text.sides(str(data))):
        return pair, ()
    if paths := catalogue.matching(str(data)):
        return table_files(str(data), paths), ()
    place, transforms = catalogue.locate(str(data))
    return place, parse.find(transforms) if transforms else ()


def table_files(pattern: str, paths: Sequence[Path]) -> tables.TableFiles:
    """The files of a pattern; all of them must be tables of one kind."""
    for path in paths:
        check_kind(path)
        kind = is_arrow(path)
        named = path.name.lower().endswith(tuple(TABLE_SUFFIXES))
        if not path.is_file() or not named or kind != is_arrow(paths[0]):
            raise DataError(
                f"{pattern}: expected tables of one kind ({', '.join(TABLE_SUFFIXES[:4])} or "
                f"{', '.join(ARROW_SUFFIXES)}), found {path}; give a narrower pattern"
            )
    return tables.TableFiles(pattern, tuple(paths))


@dataclass(frozen=True)
class DataReader:
    """A kind of input: how it is recognised and what reads it."""

    read: Callable[[Any, Options, ReadFormat], RawData]
    recognises: Callable[[Any, Options], bool] = lambda source, options: True
    suffixes: tuple[str, ...] = ()  # of files of this kind
    stored: Literal["table", "pictures", "text", "arrays"] | None = None  # if it can be prepared

    def accepts(self, source: Any, options: Options) -> bool:
        """Whether the input is of this kind; files are recognised by their suffix first."""
        named = isinstance(source, Path) and source.name.lower().endswith(self.suffixes)
        if self.suffixes and (not named or source.is_dir()):
            return False
        return self.recognises(source, options)


def read(source: Any, options: Options, form: ReadFormat | None = None) -> RawData:
    """Read the input with the first reader that recognises it."""
    if isinstance(source, Path):
        check_kind(source)
    for reader in READERS:
        if reader.accepts(source, options):
            return reader.read(source, options, form or ReadFormat())
    if isinstance(source, Path):
        raise DataError(
            f"expected a table ({', '.join(TABLE_SUFFIXES[:4])} or their .gz, "
            f"{', '.join(ARROW_SUFFIXES)}), an array "
            f"({', '.join(ARRAY_SUFFIXES)}), idx, images or {audio.SUFFIX}, found {source}; "
            "convert it"
        )
    raise DataError(
        f"expected a name, a path, an array, a frame, an (x, y) pair, a torch Dataset or rows, "
        f"found a {type(source).__name__}; convert it"
    )


TEXT_SUFFIXES = (".csv", ".tsv", ".data", ".txt", ".csv.gz", ".tsv.gz", ".data.gz", ".txt.gz")
TABLE_SUFFIXES = (*TEXT_SUFFIXES, *ARROW_SUFFIXES)
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


def as_text_of_run(source: Any, options: Options, form: ReadFormat) -> Options:
    """The options by which strings are read as text if they are given to a run on text."""
    name = text.FIELD if is_strings(source) else parallel_text.SIDES[0]
    codec = form.texts.get(name) if is_strings(source) or is_sentence_pairs(source) else None
    if not isinstance(codec, Text) or options.tokens != "auto":
        return options
    return replace(options, tokens=codec.unit)


def is_sentence_pairs(source: Any) -> bool:
    return isinstance(source, tuple) and len(source) == 2 and all(map(is_strings, source))


def is_torch_dataset(source: Any) -> bool:
    data = torch.utils.data
    return isinstance(source, data.Dataset) and not isinstance(source, data.IterableDataset)


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


def read_loader(source: Any, options: Options, form: ReadFormat) -> RawData:
    """The rows of a DataLoader: the items that its sampler chooses, in the order of its dataset,
    not in batches."""
    known = (torch.utils.data.default_collate, torch.utils.data.default_convert)
    if source.collate_fn not in known:
        raise DataError(
            "expected a DataLoader that puts rows into batches as torch does, found one with a "
            "collate_fn of its own; give its dataset, or the rows as arrays"
        )
    data = source.dataset
    rows = iter(data)
    if is_torch_dataset(data):
        chosen = range(len(data)) if source.sampler is None else sorted(source.sampler)
        rows = (data[i] for i in chosen)
    return arrays.from_rows(rows, type(data).__name__.lower())


def read_table_folder(source: Path, options: Options, form: ReadFormat) -> RawData:
    def is_table(path: Path) -> bool:
        return any(reader.accepts(path, options) for reader in TABLE_READERS)

    return folders.read_tables(source, is_table, lambda path: read(path, options))


TABLE_READERS = (
    DataReader(
        lambda source, options, form: arrays.read_file(source, form),
        suffixes=ARRAY_SUFFIXES,
        stored="arrays",
    ),
    DataReader(
        lambda source, options, form: images.read_idx([source], tables.stem(source)),
        lambda source, options: is_idx(source) and source.is_file(),
    ),
    DataReader(
        lambda source, options, form: tables.read_file(source, options),
        suffixes=TABLE_SUFFIXES,
        stored="table",
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
        lambda source, options, form: images.read_images([source], source.parent, form),
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
        lambda source, options, form: folders.read_text_files(
            {source: None}, tables.stem(source), options, form
        ),
        lambda source, options: text.is_text(source, options),
        suffixes=text.SUFFIXES,
        stored="text",
    ),
    DataReader(
        lambda source, options, form: parallel_text.read_columns(
            source, tables.stem(source), options, form
        ),
        lambda source, options: parallel_text.is_columns(source, options),
        suffixes=(".tsv", ".tsv.gz"),
    ),
    *TABLE_READERS,
    DataReader(
        lambda source, options, form: tables.read_files(source.paths, source.name, options),
        lambda source, options: isinstance(source, tables.TableFiles),
    ),
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
        stored="pictures",
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
        stored="text",
    ),
    DataReader(
        lambda source, options, form: tables.read_files(
            folders.files_of_dataset(source), folders.name_of(source), options
        ),
        lambda source, options: is_folder(source) and folders.is_arrow_dataset(source),
        stored="table",
    ),
    DataReader(
        lambda source, options, form: folders.read_arrow_datasets(source, options),
        lambda source, options: is_folder(source) and folders.has_arrow_datasets(source),
    ),
    DataReader(read_table_folder, lambda source, options: is_folder(source)),
    # Python objects
    DataReader(
        lambda source, options, form: text.from_lines(source, options, form),
        lambda source, options: options.tokens != "auto" and is_strings(source),
    ),
    DataReader(
        lambda source, options, form: parallel_text.from_pairs(
            source[0], source[1], options, form
        ),
        lambda source, options: options.tokens != "auto" and is_sentence_pairs(source),
    ),
    DataReader(
        lambda source, options, form: arrays.from_archive(
            {str(name): arrays.numpy_of(found) for name, found in source.items()}, "arrays"
        ),
        lambda source, options: isinstance(source, Mapping) and arrays.has_shapes(source),
    ),
    DataReader(
        lambda source, options, form: tables.from_frame(source),
        lambda source, options: frames.is_frame(source) or isinstance(source, Mapping),
    ),
    DataReader(
        lambda source, options, form: arrays.from_array(source),
        lambda source, options: isinstance(source, np.ndarray | torch.Tensor),
    ),
    DataReader(
        lambda source, options, form: arrays.from_pair(*source),
        lambda source, options: isinstance(source, tuple) and len(source) == 2,
    ),
    DataReader(read_items, lambda source, options: is_torch_dataset(source)),
    DataReader(
        read_loader, lambda source, options: isinstance(source, torch.utils.data.DataLoader)
    ),
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
    if not raw.values:
        raise DataError(f"{raw.name}: expected at least one column, found none; add one")
    selection = None if stored is None else read_selection(stored)
    schema = None if selection is None else selection.schema
    raw, store, is_table = choose_columns(raw, options), raw.store, raw.table
    if may_be_series(raw, options, schema):
        raw = series.windows(raw, options, schema)
    if schema is None and (options.group or options.time or options.weight):
        raw = separate_weight(assign_splits(raw, options), options)
    if may_have_text(raw, options, schema):
        raw = text_columns.read(raw, options, schema)
    if store is not None and is_table:
        store.check_table(raw)
    keys = find_keys(raw, options) if schema is None else schema.row_keys
    if keys:
        raw = separate_keys(raw, keys)
    if selection is not None:
        raw = match_schema(raw, selection)
        raw = without_new_names(raw, selection)
    codecs, tensors = encode(raw, options, changes, schema)
    comparisons: Sequence[constraints.ColumnConstraint] = ()
    if schema is None and options.constraints:
        comparisons = read_constraints(raw, options, codecs, tensors)
    if selection is not None:
        tensors = fill_sources(selection, raw, tensors)
        refuse_impossible(selection, raw, codecs, tensors)
    read = len(raw)
    if options.missing == "drop":
        causes = empty_columns(tensors) if schema is None else ""
        raw, tensors = select_rows(raw, tensors, complete_rows(tensors, raw.name))
        if causes and len(raw) < read:
            note = (
                f"{read - len(raw)} of {read} rows are left out for their empty cells ({causes})"
            )
            raw = replace(raw, notes=(*raw.notes, note))
    dropped = read - len(raw)
    if options.rows:
        raw, tensors = select_rows(raw, tensors, splits.keep(len(raw), options, raw.split))
    parts = splits.divide(len(raw), options, raw.split, raw.name, whole or schema is not None)
    name = re.sub(r"[^\w.+-]+", "-", "+".join([raw.name, *(change.text for change in changes)]))
    schema_of_rows = (
        fit_schema(raw, name, codecs, tensors, parts["train"], options, keys, comparisons)
        if schema is None
        else with_missing_marks(schema, name, tensors)
    )
    given = raw.split is not None and not raw.carved
    notes = raw.notes + (schema_of_rows.relation_notes if schema is None else ())
    return Dataset(
        schema_of_rows,
        tensors,
        parts,
        given,
        raw.density,
        notes,
        dropped,
        options,
        raw.row_keys,
        raw.refused,
        raw.panel,
        raw.original,
    )


def assign_splits(raw: RawData, options: Options) -> RawData:
    """The table with the splits that data.group or data.time asks for."""
    for setting in ("group", "weight"):
        name = getattr(options, setting)
        if name and (name not in raw.values or (setting == "group" and not raw.table)):
            known = nearest(name, raw.values) if raw.table else "; give a table"
            raise UsageError(f"data.{setting}={name}: there is no such column{known}")
    if options.group and options.time not in ("", series.NONE):
        raise UsageError(
            f"expected data.group or data.time to split the rows, found data.group="
            f"{options.group} and data.time={options.time}; remove one of them"
        )
    name = options.group or options.time
    if not raw.table or name in ("", series.NONE) or raw.split is not None:
        return raw
    cells = tables.cells(raw.values[name], raw.at(name))
    if options.group:
        codes, _ = pd_factorize(cells)
        split = splits.by_group(codes, options, raw.name)
        note = f"rows of one {name} are all in one split"
    else:
        times, _ = time_index.read(cells, name)
        ticks = times.astype(np.int64) if times.dtype.kind == "M" else times
        split = splits.by_time(ticks, options, raw.name)
        note = f"rows are split by {name}: the latest are test rows"
    return replace(raw, split=split, carved=True, notes=(*raw.notes, note))


def pd_factorize(cells: np.ndarray) -> tuple[np.ndarray, Any]:
    """The number of each cell among the different ones; empty cells are one of them."""
    import pandas as pd

    return pd.factorize(cells, use_na_sentinel=False)


def separate_weight(raw: RawData, options: Options) -> RawData:
    """The data without their column of weights, whose cells are stored beside them."""
    name = options.weight
    if not name or name not in raw.values:
        return raw
    column = raw.values[name]
    cells = tables.cells(column, raw.at(name)) if raw.table else column
    number = cells.dtype.kind in "biuf" and cells.ndim == 1
    wrong = np.flatnonzero(~(np.isfinite(cells) & (cells >= 0))) if number else np.arange(1)
    if len(wrong) or not cells.any():
        row = int(wrong[0]) if len(wrong) else 0
        raise DataError(
            f"{raw.at(name)(row)}: expected weights of at least 0, not all 0, found "
            f"{cells[row]!s} ({max(len(wrong), 1)} such cells); fix them"
        )
    without = tables.without(raw, [name])
    note = f"rows count by {name} in training and in the held-out value, and alike elsewhere"
    return replace(
        without,
        row_keys={**raw.row_keys, name: cells.astype(np.float32)},
        notes=(*raw.notes, note),
    )


def may_be_series(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """Whether rows can be the steps of a series: by the run, a setting, a column whose first cell
    is a time, or one of years."""
    if schema is not None:
        return any(isinstance(field.codec, Window) for field in schema.fields)
    if any(getattr(options, name) != getattr(Options, name) for name in series.SETTINGS):
        return True
    return raw.table and any(
        name.lower() == "year"
        or column.dtype.kind == "M"
        or (column.dtype.kind == "O" and is_date(column.iloc[0]))
        for name, column in raw.values.items()
    )


def may_have_text(raw: RawData, options: Options, schema: Schema | None) -> bool:
    """Whether a field can be text: by the run, a setting, or a column of many strings."""
    if options.sentences:
        return True
    if schema is not None:
        return any(isinstance(field.codec, Text) for field in schema.fields)
    if not raw.table and any(text_columns.is_named_text(raw, name) for name in raw.values):
        return True
    return len(raw) > text_columns.FEWEST and any(
        name not in raw.codecs and column.dtype.kind in "OTU"
        for name, column in raw.values.items()
    )


def encode(
    raw: RawData, options: Options, changes: Sequence[parse.Change], schema: Schema | None
) -> tuple[dict[str, Codec], Mapping[str, FieldRows]]:
    """Fit codecs, encode the rows and apply the transforms."""
    values: Mapping[str, Any] = AllCells(raw)
    if raw.store is None:
        values = dict(values)
    codecs = fit_codecs(raw, values, options, schema)
    has_dates = any(isinstance(codec, Date) for codec in codecs.values())
    if schema is None and has_dates and finds_support(raw, options):
        codecs = align_dates(codecs, values)
    if raw.store is not None:
        tensors = raw.store.encode(raw, codecs, values)
    else:
        tensors = {
            name: codec.encode(values[name], raw.at(name)) for name, codec in codecs.items()
        }
    for change in changes if raw.store is None else ():  # pictures are resized when read
        parse.apply(change, codecs, tensors, raw.name)
    return codecs, tensors if schema is None else encode_matched(raw, schema, codecs, tensors)


class AllCells(Mapping[str, Any]):
    """The cells of every field, computed when they are used."""

    def __init__(self, raw: RawData) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> Any:
        return values_of(self.raw, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw.values)

    def __len__(self) -> int:
        return len(self.raw.values)


def select_rows(
    raw: RawData, tensors: Mapping[str, FieldRows], rows: np.ndarray
) -> tuple[RawData, Mapping[str, FieldRows]]:
    """The rows that the settings select, in order."""
    if len(rows) == len(raw):
        return raw, tensors
    split = None if raw.split is None else raw.split[rows]
    keys = {name: cells[rows] for name, cells in raw.row_keys.items()}
    refused = None if raw.refused is None else raw.refused[rows]
    places = raw.places.take(rows)
    chosen = replace(
        raw,
        split=split,
        places=places,
        row_keys=keys,
        refused=refused,
        original=raw.original and raw.original.take(rows),
    )
    if raw.store is not None:
        return chosen, raw.store.select(tensors, rows)
    return chosen, {name: tensor[rows] for name, tensor in tensors.items()}


def choose_columns(raw: RawData, options: Options) -> RawData:
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
    fields = () if stored is None else read_selection(stored).schema.fields
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


def empty_columns(tensors: Mapping[str, FieldRows]) -> str:
    """The fields with missing cells and the rows of each that have some, most first."""
    counts = {
        name: int((found > 0).sum())
        for name, rows in tensors.items()
        if (found := missing_counts(rows)) is not None and bool((found > 0).any())
    }
    ranked = sorted(counts, key=lambda name: -counts[name])
    return listed([f"{name} in {counts[name]}" for name in ranked], 4)


def complete_rows(tensors: Mapping[str, FieldRows], name: str) -> np.ndarray:
    """The rows without missing cells."""
    masks = [found > 0 for rows in tensors.values() if (found := missing_counts(rows)) is not None]
    count = len(next(iter(tensors.values())))
    rows = np.flatnonzero(~np.any(masks, axis=0)) if masks else np.arange(count)
    if not len(rows):
        raise DataError(
            f"every row of {name} has a missing cell, and data.missing=drop leaves "
            "none; use data.missing=model"
        )
    return rows
