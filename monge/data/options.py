"""What a user may say about data: the `data.*` words."""

from __future__ import annotations

from typing import Annotated, Literal

from ..core.config import Config, Range
from ..core.errors import UsageError


class Options(Config):
    """How data are read and split."""

    seed: int = 0
    """Of the split, of the choice of rows, and of data that are made."""
    valid: Annotated[float, Range(0, 0.9, open=True)] = 0.1
    """Part of the rows that is held out while training, where files do not say."""
    test: Annotated[float, Range(0, 0.9, open=True)] = 0.1
    """Part of the rows that is held out until the end, where files do not say."""
    rows: Annotated[int, Range(0)] = 0
    """Rows to keep by a seeded choice (of given splits: training rows), or to make; 0 for all."""
    missing: Literal["keep", "category", "drop"] = "keep"
    """Missing cells: kept as unseen, in columns of names made a name, or their rows dropped."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether the first line of a table names its columns."""
    text: Literal["refuse", "missing", "label"] = "refuse"
    """A column of numbers with a few words in it: refused, the words read as missing cells, or all
    of it as names."""
    names: tuple[str, ...] = ()
    """Columns whose values are names even where they look like numbers."""
    sentences: tuple[str, ...] = ()
    """Columns that are text, read symbol by symbol, though their values may repeat."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    parts: tuple[str, ...] = ()
    """What the parts of the names of sound files between underscores are called."""
    tokens: Literal["auto", "chars", "words", "bytes", "bpe"] = "auto"
    """Symbols of text: characters, words, bytes, or subwords that are learned (bpe); auto takes
    subwords of pairs of sentences and characters of any other text."""
    vocabulary: Annotated[int, Range(0)] = 0
    """How many words (the rest are one symbol) or subwords there are; 0 for 10000 or 4000."""
    context: Annotated[int, Range(2)] = 256
    """Tokens of a row of running text, which is cut into consecutive blocks."""
    lines: Literal["auto", "each", "running"] = "auto"
    """Text: a row for each line, or blocks of running text; auto takes each line where none is
    empty and all are short."""
    time: str = ""
    """Series: the column of times; without it the one that looks so, or the order of the rows;
    none for a table with dates whose rows are no steps."""
    lookback: Annotated[int, Range(1)] | None = None
    """Series: steps of the past in a window; by default what kind of times there are decides."""
    horizon: Annotated[int, Range(1)] | None = None
    """Series: steps of the future in a window; by default one season."""
    season: Annotated[int, Range(1)] | None = None
    """Series: steps of a cycle, such as 24 hours; by default what the times suggest."""
    gaps: Literal["refuse", "fill"] = "refuse"
    """Series: times that are missing, occur twice or are out of order, and empty cells: refused,
    or mended (sorted, the last of equal times kept, what is missing interpolated)."""
    known: tuple[str, ...] = ()
    """Series: columns whose future is known when a forecast is made."""
    calendar: bool = False
    """Series: whether day, week and year are a field that a forecast can be given."""
    borders: tuple[int, ...] = ()
    """Series: steps of training, validation and test; by default shares as `valid` and `test`."""
    split: Annotated[int, Range(0)] = 0
    """Which of the splits of a folder that comes with several (index_train_3.txt and so on)."""
    labels: Annotated[int, Range(0)] = 0
    """Training rows that keep their label, by a seeded choice balanced over the classes: a run
    that looks at the label trains on these alone; 0 for all."""
    balance: bool = False
    """Whether training rows are repeated until every class has as many as the commonest."""
    augment: tuple[str, ...] = ()
    """Changes of training rows, afresh in each batch, such as shift2,rotate10,flip: `monge data`
    lists them. Empty takes what the model proposes, none takes nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valid + self.test >= 1:
            raise UsageError(
                f"data.valid={self.valid} and data.test={self.test} leave no training "
                "rows; make them sum to less than 1"
            )
