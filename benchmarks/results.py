"""What benchmarks measured, kept as files, and the tables of the documentation made from them.

A benchmark ends with `keep("trainer", {"epoch": 1.02})`, which writes `results/trainer.json`: the
values with the machine, the versions, the commit, the seeds and the day; `monge reproduce debd`
writes `results/debd.json` in the same form. `results/tables.yaml` lays tables
out, row by row. A cell such as `{trainer.epoch:.2f} times` is filled in from the files; where a
value is not there yet, the row shows what was `stated` by hand, with its day. The place
`reproduced` has every line that `monge reproduce` kept, beside published figures. `make results`,
that is `python -m benchmarks.results`, writes the tables into README.md and docs/benchmarks.md
between their marks, where a test holds that they agree, and the curves of the lines into
docs/curves.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monge.comparison.published import TABLES, short
from monge.comparison.reproduction import about_this_machine
from monge.plot.learning_curves import write_race

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "results"
LAYOUT = FOLDER / "tables.yaml"
MARKED = "<!-- table {name}: made from results/ by `make results` -->\n{body}<!-- end of table -->"
REPRODUCED = "reproduced"
CURVES = ROOT / "docs" / "curves"
METRICS = {
    "log_likelihood": "nats per row",
    "bits_per_dim": "bits/dim",
    "nats_per_token": "nats per character",
    "coverage_0.8": "80 % intervals cover",
    "absolute_error": "mean absolute error",
    "c2st": "C2ST",
    "bleu": "BLEU",
    "mse": "MSE",
    "mae": "MAE",
    "rmse": "RMSE",
    "detection_auc": "detection AUC",
}
"""What the columns of reproduced tables are called, where that is not the name of the metric."""
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
        day = date.replace("-", NO_BREAK)
        cells = {**row, "measured": measured, "date": day, "processor": where}
        lines.append(
            "| " + " | ".join(str(cells.get(key, "") or "") for key in columns.values()) + " |"
        )
    return "\n".join(line.replace("  |", " |") for line in lines) + "\n"


# published tables, repeated


def reproduced(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A section for each table of `monge reproduce` of which a line is kept."""
    parts = [section(results[name], name) for name in TABLES if name in results]
    return "\n" + "\n".join(parts)


def section(record: Mapping[str, Any], name: str) -> str:
    """One table: a row a line, a column a metric, and the published figures beside them."""
    lines, found = record["lines"], TABLES[name]
    metrics = list(dict.fromkeys(metric for line in lines for metric in line["metrics"]))
    heads = [METRICS.get(metric, metric.replace("_", " ")) for metric in metrics]
    columns = ["data", "model", *heads, "published", "seconds"]
    rows = [
        [
            short(line["data"]),
            model_cell(line, name),
            *(metric_cell(line["metrics"].get(metric)) for metric in metrics),
            published_cell(line, metrics),
            f"{line['seconds']:.0f}" if line["seconds"] >= 10 else f"{line['seconds']:.1f}",
        ]
        for line in sorted(lines, key=lambda line: order(line, name))
    ]
    days = sorted({line.get("date", record["date"]) for line in lines})
    places = {line.get("processor", record["machine"]["processor"]) for line in lines}
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = ", ".join(sorted(processor(place) for place in places))
    text = [
        f"### {name}",
        "",
        f"{found.title[0].upper()}{found.title[1:]}.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row).replace("  ", " ") + " |" for row in rows),
        "",
        f"{where}, {day.replace('-', NO_BREAK)}. {record['departs']}",
        "",
        *(
            f"![Held-out scores over the seconds of fits to {short(data)}]"
            f"(curves/{curve_name(name, data)})"
            for data in curved(lines)
        ),
        "",
    ]
    return "\n".join(text)


NO_BREAK = "\u2011"
"""A hyphen at which no line ends."""


def order(line: Mapping[str, Any], name: str) -> tuple[int, str]:
    """The place of a line in its table; folders of data that the table does not name come last."""
    names = [fit.name for fit in TABLES[name].fits]
    return (names.index(line["name"]) if line["name"] in names else len(names), line["name"])


def model_cell(line: Mapping[str, Any], name: str) -> str:
    """The model, what tells the line from others of it, and a budget that is not the table's."""
    fits = {fit.name: fit for fit in TABLES[name].fits}
    fit = fits.get(line["name"])
    marks = [
        fit.label if fit else "",
        f"{line['repeats']} fits" if line["repeats"] > 1 else "",
        f"budget {line['budget']}" if fit and line["budget"] != fit.budget else "",
    ]
    model = f"`{line['model'].rpartition('.')[2]}`"
    return ", ".join([model, *filter(None, marks)])


def metric_cell(score: Mapping[str, Any] | None) -> str:
    """A value with half of its 95 % interval; bounds are marked."""
    if score is None:
        return ""
    value = f"{score['value']:.4g}"
    low, high = score["interval"]
    half = (high - low) / 2
    spread = f" ± {half:.2g}" if half > 0 else ""
    return value + spread + " (bound)" * (score["kind"] == "bound")


def published_cell(line: Mapping[str, Any], metrics: Sequence[str]) -> str:
    shown = []
    for figure in line["published"]:
        metric = figure["metric"]
        head = "" if metric == metrics[0] else METRICS.get(metric, metric) + " "
        shown.append(f"{head}{figure['value']:g} ({figure['by']})")
    return ", ".join(shown)


def curved(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """The data of lines whose curves have several points."""
    return list(dict.fromkeys(line["data"] for line in lines if len(line["curve"]) > 1))


def curve_name(name: str, data: str) -> str:
    return f"{name}-{short(data).partition('.')[0]}.png"


def write_curves(results: Mapping[str, Mapping[str, Any]]) -> None:
    """The curves of all kept lines, one picture for each dataset of a table."""
    CURVES.mkdir(exist_ok=True)
    wanted = set()
    for name, record in results.items():
        for data in curved(record.get("lines", [])):
            path = CURVES / curve_name(name, data)
            wanted.add(path)
            write_race(
                path,
                {line["name"]: line["curve"] for line in record["lines"] if line["data"] == data},
            )
    for path in set(CURVES.glob("*.png")) - wanted:
        path.unlink()


def layouts() -> dict[str, dict[str, Any]]:
    import yaml

    return yaml.safe_load(LAYOUT.read_text(encoding="utf-8"))


def regenerated(text: str) -> str:
    """A page with its tables as the results give them."""
    found, results = layouts(), kept()

    def made(match: re.Match[str]) -> str:
        here = match[1]
        body = reproduced(results) if here == REPRODUCED else table(found[here], results)
        return MARKED.format(name=here, body=body)

    return PLACE.sub(made, text)


def pages() -> list[Path]:
    return [ROOT / page for page in sorted({each["page"] for each in layouts().values()})]


def main() -> None:
    write_curves(kept())
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = regenerated(before)
        page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {'changed' if after != before else 'as it was'}")


if __name__ == "__main__":
    main()
