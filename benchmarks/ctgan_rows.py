"""Rows sampled by CTGAN or TVAE, for `benchmarks.tables`; run by the Python that has ctgan.

    PYTHON benchmarks/ctgan_rows.py ctgan train.csv sampled.csv 600 --names c2 c4 c15

Both keep the settings of their package but for the number of epochs, which end when the seconds
are over or after the 300 of the package, whichever is first; what comes before the first epoch is
not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import torch
from ctgan import CTGAN, TVAE
from ctgan.synthesizers import ctgan, tvae


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=["ctgan", "tvae"])
    parser.add_argument("train")
    parser.add_argument("sampled")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--names", nargs="*", default=[], help="columns of names")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    frame = pd.read_csv(asked.train, dtype=dict.fromkeys(asked.names, object))
    epochs = 0

    def until_the_end(steps: Iterable[int], **rest: Any) -> Iterator[int]:
        """In place of the progress bar around the epochs."""
        nonlocal epochs
        end = time.monotonic() + asked.seconds
        for step in steps:
            if time.monotonic() > end:
                return
            epochs += 1
            yield step

    ctgan.tqdm = tvae.tqdm = until_the_end
    torch.manual_seed(asked.seed)
    model = {"ctgan": CTGAN, "tvae": TVAE}[asked.model]()
    model.set_random_state(asked.seed)
    model.fit(frame, asked.names)
    model.sample(asked.rows or len(frame)).to_csv(asked.sampled, index=False)
    print(epochs)


if __name__ == "__main__":
    main()
