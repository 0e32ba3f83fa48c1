"""The figures of a run: learning curves, latent codes, samples, density and translations."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.abilities import (
    CanDecode,
    CanEncode,
    CanEnlarge,
    CanSample,
    CanTransfer,
    HasLikelihood,
)
from ..core.errors import DataError
from ..core.space import Space
from ..evaluate.forecasts import is_forecast
from ..plot import density, image_grid, latent, learning_curves
from .forecast import forecast
from .latent import manifold, plane, table, transfer
from .run import Run

if TYPE_CHECKING:
    import pandas as pd


MAX_GRID_IMAGES = 64
"""Images in a grid, samples or data."""
MAX_TRANSLATED = 24
"""Held-out sources whose translations are shown."""
MAX_DENSITY_ROWS = 20_000
"""Training rows plotted beside a density."""
MAX_ENLARGED, SAMPLES_PER_IMAGE = 12, 4
"""Small images that are enlarged, and samples of each."""
FORECAST_PATHS, INTERVAL = 200, 0.8
"""Trajectories of a plotted forecast, and the probability of its interval."""
MAX_TRANSFERRED = 8
"""Images that are decoded under each other's conditions."""


def write_figures(run: Run) -> None:
    """Write all figures of a fitted run."""
    folder = run.folder / "figures"
    folder.mkdir(exist_ok=True)
    if len(history := list(run.log)) > 1:
        learning_curves.write_curves(folder / "curves.png", history, run.model.optimal_values)
    if (
        isinstance(run.model, CanEncode)
        and isinstance(run.model, CanDecode)
        and run.model.latent.dims == 2
    ):
        write_codes(run, table(run, None, "valid"), folder / "codes.png")
    if is_image_to_image(run.space) and isinstance(run.model, CanSample):
        write_translations(run, folder / "translations.png")
    if isinstance(run.model, CanEnlarge):
        write_enlargements(run, folder / "enlargements.png")
    if isinstance(run.model, CanTransfer) and run.space.is_image:
        write_transfers(run, folder / "transfers.png")
    if run.space.given and is_forecast(run.model) and isinstance(run.model, CanSample):
        with suppress(DataError):  # columns that are known in advance may end with the series
            forecast(run, None, None, (), FORECAST_PATHS, 0).plot(
                folder / "forecast.png", INTERVAL
            )
    if run.space.is_image:
        valid = run.split(None, "valid")
        rows = valid.batch(torch.arange(min(len(valid), MAX_GRID_IMAGES))).x.numpy()
        image_grid.write_grid(folder / "data.png", rows, run.space)
    if run.space.given:
        return
    if (
        run.space.shape == (2,)
        and run.space.kind == "real"
        and isinstance(run.model, HasLikelihood)
    ):
        write_density_figure(run, folder / "density.png")
    if not isinstance(run.model, CanSample):
        return
    if run.space.is_image:
        image_grid.write_grid(
            folder / "samples.png", run.sample_tensor(MAX_GRID_IMAGES).numpy(), run.space
        )
    elif run.space.shape == (2,) and run.space.kind == "real":
        rows = run.split(None, "valid").whole().x.numpy()[:2000]
        image_grid.write_points(folder / "samples.png", run.sample_tensor(2000).numpy(), rows)


def is_image_to_image(space: Space) -> bool:
    """Whether the event and its one condition are images of one size."""
    given = list(space.given.values())
    return (
        space.is_image
        and len(given) == 1
        and given[0].is_image
        and given[0].shape[1:] == space.shape[1:]
    )


def write_translations(run: Run, path: Path) -> None:
    """Held-out sources, their translations and, for paired data, the targets."""
    valid = run.split(None, "valid")
    rows = valid.batch(torch.arange(min(len(valid), MAX_TRANSLATED)))
    ((name, source),) = run.space.given.items()
    made = run.sample_tensor(len(rows), rows.to(run.compute.torch_device()).given)
    shown = [
        image_grid.as_bytes(rows.given[name].x.numpy(), source),
        image_grid.as_bytes(made.numpy(), run.space),
    ]
    if not run.model.is_unpaired:
        shown.append(image_grid.as_bytes(rows.x.numpy(), run.space))
    image_grid.write_beside(path, shown)


def write_density_figure(run: Run, path: Path) -> None:
    """The model's density on the plane, beside training rows."""
    model = run.require(HasLikelihood)
    rows = run.split(None, "train")
    some = rows.batch(torch.arange(min(len(rows), MAX_DENSITY_ROWS))).x.numpy()
    device = run.compute.torch_device()

    def log_prob(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.log_prob(x.to(device)).cpu()

    density.write_density(path, log_prob, some)


def write_enlargements(run: Run, path: Path) -> None:
    """Held-out small images, several samples of each, and the true image."""
    valid, model = run.split(None, "valid"), run.require(CanEnlarge)
    rows = valid.batch(torch.arange(min(len(valid), MAX_ENLARGED)))
    given = rows.to(run.compute.torch_device()).given
    small = rows.given[model.source].x
    factor = run.space.shape[-1] // small.shape[-1]
    shown = [
        small.repeat_interleave(factor, 2).repeat_interleave(factor, 3),
        *(run.sample_tensor(len(rows), given, seed=seed) for seed in range(SAMPLES_PER_IMAGE)),
        rows.x,
    ]
    image_grid.write_beside(path, [image_grid.as_bytes(x.numpy(), run.space) for x in shown])


def write_transfers(run: Run, path: Path) -> None:
    """Held-out images in the first column; beside each, its code under the others' conditions."""
    sheet = transfer(run, None, "valid", MAX_TRANSFERRED)
    image_grid.write_grid(path, sheet.x.numpy(), run.space, sheet.columns)


def write_codes(run: Run, codes: pd.DataFrame, path: Path) -> None:
    """A scatter plot of codes coloured by label, with decoded images if codes are 2-D."""
    names = [str(name) for name in codes]
    places = [name for name in names if name[0] == "z" and name[1:].isdigit()]
    z = torch.tensor(codes[places].to_numpy())
    rest = [name for name in names if name not in (*places, "row")]
    sheet = manifold(run, z) if run.space.is_image else None
    over = (
        None
        if sheet is None
        else image_grid.grid(image_grid.as_bytes(sheet.x.numpy(), run.space), sheet.columns)
    )
    latent.write_map(path, plane(z).numpy(), codes[rest[0]].to_numpy() if rest else None, over)
