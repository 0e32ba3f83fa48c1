"""What a run or a comparison has to say for itself, as one page of HTML."""

from __future__ import annotations

import inspect
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import folder
from .compare import FILE, JUDGED, Comparison, Outcome
from .core.score import Score
from .doctor import sentence
from .leaderboard import Row, leaderboard
from .run import Run, load
from .show.page import folded, listing, page, paragraph, picture, preformatted, section, table

CAPTIONS = {"curves": "learning curves: each term of the loss, and the held-out score",
            "samples": "samples, as the law draws them", "density": "the learned density",
            "map": "codes of held-out rows", "reliability": "how often what is said comes true"}
NAMES = {"log_likelihood": "nats a row", "bits_per_dim": "bits/dim",
         "energy_distance": "energy distance", "samples_per_second": "samples a second"}


def write_report(name: str, out: Path | None = None) -> Path:
    """The report of a run, or of the comparison in a folder."""
    for where in (Path(name), folder.home() / name):
        if (where / FILE).exists():
            comparison = Comparison.read(where)
            ended = [Outcome(model, seed, where / comparison.plan.title(model, seed))
                     for model, seed in comparison.plan.entrants]
            judged = [o for o in ended if (o.run / JUDGED).exists()]
            return report(where, judged, out)
    run = load(name)
    return written(out or run.folder / "report.html", of_run(run))


def report(where: Path, outcomes: Sequence[Outcome], out: Path | None = None) -> Path:
    """The page of a comparison."""
    return written(out or where / "report.html", of_comparison(where, outcomes))


def written(path: Path, text: str) -> Path:
    folder.write(path, text)
    return path


def of_run(run: Run) -> str:
    score = run.result["held_out"]
    lead = f"{run.space}; {run.space.rows} training rows"
    if score:
        lead += (f". Held out: {score['value']:.4f} ± {score['stderr']:.4f} {score['unit']} "
                 f"({score['kind']})")
    return page(run.title, lead, *told_of(run, measures_of(run)), section("Environment",
                environment(run)))


def of_comparison(where: Path, outcomes: Sequence[Outcome]) -> str:
    plan, rows = Comparison.read(where).plan, leaderboard(outcomes)
    runs = {row.model: load(row.runs[0]) for row in rows}
    first = next(iter(runs.values()), None)
    lead = (f"{len(plan.models)} models, {plan.seeds} seed{'s' * (plan.seeds > 1)}, "
            f"{plan.budget} of training each, the same rows for all")
    failed = [f"{o.model} (seed {o.seed}): {o.failure}" for o in outcomes if o.failure]
    return page(
        f"Laws of {plan.data}", lead,
        section("Data", description(first)) if first else "",
        section("Leaderboard", board(rows), paragraph(
            "Log-likelihoods are means over test rows, the higher the better; a bound is at most "
            "the value. Behind: nats a row below the first, on the same rows. Distances are of "
            "samples from test rows, the lower the better.")),
        section("Failures", listing(failed) if failed else ""),
        section("Models", *(folded(model, *told_of(run, rows[i].measures))
                            for i, (model, run) in enumerate(runs.items()))),
        section("Left out", listing([f"{name}: {why}" for name, why in plan.refused.items()])
                if plan.refused else ""),
        section("Environment", environment(first)) if first else "")


def board(rows: Sequence[Row]) -> str:
    """The leaderboard: likelihoods, how far behind, and every measure that several have."""
    counts: dict[str, int] = {}
    for row in rows:
        for name in row.measures:
            counts[name] = counts.get(name, 0) + 1
    others = [name for name, count in counts.items()
              if count > 1 and name not in ("log_likelihood", "bits_per_dim")]
    head = ["model", "nats a row", "± ", "kind", "bits/dim", "behind", "±",
            *(NAMES.get(name, name.replace("_", " ")) for name in others), "seconds"]
    body = [[row.model, *likelihood(row.measures), *(row.behind or (None, None)),
             *(row.measures[name].value if name in row.measures else None for name in others),
             row.seconds] for row in rows]
    return table("Models on test rows, the best first", head, body)


def likelihood(measures: dict[str, Score]) -> list[Any]:
    score, bits = measures.get("log_likelihood"), measures.get("bits_per_dim")
    if score is None:
        return [None, None, "", None]
    return [score.value, score.stderr, score.kind, bits.value if bits else None]


def description(run: Run) -> str:
    """What the data are."""
    space, origin = run.space, run.about["data"]
    rows = [["event", str(space)], ["training rows", str(space.rows)],
            ["fingerprint", origin["fingerprint"][:16]],
            *(["given " + name, str(part)] for name, part in space.given.items())]
    return table(f"{origin['name']}, as the models see it", ["what", "value"], rows)


def told_of(run: Run, measures: dict[str, Score]) -> list[str]:
    """The parts of a page about one run."""
    rows = [[name.replace("_", " "), s.value, s.stderr or None, s.unit, s.kind]
            for name, s in measures.items()]
    result = run.result
    settings = run.about["config"] | {f"train.{k}": v for k, v in run.about["recipe"].items()}
    return [
        section("Law", preformatted(inspect.cleandoc(run.owner.__doc__ or ""))),
        section("Measures", table("on test rows", ["measure", "value", "±", "unit", "kind"],
                                  rows)),
        section("Pictures", *pictures(run.folder / "pictures")),
        section("Findings", listing([sentence(f) for f in run.diagnose()] or
                                    ["Nothing ails the fit."])),
        section("Training", paragraph(f"{result['step']} steps in {result['seconds']:.1f} s, "
                                      f"ended by {result['stopped']}."), last_terms(run),
                folded("Settings", table("every field", ["field", "value"], [
                    [name, str(value)] for name, value in settings.items()
                    if not name.endswith("is")])))]


def last_terms(run: Run) -> str:
    """Each term of the loss where training ended."""
    last = next((line for line in reversed(list(run.log)) if line["terms"]), None)
    if last is None:
        return ""
    return table("terms of the loss at the end", ["term", "mean a row"],
                 [[name, value] for name, value in last["terms"].items()])


def pictures(where: Path) -> list[str]:
    """Every picture the run keeps."""
    paths = sorted(where.glob("*.png")) if where.is_dir() else []
    return [picture(path, CAPTIONS.get(path.stem, path.stem), smooth=path.stem != "samples")
            for path in paths]


def measures_of(run: Run) -> dict[str, Score]:
    """As they were judged, or judged now."""
    if (run.folder / JUDGED).exists():
        told = json.loads((run.folder / JUDGED).read_text(encoding="utf-8"))["measures"]
        return {name: Score(**score) for name, score in told.items()}
    return run.evaluate()


def environment(run: Run) -> str:
    about = run.about
    return table("what it was computed with", ["what", "version"], [
        ["Monge", about["monge"]], ["torch", about["torch"]], ["Python", about["python"]],
        ["machine", platform.machine()], ["seed", str(about["seed"])]])
