"""Sequences given sequences of another length: how rnn learns where to read.

    MONGE_DATA=folder python -m benchmarks.other_length [--steps 400]

The loudness of spoken digits (a folder `speech` of wav files) in frames of 16 ms is modelled given
that in frames of 40 ms: 31 steps on average given 12. Printed are nats per test row and the error
of one sample per row, of a model that starts to read along a line and of one that starts anywhere,
beside linear interpolation. A sample of the true distribution errs by sqrt(2) times its standard
deviation, the mean of many by that.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import wave
from pathlib import Path

import numpy as np

import monge

LONG, SHORT = 0.04, 0.016
"""Seconds of a frame of the source and of the target."""
QUIET = 1e-5
"""Mean square below which a frame is silence."""


def loudness(path: Path, seconds: float) -> np.ndarray:
    """log10 of the root mean square of each whole frame, (T, 1)."""
    with wave.open(str(path)) as file:
        rate = file.getframerate()
        x = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
    size = int(seconds * rate)
    frames = x[: len(x) // size * size].reshape(-1, size)
    return np.log10((frames**2).mean(1) + QUIET)[:, None] / 2


def interpolated(source: np.ndarray, steps: int) -> np.ndarray:
    """The source (S,) at the middles of short frames, (steps,)."""
    known = (np.arange(len(source)) + 0.5) * LONG
    return np.interp((np.arange(steps) + 0.5) * SHORT, known, source)


def measure(sources: list, targets: list, steps: int, folder: str, alignment: str) -> list[float]:
    """Nats per test row, and root mean square errors of samples and of interpolation."""
    run = monge.fit(
        "rnn",
        (sources, targets),
        f"alignment={alignment}",
        target="y",
        budget=f"{steps}steps",
        out=f"{folder}/{alignment}",
        progress=False,
    )
    test = run.split(None, "test").whole()
    longest = int(test.length.max())
    drawn = run.sample_tensor(len(test), test.given, f"steps={longest}")[:, :, 0].numpy()
    found, plain = [], []
    for row, length in enumerate(test.length.tolist()):
        truth, source = test.x[row, :length, 0].numpy(), test.given["x"]
        known = source.x[row, : int(source.length[row]), 0].numpy()
        found.append(((drawn[row, :length] - truth) ** 2).mean())
        plain.append(((interpolated(known, length) - truth) ** 2).mean())
    nats = run.log_likelihood().mean.value
    return [nats, float(np.mean(found) ** 0.5), float(np.mean(plain) ** 0.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    own = parser.parse_args()
    paths = sorted((Path(os.environ.get("MONGE_DATA", ".")) / "speech").glob("*.wav"))
    sources = [loudness(path, LONG) for path in paths]
    targets = [loudness(path, SHORT) for path in paths]
    print(f"{'alignment':10}{'nats':>8}{'samples':>9}{'interpolation':>15}")
    for alignment in ("line", "free"):
        with tempfile.TemporaryDirectory() as folder:
            nats, error, plain = measure(sources, targets, own.steps, folder, alignment)
        print(f"{alignment:10}{nats:8.2f}{error:9.3f}{plain:15.3f}", flush=True)


if __name__ == "__main__":
    main()
