"""Run tutorials in full and keep what they print and draw, for their pages: `make tutorials`.

    python scripts/tutorials.py                 every tutorial
    python scripts/tutorials.py translator      these

`docs/tutorials/NAME.json` has the seconds of the processor that the script took, those of the
programs that it starts included, and what each cell printed;
`docs/tutorials/pictures/` has what it drew. A test asks for another run when the code of a
tutorial changes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import monge  # noqa: E402
from scripts.pages import TUTORIALS, cells  # noqa: E402

PICTURES = ROOT / "docs" / "tutorials" / "pictures"
COLOURS = 128
"""Of a palette, which makes pictures a third of their size."""


def code_of(path: Path) -> list[str]:
    return [text for is_code, text in cells(path.read_text(encoding="utf-8")) if is_code]


def digest(path: Path) -> str:
    """Changes with the code of a tutorial, not with its prose."""
    return hashlib.sha256("\n".join(code_of(path)).encode()).hexdigest()[:16]


def used() -> float:
    """Seconds of the processor, of this process and those it has waited for."""
    return sum(os.times()[:4])


def run(path: Path) -> dict[str, Any]:
    """Run a tutorial in the current folder, which is empty."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found, seen, started = [], set[Path](), used()
    for number, code in enumerate(code_of(path)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{path.name}, cell {number + 1}", "exec"), names)
        pictures = sorted(set(Path().glob("*.png")) - seen)
        seen |= set(pictures)
        lines = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
        found.append({"printed": "\n".join(lines), "pictures": [file.name for file in pictures]})
    seconds = round(used() - started)
    return {"seconds": seconds, "version": monge.__version__, "code": digest(path), "cells": found}


def keep(path: Path, record: dict[str, Any]) -> None:
    """Write the record and the pictures of the current folder beside the tutorial."""
    PICTURES.mkdir(exist_ok=True)
    for file in Path().glob("*.png"):
        image = Image.open(file).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        image.save(PICTURES / file.name, optimize=True)
    path.with_suffix(".json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="by default all")
    chosen = parser.parse_args().names
    matplotlib.use("Agg")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.pop("MONGE_RUNS", None)  # pages show the folder that a reader has
    for path in TUTORIALS:
        if chosen and path.stem not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            record = run(path)
            keep(path, record)
        print(f"{path.stem}: {record['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
