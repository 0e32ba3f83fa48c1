"""Metrics of super-resolution (PSNR, SSIM) and of image translation (L1 and SSIM, with two
baselines, and how well a classifier distinguishes patches)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.abilities import CanEnlarge, CanSample
from ..core.batch import Batch
from ..core.metric import Metric
from ..core.model import Model
from ..core.rng import make_generator
from .c2st import MIN_TEST_ROWS, c2st

ROWS, SAMPLES_PER_ROW = 256, 4
"""Rows that are enlarged, and samples of each."""
WINDOW = 7
"""Side of the window of SSIM in pixels."""
PATCH = 8
"""Side of the patches that a classifier compares, in pixels, or the whole of a smaller image."""


@torch.no_grad()
def enlargements(model: Model, batch: Batch, seed: int = 0) -> dict[str, Metric]:
    """PSNR and SSIM of single samples; the error of the downscaled samples against the given
    images, and the standard deviation over samples of a row, both as shares of the range."""
    if not isinstance(model, CanEnlarge) or not isinstance(model, CanSample):
        return {}
    batch = batch[:ROWS]
    span = float(max(model.space.size - 1, 1))
    samples = torch.stack(
        [
            model.sample(len(batch), batch.given, generator=make_generator(seed + k))
            for k in range(SAMPLES_PER_ROW)
        ]
    )  # (DRAWS, B, C, H, W)
    error = (samples - batch.x).square().flatten(2).mean(2)  # (DRAWS, B)
    psnr = 10 * torch.log10(span**2 / error.clamp_min(1e-12)).mean(0)
    similarities = torch.stack([similarity(x, batch.x, span) for x in samples]).mean(0)
    small = torch.stack([model.shrink(x) for x in samples])
    missed = (small - batch.given[model.source].x).abs().flatten(2).mean((0, 2)) / span
    found = {"low_resolution_error": score(missed, "of range")}
    if math.isinf(model.slack):  # pairs of another kind than means: those of real images beside
        truth = (model.shrink(batch.x) - batch.given[model.source].x).abs().flatten(1).mean(1)
        found["low_resolution_error_of_real_rows"] = score(truth / span, "of range")
    varied = samples.std(0).flatten(1).mean(1) / span
    return {
        "psnr": score(psnr, "dB"),
        "ssim": score(similarities, "of 1"),
        **found,
        "sample_spread": score(varied, "of range"),
    }


def similarity(x: Tensor, y: Tensor, span: float) -> Tensor:
    r"""Structural similarity of images, (B,): the mean over windows of

    $(2 \mu_x \mu_y + c_1)(2 \sigma_{xy} + c_2) / (\mu_x^2 + \mu_y^2 + c_1)(\sigma_x^2 +
    \sigma_y^2 + c_2)$, $c_k = (k\, span / 100)^2$ for k = 1, 3 (Wang et al. 2004).
    """
    x, y = x.double(), y.double()
    side = min(WINDOW, *x.shape[2:])

    def mean(z: Tensor) -> Tensor:
        return F.avg_pool2d(z, side, 1)

    low, rough = (0.01 * span) ** 2, (0.03 * span) ** 2
    a, b = mean(x), mean(y)
    spread = mean(x.square()) - a.square() + mean(y.square()) - b.square()
    joint = mean(x * y) - a * b
    found = (2 * a * b + low) * (2 * joint + rough)
    return (found / ((a.square() + b.square() + low) * (spread + rough))).flatten(1).mean(1)


def score(values: Tensor, unit: str) -> Metric:
    """The mean over rows."""
    return Metric(float(values.mean()), "estimate", float(values.std() / len(values) ** 0.5), unit)


def is_translation(model: Model) -> bool:
    """Whether events and their one condition are images of one size, in pairs."""
    given = list(model.space.given.values())
    return (
        not model.is_unpaired
        and len(given) == 1
        and model.space.is_image
        and given[0].is_image
        and given[0].shape[1:] == model.space.shape[1:]
    )


def translation_metrics(x: Tensor, rows: Batch, train: Batch, seed: int = 0) -> dict[str, Metric]:
    """Mean absolute error per pixel, in units of the data, and structural similarity: of samples,
    of the source in place of the target, and of the mean training image; and the accuracy with
    which a classifier distinguishes patches of samples from those of targets, 1/2 if it cannot."""
    (source,) = rows.given.values()
    guess = (
        source.x
        if source.x.shape == rows.x.shape
        else source.x.mean(1, keepdim=True).expand_as(rows.x)
    )
    mean = train.x.mean(0, keepdim=True).expand_as(rows.x)
    known = {"": x, "_of_source": guess, "_of_mean": mean}
    span = float(rows.x.max() - rows.x.min()) or 1.0
    found = {
        f"l1{name}": pixel_error((each - rows.x).abs().flatten(1).mean(1))
        for name, each in known.items()
    }
    found |= {
        f"ssim{name}": score(similarity(each, rows.x, span), "of 1")
        for name, each in known.items()
    }
    if len(rows) >= MIN_TEST_ROWS:
        fake, real = (patches(source.x, each, seed + k) for k, each in enumerate((x, rows.x)))
        found["patch_c2st"] = c2st(fake, real, seed)
    return found


def patches(source: Tensor, target: Tensor, seed: int) -> Tensor:
    """One patch of each pair of images (B, C, H, W), source and target side by side, at a random
    place, (B, F): patches of one image are not independent, those of different ones are."""
    pair = torch.cat([source.double(), target.double()], 1)
    side = min(PATCH, *pair.shape[2:])
    windows = pair.unfold(2, side, 1).unfold(3, side, 1)  # (B, C, h, w, side, side)
    rows, columns = (
        torch.randint(count, (len(pair),), generator=make_generator(seed + k))
        for k, count in enumerate(windows.shape[2:4])
    )
    return windows[torch.arange(len(pair)), :, rows, columns].flatten(1)


def pixel_error(error: Tensor) -> Metric:  # (B,)
    value = error.double()
    spread = float(value.std()) / math.sqrt(len(value)) if len(value) > 1 else math.nan
    return Metric(float(torch.mean(value)), "distance", spread, "per pixel")
