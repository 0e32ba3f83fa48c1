"""A small picture of a real run of every model, for its page: `make gallery`.

    python scripts/gallery.py                 every model that has none yet
    python scripts/gallery.py made flow.maf   these models anew

Each is fitted for some hundred steps, which take ten seconds to a minute of one core, on data that
come with the library or are made here, so a picture shows what a model does, not the best it can
do. `docs/gallery/NAME.png` has a sample on the left and the held-out metric during training on the
right; `NAME.json` has the command and the figure that its caption states. Neither is part of the
wheel.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import monge  # noqa: E402
from monge import registry  # noqa: E402
from monge.core.abilities import CanSample, HasMode  # noqa: E402
from monge.plot.image_grid import as_bytes, grid  # noqa: E402
from monge.plot.latent import colour  # noqa: E402
from monge.run.figures import is_image_to_image  # noqa: E402
from monge.run.latent import plane, table  # noqa: E402

FOLDER = ROOT / "docs" / "gallery"
LARGEST, LARGEST_IN_ALL = 24_000, 900_000
"""Bytes of one picture, and of the folder."""
GREY, BLUE = "0.7", "C0"
SECONDS = 60
"""Of the processor that a picture should take; steps are chosen so that it does."""
FINISHED = ("budget", "complete", "patience", "refit")
"""How a fit may end that a picture is made of."""


@dataclass(frozen=True)
class Plan:
    """What one model is fitted to, for how long."""

    data: Any
    """What `monge fit` takes, or a function that makes it."""
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 500
    about: str = ""
    """What the data are, if the command does not say it."""

    @property
    def all_settings(self) -> tuple[str, ...]:
        """With sixteen points of the curve, and without an end before the last."""
        return (*self.settings, f"train.eval_every={self.steps // 16}", "train.patience=0")


def sales() -> pd.DataFrame:
    """Two years of daily sales with a weekly and a yearly cycle."""
    days, rng = np.arange(730), np.random.default_rng(0)
    waves = 15 * np.sin(2 * np.pi * days / 7) + 25 * np.sin(2 * np.pi * days / 365)
    sold = (100 + waves + rng.normal(0, 6, 730)).round(1)
    return pd.DataFrame({"day": pd.date_range("2022-01-01", periods=730), "sold": sold})


def phrases() -> tuple[list[str], list[str]]:
    """Numbers in words, German and English."""
    ones = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    units = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    tens = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
    decades = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    numbers = [(t, o) for t in range(8) for o in range(9)]
    german = [f"{ones[o]} und {tens[t]}" for t, o in numbers]
    return german * 20, [f"{decades[t]} {units[o]}" for t, o in numbers] * 20


def coloured() -> str:
    """Digits in yellow on blue, and in white on red in another order, as two files."""
    folder, digits = Path(tempfile.mkdtemp()), load_digits().images[:, None] / 16
    order = np.random.default_rng(0).permutation(len(digits))
    for name, ink, colours in (  # (1797, 1, 8, 8)
        ("yellow", digits, ((255, 215, 75), (25, 25, 90))),
        ("white", digits[order], ((230, 255, 255), (180, 25, 40))),
    ):
        of_ink, of_paper = (np.reshape(each, (3, 1, 1)) for each in colours)
        np.save(folder / name, (of_paper + (of_ink - of_paper) * ink).astype(np.uint8))
    return f"{folder / 'yellow.npy'}~{folder / 'white.npy'}"


SERIES = Plan(sales, about="two years of daily sales, made by a formula with noise")
PAIRS = Plan(phrases, options={"data": {"tokens": "words"}}, about="numbers in words")
LABELS = Plan("digits", options={"target": "label"})
PLANS: dict[str, Plan] = {
    "adversarial.gan": Plan("ring", steps=1000),
    "adversarial.wgan": Plan("ring", steps=400),
    "adversarial.dcgan": Plan("digits", steps=1000),
    "adversarial.pix2pix": Plan("digits+edges", steps=400),
    "adversarial.cyclegan": Plan(
        coloured,
        ("identity=0", "cycle=2", "net.width=16", "width=16", "train.lr=2e-3"),
        steps=300,
        about="digits in yellow on blue, and digits in white on red in another order",
    ),
    "autoregressive.deep_nade": Plan("digits+binarise", steps=400),
    "autoregressive.gpt": Plan("digits", steps=300),
    "autoregressive.pixelcnn": Plan("digits", steps=250),
    "autoregressive.pixelrnn": Plan("digits", steps=150),
    "autoregressive.count_table": Plan("iris"),
    "baseline.gaussian": Plan("iris"),
    "baseline.mixture": Plan("pinwheel"),
    "baseline.chow_liu": Plan("digits"),
    "baseline.independent": Plan("digits"),
    "diffusion.ddpm": Plan("digits", steps=300),
    "diffusion.vdm": Plan("digits", steps=300),
    "diffusion.score_sde": Plan("pinwheel", steps=1000),
    "diffusion.consistency": Plan("pinwheel", steps=800),
    "diffusion.d3pm": Plan("digits+binarise", steps=500),
    "diffusion.distilled": Plan(
        "pinwheel", ("halvings=3", "stage_steps=250", "teacher_steps=750"), steps=1500
    ),
    "diffusion.noisy_classifier": LABELS,
    "energy.ebm": Plan("pinwheel", steps=800),
    "energy.rbm": Plan("digits+binarise", steps=1000),
    "flow.attribute": Plan("digits", options={"given": ["label"]}, steps=350),
    "flow.cflow": Plan("digits+half", steps=350),
    "flow.cnf": Plan("pinwheel", steps=600),
    "flow.coupling": Plan("checkerboard", steps=800),
    "flow.glow": Plan("digits", steps=400),
    "flow.iaf": Plan("moons", steps=500),
    "flow.maf": Plan("moons", steps=800),
    "flow.residual": Plan("moons", steps=400),
    "flow.superres": Plan("digits+low2", steps=400),
    "predict.semi": Plan("digits", ("data.labels=100",), {"target": "label"}, steps=400),
    "predict.m2": Plan("digits", ("data.labels=100",), {"target": "label"}, steps=400),
    "predict.cnn": Plan("digits", options={"target": "label"}, steps=200),
    "predict.resnet": Plan("digits", options={"target": "label"}, steps=100),
    "predict.recurrent": Plan("digits", options={"target": "label"}, steps=200),
    "autoregressive.wavenet": Plan("sines", steps=300),
    "latent.latent_diffusion": Plan("digits", steps=500),
    "latent.vqvae": Plan("digits", steps=400),
    "latent.stcn": Plan("sines", steps=250),
    "latent.vrnn": Plan("sines", steps=200),
    "sequence.rnn": Plan("sines", steps=400),
    "sequence.ssm": Plan("sines", steps=150),
    "sequence.linear_ar": SERIES,
    "sequence.direct_forecast": SERIES,
    "sequence.recursive_forecast": SERIES,
    "sequence.seq2seq": PAIRS,
    "sequence.transformer": PAIRS,
    "transport.entropic_map": Plan("eight_gaussians~moons"),
    "transport.neural_map": Plan("eight_gaussians~moons", steps=800),
    "transport.sinkhorn_generator": Plan("eight_gaussians", steps=300),
}


def plan_of(entry: registry.Entry) -> Plan:
    """The plan of a model; by default 500 steps on the digits."""
    return PLANS.get(entry.name) or (LABELS if entry.is_predictor else Plan("digits"))


# the left side of a picture


def show_images(run: monge.Run, axes: Axes) -> str:
    sheet = as_bytes(run.sample_tensor(40).numpy(), run.space)
    show_sheet(grid(sheet, columns=10, zoom=1), axes)
    return "forty samples"


def show_pairs(run: monge.Run, axes: Axes) -> str:
    valid = run.split(None, "valid")
    rows = valid.batch(torch.arange(10))
    made = run.sample_tensor(10, rows.given)
    ((name, source),) = run.space.given.items()
    given = rows.given[name].x
    factor = run.space.shape[-1] // source.shape[-1]
    given = given.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    parts = [as_bytes(given.numpy(), source), as_bytes(made.numpy(), run.space)]
    what = "conditions above, samples given them below"
    if not run.model.is_unpaired:
        parts.append(as_bytes(rows.x.numpy(), run.space))
        what = "conditions, samples given them, and the true pictures"
    show_sheet(grid(np.concatenate(parts), columns=10, zoom=1), axes)
    return what


def show_classes(run: monge.Run, axes: Axes) -> str:
    ((_, space),) = run.space.given.items()
    labels = monge.Batch(torch.arange(40) % space.size)
    made = run.sample_tensor(40, {next(iter(run.space.given)): labels})
    show_sheet(grid(as_bytes(made.numpy(), run.space), columns=10, zoom=1), axes)
    return "samples given the label of each column"


def show_sheet(sheet: np.ndarray, axes: Axes) -> None:
    axes.imshow(sheet, cmap="gray", interpolation="nearest")
    axes.set_axis_off()


def show_points(run: monge.Run, axes: Axes) -> str:
    """The first two entries of rows and of samples."""
    rows = run.split(None, "train").whole()
    n = min(len(rows), 800)
    made = run.sample_tensor(n, rows[torch.arange(n)].given)
    for x, shade in ((rows.x[:n], GREY), (made, BLUE)):
        size = 12 if n < 300 else 4
        axes.scatter(*x.reshape(n, -1)[:, :2].T.tolist(), s=size, color=shade, linewidths=0)
    axes.set(xticks=[], yticks=[], aspect="equal")
    return "training rows (grey) and as many samples (blue)"


def show_waves(run: monge.Run, axes: Axes) -> str:
    held = run.split(None, "test").whole().x[:3]
    for x, shade in ((held, GREY), (run.sample_tensor(3), BLUE)):
        axes.plot(x.reshape(3, -1).T.numpy(), color=shade, linewidth=1)
    axes.set(xticks=[], yticks=[])
    return "three held-out series (grey) and three samples (blue)"


def show_forecast(run: monge.Run, axes: Axes) -> str:
    future = run.forecast(28, paths=True, n=200)
    paths = future["sold"].to_numpy().reshape(200, -1)
    past = sales()["sold"].to_numpy()[-60:]
    low, middle, high = np.quantile(paths, (0.1, 0.5, 0.9), axis=0)
    after = np.arange(len(middle))
    axes.plot(np.arange(-60, 0), past, color="0.3", linewidth=1)
    axes.fill_between(after, low, high, color=BLUE, alpha=0.3, linewidth=0)
    axes.plot(after, middle, color=BLUE)
    axes.set(xlabel="days from the last", yticks=[])
    return "the last sixty days, the median of what follows and its 80 % interval"


def show_confusion(run: monge.Run, axes: Axes) -> str:
    rows = run.split(None, "test").whole()
    truth = rows.x.reshape(-1).long()
    found = run.model.mode(rows.given).reshape(-1).long()
    counts = torch.zeros(run.space.size, run.space.size)
    counts.index_put_((truth, found), torch.ones(len(truth)), accumulate=True)
    axes.imshow(counts, cmap="Blues")
    axes.set(xlabel="predicted", ylabel="label", xticks=range(10), yticks=range(10))
    right = (truth == found).double().mean().item()
    return f"predicted labels of {len(truth)} test rows, of which {right:.1%} are right"


def show_codes(run: monge.Run, axes: Axes) -> str:
    codes = table(run, None, "test")
    names = [name for name in codes if name[0] == "z" and name[1:].isdigit()]
    z = plane(torch.tensor(codes[names].to_numpy())).numpy()
    labels = codes["label"].astype(int)
    axes.scatter(*z.T, s=20, c=[colour(k) for k in labels], linewidths=0)
    axes.set(xticks=[], yticks=[])
    return "codes of test rows in two dimensions, coloured by their labels, which were not used"


def show_sentences(run: monge.Run, axes: Axes) -> str:
    german, english = (each[:72:11] for each in phrases())
    lines = [f"{a}  →  {b}" for a, b in zip(german, run.translate(german), strict=True)]
    axes.text(0, 0.5, "\n".join(lines), family="monospace", fontsize=8, va="center")
    axes.set_axis_off()
    right = sum(line.endswith(f"→  {b}") for line, b in zip(lines, english, strict=True))
    return f"translations, of which {right} of {len(lines)} are right"


def left_of(run: monge.Run) -> Callable[[monge.Run, Axes], str]:
    space = run.space
    if run.metadata["model"].endswith(("_forecast", "linear_ar")):
        return show_forecast
    if space.kind == "tokens":
        return show_sentences
    if not isinstance(run.model, CanSample):
        return show_codes
    if run.model.is_predictor and isinstance(run.model, HasMode):
        return show_confusion
    if space.is_image:
        image = any(part.is_image for part in space.given.values())
        if image or is_image_to_image(space):
            return show_pairs
        return show_classes if space.given else show_images
    if space.varies or (len(space.shape) and space.shape[0] > 16 and not space.columns):
        return show_waves
    return show_points


# a model's picture


def make(entry: registry.Entry) -> None:
    plan = plan_of(entry)
    data = plan.data() if callable(plan.data) else plan.data
    with tempfile.TemporaryDirectory() as folder:
        run = monge.fit(
            entry.name,
            data,
            *plan.all_settings,
            **plan.options,
            budget=f"{plan.steps}steps",
            out=Path(folder) / "run",
            progress=False,
        )
        history, result = run.history, run.result
        if result["stopped"] not in FINISHED:
            raise monge.RunError(f"the fit ended before its budget ({result['stopped']})")
        held = history.dropna(subset=["held_out"]) if "held_out" in history else history[:0]
        values = held["held_out"].to_numpy() if len(held) > 2 else np.zeros(1)
        two = np.ptp(values) > 1e-6 * np.abs(values).max()  # no curve of a closed form
        figure = Figure(figsize=(7.2 if two else 4.0, 2.6), layout="constrained", dpi=90)
        panels = figure.subplots(1, 2, width_ratios=(3, 2)) if two else [figure.subplots()]
        shown = left_of(run)(run, panels[0])
        about = result["held_out"]
        if two:
            panels[1].plot(held["step"], held["held_out"], ".-", color="black", linewidth=1)
            panels[1].set(xlabel="step", ylabel=f"held out ({about['kind']})")
            panels[1].spines[["top", "right"]].set_visible(False)
    write(figure, FOLDER / f"{entry.name}.png")
    flags = [
        f"--{name} {value if isinstance(value, str) else value[0]}"
        for name, value in plan.options.items()
        if name != "data"
    ]
    named = plan.data if isinstance(plan.data, str) else "DATA"
    command = " ".join(["monge fit", entry.name, named, *plan.all_settings, *flags])
    record = {
        "command": f"{command} --budget {plan.steps}steps",
        "data": plan.about,
        "left": shown,
        "curve": bool(two),
        "held_out": {"value": round(about["value"], 4), "kind": about["kind"]},
        "best": result["step"],
        "version": monge.__version__,
    }
    (FOLDER / f"{entry.name}.json").write_text(json.dumps(record, indent=1) + "\n")


def write(figure: Figure, path: Path) -> None:
    """Save a figure with a palette, which makes it a third of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    image = Image.open(drawn).convert("RGB").quantize(24, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        print(f"{path.name}: {path.stat().st_size} bytes, more than {LARGEST}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", help="by default those that have no picture yet")
    chosen = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    FOLDER.mkdir(exist_ok=True)
    entries = [registry.describe(name) for name in chosen.models] or [
        each for each in registry.entries() if not (FOLDER / f"{each.name}.json").exists()
    ]
    failed = []
    for entry in entries:
        try:
            started, used = time.perf_counter(), time.process_time()
            make(entry)
            took, used = time.perf_counter() - started, time.process_time() - used
            above = f", above {SECONDS}" if used > SECONDS else ""
            print(f"{entry.name}: {took:.0f} s, {used:.0f} s of the processor{above}", flush=True)
        except Exception as error:  # the others are made all the same
            failed.append(entry.name)
            print(f"{entry.name}: {type(error).__name__}: {error}", flush=True)
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"{FOLDER.relative_to(ROOT)}: {size / 1e3:.0f} kB")
    sys.exit(bool(failed) or size > LARGEST_IN_ALL)


if __name__ == "__main__":
    main()
