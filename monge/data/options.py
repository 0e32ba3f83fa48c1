"""What a user may say about data: the `data.*` words."""

from __future__ import annotations

from typing import Annotated, Literal

from ..core.config import Config, Range
from ..core.error import WordError


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
    text: Literal["refuse", "label"] = "refuse"
    """A column of numbers with a few words in it: refused, or read as names."""
    names: tuple[str, ...] = ()
    """Columns whose values are names even where they look like numbers."""
    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    parts: tuple[str, ...] = ()
    """What the parts of the names of sound files between underscores are called."""

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
            raise WordError(f"data.valid={self.valid} and data.test={self.test} leave no training "
                            "rows; make them sum to less than 1")
