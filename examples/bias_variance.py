"""Bias, variance and noise of any predictor, from fits to many datasets of one known function.

For y = f(x) + noise and the mean prediction m_D(x) of a model fitted to a dataset D,

    E (m_D(x) - y)^2 = (E_D m_D(x) - f(x))^2 + Var_D m_D(x) + Var(noise),

averaged over x (Geman, Bienenstock & Doursat 1992). The three parts are estimated from fits to
fresh datasets, and their sum stands beside the squared error on fresh rows. Without settings a
linear map and a network are compared: the first has more bias, the second more variance.

    python -m examples.bias_variance [--model predict.mlp] [--fits 6] [net.width=8]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import monge

NOISE = 0.3
CAPACITIES = {"linear": ["net.depth=0"], "network": ["net.width=64", "train.lr=1e-2"]}
"""Settings that are compared by default."""


def function(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x) + 0.5 * x


def dataset(rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, rows)
    return pd.DataFrame({"x": x, "y": function(x) + NOISE * random.normal(size=rows)})


def bias_variance(
    model: str, *settings: str, fits: int, rows: int, budget: str
) -> dict[str, float]:
    """Squared bias, variance, noise, their sum, and the measured error on fresh rows."""
    fresh, means = dataset(2000, 10_000), []
    for seed in range(fits):
        with tempfile.TemporaryDirectory() as folder:
            run = monge.fit(
                model,
                dataset(rows, seed),
                *settings,
                target="y",
                budget=budget,
                seed=seed,
                out=Path(folder) / "run",
                progress=False,
            )
            means.append(np.asarray(run.predict(fresh[["x"]])["y"], float))
    found = np.stack(means)  # (fits, N)
    spread = found.var(0, ddof=1)
    gap = found.mean(0) - function(fresh.x.to_numpy())
    parts = {
        "bias^2": float((gap**2 - spread / fits).mean()),  # less what the mean of few fits varies
        "variance": float(spread.mean()),
        "noise": NOISE**2,
    }
    error = float(((found - fresh.y.to_numpy()) ** 2).mean())
    return parts | {"sum": sum(parts.values()), "measured error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", nargs="*", help="settings of the model, such as net.width=8")
    parser.add_argument("--model", default="predict.mlp")
    parser.add_argument("--fits", type=int, default=6)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--budget", default="200steps")
    own = parser.parse_intermixed_args()
    compared = {" ".join(own.settings): own.settings} if own.settings else CAPACITIES
    found = {
        name: bias_variance(own.model, *each, fits=own.fits, rows=own.rows, budget=own.budget)
        for name, each in compared.items()
    }
    print(pd.DataFrame(found).to_string(float_format="{:.4f}".format))


if __name__ == "__main__":
    main()
