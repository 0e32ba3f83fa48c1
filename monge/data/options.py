"""The settings `data.*`: how data are read and split."""

from __future__ import annotations

from typing import Annotated, Literal

from ..core.config import Config, Range
from ..core.errors import MAX_SEED, UsageError
from ..core.memory import require_memory

NO_CHANGE = "none"
"""The value of data.augment that turns off the augmentation a model proposes."""
COPIES = 16
"""Float64 numbers that making one number of synthetic data needs at most, with its noise."""


def check_rows(rows: int, columns: int) -> None:
    """Refuse data.rows of synthetic data that do not fit into memory."""
    require_memory(f"data.rows={rows}", COPIES * 8.0 * rows * columns, "choose fewer rows")


class Options(Config):
    """How data are read and split."""

    seed: Annotated[int, Range(0, MAX_SEED)] = 0
    """Seed for splits, subsampling and synthetic data."""
    valid: Annotated[float, Range(0, 0.9, open=True)] = 0.1
    """Fraction of the rows for validation, unless the files give a validation split."""
    test: Annotated[float, Range(0, 0.9, open=True)] = 0.1
    """Fraction of the rows for testing, unless the files give a test split."""
    rows: Annotated[int, Range(0)] = 0
    """Rows to subsample (training rows if splits are given) or to generate; 0 for all."""
    missing: Literal["model", "ignore", "drop"] = "model"
    """Empty cells of a table. model: whether a cell is empty is part of the row, so that samples
    have empty cells too; ignore: only the other cells are modelled; drop: leave such rows out."""
    space: Literal["auto", "plain"] = "auto"
    """Columns of a table. auto: empty cells, frequent single values, natural bounds of numbers,
    keys and columns that follow from others are found and modelled as such; plain: none of
    these."""
    constraints: tuple[str, ...] = ()
    """Constraints on the columns of a table, separated by semicolons, such as
    end>=start;0<=rate<=100;total=a+b. Every row must obey them, and so do samples."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether the first line of a table names its columns."""
    text: Literal["refuse", "missing", "label"] = "refuse"
    """Text cells in a column of numbers. refuse: an error; missing: read them as missing cells;
    label: read the column as categorical."""
    names: tuple[str, ...] = ()
    """Columns to read as categorical even if their values are numbers."""
    sentences: tuple[str, ...] = ()
    """Columns to read as text, token by token, even if their values repeat."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    parts: tuple[str, ...] = ()
    """Names for the underscore-separated parts of audio file names."""
    tokens: Literal["auto", "chars", "words", "bytes", "bpe"] = "auto"
    """Tokens of text: characters, words, bytes or learned subwords (bpe). auto: subwords for
    pairs of sentences, characters for other text."""
    vocabulary: Annotated[int, Range(0)] = 0
    """Size of the vocabulary of words (rarer words become one token) or subwords; 0 for 10000
    words or 4000 subwords."""
    context: Annotated[int, Range(2, 10**6)] = 256
    """Tokens per row of running text, which is cut into consecutive blocks."""
    lines: Literal["auto", "each", "running"] = "auto"
    """Text: one row per line (each), or blocks of running text. auto: each if no line is empty and
    all are short."""
    group: str = ""
    """Column of a table whose rows of one value are all in one split: train, valid or test."""
    weight: str = ""
    """Column of a table that says how much a row counts in training, such as the number of rows
    it stands for; it is not modelled. Held-out rows count alike."""
    time: str = ""
    """The column of times. Rows of numbers are a series; other rows are split by time, so that
    test rows are later than validation rows and these later than training rows. By default a
    column of dates beside numbers, or the order of the rows. none: the rows are not a series."""
    series: str = ""
    """Column of a table that names the series of a row, such as the symbol of a stock: each name
    becomes a channel over the time that all of them cover."""
    lookback: Annotated[int, Range(1)] | None = None
    """Series: past steps in a window; by default several seasons."""
    horizon: Annotated[int, Range(1)] | None = None
    """Series: future steps in a window; by default one season."""
    season: Annotated[int, Range(1)] | None = None
    """Series: steps per cycle, such as 24 for hours; by default derived from the times."""
    gaps: Literal["refuse", "fill"] = "refuse"
    """Series: missing, repeated or unordered times, and empty cells. refuse: an error; fill: sort
    the rows, keep the last of equal times and interpolate."""
    known: tuple[str, ...] = ()
    """Series: columns whose future values are known at forecast time."""
    calendar: bool = False
    """Series: whether to add the time of day, week and year as a condition."""
    borders: tuple[int, ...] = ()
    """Series: steps of training, validation and test, such as 8640,2880,2880; by default the
    fractions `valid` and `test`."""
    split: Annotated[int, Range(0)] = 0
    """Number of the split in a folder with several splits (index_train_3.txt and so on)."""
    labels: Annotated[int, Range(0)] = 0
    """Training rows that keep their label, balanced over the classes; a run that uses the label
    trains on these alone, unless its model learns from rows without a label too; 0 for all."""
    labelled_share: Annotated[float, Range(0, 0.9, open=True)] | None = None
    """For a model that learns from rows without a label too: labelled training rows are repeated
    until they are this share of all; none: that which the model proposes, or every row once."""
    balance: bool = False
    """Whether to repeat training rows until all classes are equally frequent."""
    augment: tuple[str, ...] = ()
    """Random augmentations of training rows, such as shift2,rotate10,flip (listed by `monge
    data`). Empty: those the model proposes; none: no augmentation."""

    points: tuple[str, ...] = ()
    """Two targets, the horizontal and the vertical position of a point of the image in pixels from
    its upper left corner: data.augment moves them with the image."""

    @property
    def models_empty(self) -> bool:
        """Whether an empty cell of a table is a value of its own."""
        return self.missing == "model" and self.space == "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valid + self.test >= 1:
            raise UsageError(
                f"data.valid={self.valid} and data.test={self.test} leave no training "
                "rows; make them sum to less than 1"
            )
        if len(self.points) not in (0, 2):
            raise UsageError(
                f"expected two columns in data.points, horizontal and vertical, found "
                f"{len(self.points)}; write data.points=x,y"
            )
