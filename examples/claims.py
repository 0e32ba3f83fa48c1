"""Six comparisons that papers and books make in prose, each tested in a minute with one figure.

1 dropout and bagging (Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 7.11 and 7.12)
2 VAE and GAN (Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks)
3 PixelRNN and PixelCNN (van den Oord et al. 2016, Pixel Recurrent Neural Networks)
4 autoregressive and coupling flows (Papamakarios et al. 2021, Normalizing Flows for Probabilistic
  Modeling and Inference, sec. 3.1)
5 RNN and LSTM (Hochreiter & Schmidhuber 1997, Long Short-Term Memory)
6 AE and VAE (Kingma & Welling 2014, Auto-Encoding Variational Bayes)

    python -m examples.claims 3 [-o claim-3.png] [--steps 100]

Each prints its numbers and whether every tested statement held.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import monge
from monge.core.rng import make_generator
from monge.evaluate.energy_distance import energy
from monge.plot.image_grid import as_bytes, grid
from monge.run.run import start

from .memory import NETS, fading, train

SAMPLES = 500
"""Number of samples that are measured."""


@dataclass(frozen=True)
class ClaimResult:
    """The numbers of each side, and whether each statement held."""

    sides: dict[str, dict[str, float]]
    held: dict[str, bool]


@dataclass(frozen=True)
class Claim:
    """A comparison: its title, its number of training steps, and its test."""

    title: str
    steps: int
    test: Callable[[int, Path, Figure], ClaimResult]


def fitted(
    folder: Path,
    title: str,
    model: str,
    data: str,
    *overrides: str,
    steps: int,
    target: str | None = None,
    ensemble: int = 0,
    bag: bool = False,
) -> monge.Run:
    return monge.fit(
        model,
        data,
        *overrides,
        budget=f"{steps}steps",
        target=target,
        ensemble=ensemble,
        bag=bag,
        out=folder / title,
    )


def bars(axes: Axes, sides: dict[str, dict[str, float]], name: str) -> None:
    axes.bar(list(sides), [found[name] for found in sides.values()], color="0.4")
    axes.set_title(name)


def dropout_and_bagging(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """Members of a bagged ensemble are independent and each fully trained; those of dropout share
    weights. Both should predict better than one plain network; only bagging needs more weights."""
    plain, count = "net.dropout=0", 5
    ways = {
        "one network": ((plain,), 0),
        "dropout": (("net.dropout=0.5",), 0),
        "bagging": ((plain,), count),
    }
    sides: dict[str, dict[str, float]] = {}
    first = None
    for title, (overrides, members) in ways.items():
        run = fitted(
            folder,
            title,
            "predict.mlp",
            "digits",
            "net.width=256",
            *overrides,
            steps=steps,
            target="label",
            ensemble=members,
            bag=members > 0,
        )
        rows = run.score().value
        first = rows if first is None else first
        size = sum(p.numel() for p in run.model.parameters())
        accuracy = (run.predict()["label"].astype(str).to_numpy() == truth(run)).mean()
        sides[title] = {
            "nats per label": -rows.mean(),
            "accuracy": float(accuracy),
            "parameters": float(size),
            "gain": (rows - first).mean(),
            "error of the gain": (rows - first).std() / len(rows) ** 0.5,
        }
    for axes, name in zip(
        figure.subplots(1, 3), ("nats per label", "accuracy", "parameters"), strict=True
    ):
        bars(axes, sides, name)
    one, drop, bag = sides.values()
    return ClaimResult(
        sides,
        {
            "dropout predicts better than one network": drop["nats per label"]
            < one["nats per label"],
            "bagging predicts better than one network": bag["nats per label"]
            < one["nats per label"],
            "a bag is as large as its members, dropout as one": bag["parameters"]
            == count * drop["parameters"],
        },
    )


def truth(run: monge.Run) -> np.ndarray:
    """The names of the test rows' labels."""
    return run.view.decode(run.rows().whole().x).astype(str)


def vae_and_gan(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """The mean of a VAE's decoder is blurred, samples of a GAN are as sharp as the data; the VAE
    has a bound on the likelihood, the GAN only samples."""
    vae = fitted(folder, "vae", "vae", "digits", "latent=4", steps=steps)
    gan = fitted(folder, "gan", "dcgan", "digits", steps=steps)
    z = torch.randn(SAMPLES, 4, generator=make_generator(0))
    real = vae.rows().whole().x.float().numpy()
    shown = {
        "data": real,
        "VAE": np.asarray(vae.decode(z), np.float32).reshape(-1, 1, 8, 8),
        "GAN": gan.sample_tensor(SAMPLES).float().numpy(),
    }
    sides = {name: {"sharpness": sharpness(x) / sharpness(real)} for name, x in shown.items()}
    *sheets, last = figure.subplots(1, 4)
    for axes, (name, x) in zip(sheets, shown.items(), strict=True):
        axes.imshow(grid(as_bytes(x[:36], vae.space), columns=6, zoom=4), cmap="gray")
        axes.set_title(name)
        axes.axis("off")
    bars(last, sides, "sharpness")
    far = {name: abs(found["sharpness"] - 1) for name, found in sides.items()}
    return ClaimResult(
        sides,
        {
            "images of the VAE are blurred": sides["VAE"]["sharpness"] < 0.9,
            "those of the GAN are nearer to the sharpness of the data": far["GAN"] < far["VAE"],
        },
    )


def sharpness(images: np.ndarray) -> float:
    """The mean square of second differences, (n, 1, H, W)."""
    x = images.reshape(-1, 8, 8)
    bend = (
        4 * x[:, 1:-1, 1:-1] - x[:, 2:, 1:-1] - x[:, :-2, 1:-1] - x[:, 1:-1, 2:] - x[:, 1:-1, :-2]
    )
    return float((bend**2).mean())


def pixelrnn_and_pixelcnn(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """Convolutions see all pixels at once in training, an RNN one after the other; both sample one
    pixel after the other."""
    sides, curves = {}, {}
    for name in ("pixelrnn", "pixelcnn"):
        run = start(
            name,
            "digits",
            "train.batch_size=32",
            "train.eval_every=20",
            out=folder / name,
            budget=f"{steps}steps",
        )
        for _ in run.train(f"{steps}steps"):
            pass
        curves[name] = run.history.dropna(subset="held_out")
        sides[name] = {
            "ms per step": 1000 * run.cost.seconds_per_step,
            "nats": run.score().score.value,
        }
    left, right = figure.subplots(1, 2)
    bars(left, sides, "ms per step")
    for name, log in curves.items():
        right.plot(log["seconds"], log["held_out"], ".-", label=name)
    right.set(xlabel="seconds of training", ylabel="held-out nats")
    right.legend(frameon=False)
    rnn, cnn = sides.values()
    return ClaimResult(
        sides, {"a step of PixelCNN is faster": cnn["ms per step"] < rnn["ms per step"]}
    )


def autoregression_and_flow(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """Both have exact densities by a triangular Jacobian. The autoregressive flow has one unknown
    after the other to invert, coupling layers halves at a time."""
    sides = {}
    for name in ("maf", "coupling"):
        run = start(name, "moons", out=folder / name, budget=f"{steps}steps")
        for _ in run.train(f"{steps}steps"):
            pass
        found = run.score().score
        sides[name] = {
            "ms per step": 1000 * run.cost.seconds_per_step,
            "nats": found.value,
            "samples per second": pace(run),
        }
    *rest, last = figure.subplots(1, 3)
    for axes, name in zip(rest, ("nats", "ms per step"), strict=True):
        bars(axes, sides, name)
    bars(last, sides, "samples per second")
    maf, coupling = sides.values()
    return ClaimResult(
        sides,
        {
            "the determinant is no burden: steps cost the same within a factor of 2": 0.5
            < coupling["ms per step"] / maf["ms per step"]
            < 2,
            "coupling layers sample faster": coupling["samples per second"]
            > maf["samples per second"],
            "both come within 0.3 nats of each other": abs(maf["nats"] - coupling["nats"]) < 0.3,
        },
    )


def pace(run: monge.Run) -> float:
    """Samples per second, many at once."""
    run.sample_tensor(SAMPLES)
    started = time.perf_counter()
    run.sample_tensor(20 * SAMPLES)
    return 20 * SAMPLES / (time.perf_counter() - started)


def rnn_and_lstm(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """The gradient of a plain RNN fades with the lag; the cell of an LSTM carries it."""
    gap, sides, courses = 20, {}, {}
    for name in ("RNN", "LSTM"):
        courses[name] = fading(NETS[name])
        sides[name] = {
            "gradient at lag 40": courses[name][40],
            "nats per copied symbol": train(NETS[name], "copying", gap, steps),
        }
    left, right = figure.subplots(1, 2)
    for name, course in courses.items():
        left.semilogy(course, label=name)
    left.set(xlabel="lag", ylabel="gradient")
    left.legend(frameon=False)
    bars(right, sides, "nats per copied symbol")
    rnn, lstm = sides.values()
    return ClaimResult(
        sides,
        {
            "the gradient of the RNN fades sooner": rnn["gradient at lag 40"]
            < lstm["gradient at lag 40"],
            f"the LSTM copies over a gap of {gap} better": lstm["nats per copied symbol"]
            < rnn["nats per copied symbol"],
        },
    )


def ae_and_vae(steps: int, folder: Path, figure: Figure) -> ClaimResult:
    """An autoencoder reconstructs better, but its codes have no known distribution: what it
    decodes from N(0, I) is no digit. The codes of a VAE match that prior."""
    sides, shown = {}, {}
    for name in ("ae", "vae"):
        run = fitted(folder, name, name, "digits", "latent=8", steps=steps)
        rows = run.rows().whole()
        real = rows.x.float().flatten(1)
        z = torch.randn(SAMPLES, 8, generator=make_generator(0))
        made = torch.as_tensor(np.asarray(run.decode(z), np.float32)).flatten(1)
        back = torch.as_tensor(np.asarray(run.decode(run.encode()), np.float32)).flatten(1)
        sides[name] = {
            "reconstruction error": float((back - real).square().mean()),
            "distance of decoded noise": energy(made, real).value,
        }
        shown[name] = made[:36].reshape(-1, 1, 8, 8).numpy()
        space = run.space
    left, middle, *sheets = figure.subplots(1, 4)
    bars(left, sides, "reconstruction error")
    bars(middle, sides, "distance of decoded noise")
    for axes, (name, x) in zip(sheets, shown.items(), strict=True):
        axes.imshow(grid(as_bytes(x, space), columns=6, zoom=4), cmap="gray")
        axes.set_title(f"{name}: decoded noise")
        axes.axis("off")
    ae, vae = sides.values()
    noise, error = "distance of decoded noise", "reconstruction error"
    return ClaimResult(
        sides,
        {
            "the AE reconstructs better": ae[error] < vae[error],
            "the VAE decodes noise to data": vae[noise] < ae[noise],
        },
    )


CLAIMS = {
    1: Claim("dropout and bagging", 600, dropout_and_bagging),
    2: Claim("VAE and GAN", 1200, vae_and_gan),
    3: Claim("PixelRNN and PixelCNN", 60, pixelrnn_and_pixelcnn),
    4: Claim("autoregressive flow and coupling flow", 400, autoregression_and_flow),
    5: Claim("RNN and LSTM", 600, rnn_and_lstm),
    6: Claim("AE and VAE", 1500, ae_and_vae),
}


def check(number: int, out: Path, steps: int = 0) -> ClaimResult:
    """Test one claim and plot it."""
    claim = CLAIMS[number]
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    with tempfile.TemporaryDirectory() as folder:
        found = claim.test(steps or claim.steps, Path(folder), figure)
    figure.suptitle(claim.title)
    figure.savefig(out, dpi=120)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("number", type=int, choices=CLAIMS)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    out = options.out or Path(f"claim-{options.number}.png")
    found = check(options.number, out, options.steps)
    for side, numbers in found.sides.items():
        print(f"{side:12}", "  ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    for statement, held in found.held.items():
        print("held    " if held else "FAILED  ", statement)
    print(out)


if __name__ == "__main__":
    main()
