"""What benchmarks measured, kept as files, and the tables of the documentation made from them.

A benchmark ends with `keep("trainer", {"epoch": 1.02})`, which writes `results/trainer.json`: the
values with the machine, the versions, the commit, the seeds and the day; `monge reproduce debd`
writes `results/debd.json` in the same form. `results/tables.yaml` lays tables
out, row by row. A cell such as `{trainer.epoch:.2f} times` is filled in from the files; where a
value is not there yet, the row shows what was `stated` by hand, with its day. `make results`, that
is `python -m benchmarks.results`, writes the tables into README.md and docs/benchmarks.md between
their marks; a test holds that they agree.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monge.comparison.reproduction import about_this_machine

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results"
LAYOUT = FOLDER / "tables.yaml"
MARKED = "<!-- table {name}: made from results/ by `make results` -->\n{body}<!-- end of table -->"
PLACE = re.compile(r"<!-- table (\w+): [^>]*-->\n.*?<!-- end of table -->", re.S)


def keep(
    name: str,
    values: Mapping[str, float],
    seeds: Sequence[int] = (0,),
    peers: Iterable[str] = (),
    note: str = "",
) -> Path:
    """Write the values that the benchmark `name` measured; `peers` are packages it compares with.
    A name such as `flows-spline` is one part of a benchmark that measures several."""
    if not values:
        raise SystemExit(
            f"{name}: no peer is installed, so nothing is kept; run scripts/bench-env"
        )
    record = {
        "benchmark": name.partition("-")[0],
        "arguments": sys.argv[1:],
        **about_this_machine(values, seeds, peers),
        "note": note,
    }
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{name}.json"
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"kept in {file.relative_to(ROOT)}; `make results` puts it into the tables")
    return file


# tables


def kept() -> dict[str, dict[str, Any]]:
    """Every result, by the name of its file."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


def names_in(text: str) -> list[str]:
    """The values that a cell asks for, such as trainer.epoch."""
    return [field for _, field, _, _ in string.Formatter().parse(text) if field]


class Cells(string.Formatter):
    """Fills cells in: `{trainer.epoch:.2f}` is the value `epoch` of results/trainer.json."""

    def __init__(self, results: Mapping[str, Mapping[str, Any]]) -> None:
        self.results = results

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        name, _, value = field_name.partition(".")
        return self.results[name]["values"][value], field_name


def filled(
    row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]
) -> tuple[str, str, str]:
    """What a row states was measured, when, and on which processors."""
    cell = str(row.get("measured", ""))
    asked = [name.partition(".") for name in names_in(cell)]
    if cell and all(value in results.get(name, {}).get("values", {}) for name, _, value in asked):
        days = sorted(results[name]["date"] for name, _, _ in asked)
        where = {processor(results[name]["machine"]["processor"]) for name, _, _ in asked}
        return Cells(results).format(cell), days[0] if days else "", ", ".join(sorted(where))
    return str(row["stated"]), str(row["date"]), ""


def processor(name: str) -> str:
    """The name of a processor without marks: Intel Xeon for Intel(R) Xeon(R) Processor."""
    return re.sub(r"\((R|TM)\)| (Processor|CPU)$", "", name)


def table(layout: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> str:
    """One table in Markdown."""
    columns = layout["columns"]  # heading: key of a row
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in layout["rows"]:
        measured, date, where = filled(row, results)
        day = date.replace("-", "\u2011")  # on one line
        cells = {**row, "measured": measured, "date": day, "processor": where}
        lines.append(
            "| " + " | ".join(str(cells.get(key, "") or "") for key in columns.values()) + " |"
        )
    return "\n".join(line.replace("  |", " |") for line in lines) + "\n"


def layouts() -> dict[str, dict[str, Any]]:
    import yaml

    return yaml.safe_load(LAYOUT.read_text(encoding="utf-8"))


def regenerated(text: str) -> str:
    """A page with its tables as the results give them."""
    found, results = layouts(), kept()

    def made(match: re.Match[str]) -> str:
        return MARKED.format(name=match[1], body=table(found[match[1]], results))

    return PLACE.sub(made, text)


def pages() -> list[Path]:
    return [ROOT / page for page in sorted({each["page"] for each in layouts().values()})]


def main() -> None:
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = regenerated(before)
        page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'changed' if after != before else 'as it was'}")


if __name__ == "__main__":
    main()
