"""Sequences and images with known generating factors, and simulations of parameters and what is
observed of them, generated rather than stored.

Each row is a function of its own uniform random numbers, so row i does not depend on the number of
rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ...core.rng import derive_seed, keyed_uniform
from ..codecs.array import Array
from ..codecs.sequence import Steps, pack
from ..options import Options
from ..readers.base import RawData, RowLocations

TURN = 2 * math.pi
LETTERS = {
    "c": ((0.9, 0.8), (0.5, 1.0), (0.1, 0.7), (0.1, 0.3), (0.5, 0.0), (0.9, 0.2)),
    "e": ((0.1, 0.5), (0.9, 0.55), (0.8, 0.95), (0.4, 1.0), (0.1, 0.5), (0.4, 0.0), (0.9, 0.15)),
    "l": ((0.1, 0.2), (0.7, 1.4), (0.5, 2.0), (0.3, 1.6), (0.4, 0.3), (0.8, 0.0), (1.0, 0.2)),
    "o": ((0.5, 1.0), (0.1, 0.7), (0.2, 0.1), (0.6, 0.0), (0.9, 0.4), (0.8, 0.9), (0.5, 1.0)),
    "s": ((0.9, 0.8), (0.5, 1.0), (0.2, 0.75), (0.6, 0.5), (0.85, 0.25), (0.5, 0.0), (0.1, 0.2)),
    "v": ((0.0, 1.0), (0.2, 0.6), (0.45, 0.0), (0.6, 0.3), (0.9, 1.0)),
}
"""Points on the path of the pen, in units of the height of a small letter."""
STYLES = {"upright": (1.0, 0.0), "wide": (1.5, 0.0), "slanted": (0.9, 0.5)}
"""Width and slant of each style of handwriting."""
SIDE, FINE = 16, 4
"""Pixels per side of an image, and points per side of a pixel for anti-aliasing."""
PLACES, SIZES, ROTATIONS = 6, 4, 6
"""Number of values of each factor of a shape: both coordinates, size, rotation."""


class Pen(Steps):
    """Steps (dx, dy) of a pen."""

    tag = "codec/pen"


def strokes(options: Options) -> RawData:
    """Pen strokes of six letters in three hands, as steps of the pen; 16 to 32 steps each"""
    n = options.rows or 4000
    u = keyed_uniform(torch.arange(n), (19 + 64,), derive_seed(options.seed, "strokes")).numpy()
    letters, styles = list(LETTERS), list(STYLES)
    which = (u[:, 0] * len(letters)).astype(int)
    hand = (u[:, 1] * len(styles)).astype(int)
    length = 16 + (u[:, 2] * 17).astype(int)
    rows = [
        _stroke(letters[a], styles[b], steps, own)
        for a, b, steps, own in zip(which, hand, length, u[:, 3:], strict=True)
    ]
    places = RowLocations.count(n)
    values = {
        "pen": pack(rows),
        "letter": np.array(letters, object)[which],
        "style": np.array(styles, object)[hand],
    }
    codec = Pen.fit(values["pen"], places.at("pen"))
    return RawData("strokes", values, ("pen",), places, "letter", codecs={"pen": codec})


def sines(options: Options) -> RawData:
    """Noisy sine waves of 48 steps with random frequency, phase and amplitude"""
    n = options.rows or 4000
    u = keyed_uniform(torch.arange(n), (3 + 48,), derive_seed(options.seed, "sines"))
    period, phase, size = 6 + 18 * u[:, :1], TURN * u[:, 1:2], 0.5 + u[:, 2:3]
    time = torch.arange(48, dtype=torch.float64)
    x = size * torch.sin(TURN * time / period + phase) + 0.1 * torch.special.ndtri(u[:, 3:])
    codec = Array(kind="real", shape=(48,), dtype="float32")
    values = {"x": x.float().numpy(), "period": period[:, 0].float().numpy()}
    return RawData("sines", values, ("x",), RowLocations.count(n), codecs={"x": codec})


def shapes(options: Options) -> RawData:
    """Images of a wedge, 16x16 binary, with its position, size and rotation as fields"""
    n = options.rows or 6000
    u = keyed_uniform(torch.arange(n), (4,), derive_seed(options.seed, "shapes"))
    counts = torch.tensor([PLACES, PLACES, SIZES, ROTATIONS])
    factors = (u * counts).long()  # (N, 4)
    image = _wedges(factors.double() / (counts - 1))
    values = {"image": image.numpy()}
    values |= {
        name: factors[:, place].numpy()
        for place, name in enumerate(("across", "down", "size", "rotation"))
    }
    codec = Array(kind="binary", shape=(1, SIDE, SIDE), dtype="uint8", layout="HW")
    return RawData("shapes", values, ("image",), RowLocations.count(n), codecs={"image": codec})


def linear_gaussian(options: Options) -> RawData:
    """Simulations of x = theta + 1 + noise, three numbers each; the posterior is known

    theta is uniform in [-2, 2]^3 and the noise N(0, 0.1^2), as in the first example of sbi; given
    x, each theta_i is N(x_i - 1, 0.1^2) cut off at -2 and 2.
    """
    n = options.rows or 2000
    u = keyed_uniform(torch.arange(n), (6,), derive_seed(options.seed, "linear_gaussian"))
    theta = 4 * u[:, :3] - 2
    return _simulations("linear_gaussian", theta, theta + 1 + 0.1 * torch.special.ndtri(u[:, 3:]))


def two_moons(options: Options) -> RawData:
    """Simulations whose posterior is two crescents: two parameters, two numbers observed

    theta is uniform in [-1, 1]^2 and x = r (cos a, sin a) + (1/4 - |theta_1 + theta_2| / sqrt 2,
    (theta_2 - theta_1) / sqrt 2) with r ~ N(0.1, 0.01^2) and a uniform in [-pi/2, pi/2]
    (Greenberg, Nonnenmacher & Macke 2019).
    """
    n = options.rows or 10_000
    u = keyed_uniform(torch.arange(n), (4,), derive_seed(options.seed, "two_moons"))
    theta = 2 * u[:, :2] - 1
    angle, radius = math.pi * (u[:, 2] - 0.5), 0.1 + 0.01 * torch.special.ndtri(u[:, 3])
    across = radius * angle.cos() + 0.25 - theta.sum(1).abs() / math.sqrt(2)
    up = radius * angle.sin() + (theta[:, 1] - theta[:, 0]) / math.sqrt(2)
    return _simulations("two_moons", theta, torch.stack([across, up], 1))


def _simulations(name: str, theta: Tensor, x: Tensor) -> RawData:
    """Parameters with what was observed of them; the parameters are what is to be found."""
    values = {"theta": theta.float().numpy(), "x": x.float().numpy()}
    codecs = {
        field: Array(
            kind="real",
            shape=rows.shape[1:],
            dtype="float32",
            entries=tuple(f"{field}{i + 1}" for i in range(rows.shape[1])),
        )
        for field, rows in values.items()
    }
    places = RowLocations.count(len(theta))
    return RawData(name, values, ("theta",), places, "theta", ("x",), codecs=codecs)


def _stroke(letter: str, style: str, steps: int, u: np.ndarray) -> np.ndarray:
    """One letter as steps of the pen, (steps, 2)."""
    wide, lean = STYLES[style]
    points = np.array(LETTERS[letter])
    points = points + 0.05 * _normal(u[: 2 * len(points)]).reshape(-1, 2)
    points = points * (wide, 1.0)
    points[:, 0] += (lean + 0.05 * _normal(u[14:15])) * points[:, 1]
    path = _smooth(points * (1 + 0.1 * _normal(u[15:16])), steps + 1)
    tremor = 0.01 * _normal(u[16 : 16 + 2 * steps]).reshape(-1, 2)
    return (np.diff(path, axis=0) + tremor).astype(np.float32)


def _normal(u: np.ndarray) -> np.ndarray:
    return torch.special.ndtri(torch.from_numpy(u)).numpy()


def _smooth(points: np.ndarray, count: int) -> np.ndarray:
    """`count` points on a smooth curve through the given ones (Catmull-Rom)."""
    ends = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    place = np.linspace(0, len(points) - 1 - 1e-9, count)
    whole = place.astype(int)
    t = (place - whole)[:, None]
    a, b, c, d = (ends[whole + k] for k in range(4))
    return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))


def _wedges(factors: Tensor) -> Tensor:
    """Images (N, H, W) as bytes from position, size and rotation (N, 4), each in 0..1."""
    axis = (torch.arange(SIDE * FINE, dtype=torch.float64) + 0.5) / (SIDE * FINE)
    down, across = torch.meshgrid(axis, axis, indexing="ij")
    pictures = []
    for part in factors.split(256):
        x, y, size, turn = part.T[:, :, None, None]
        radius, angle = 0.16 + 0.12 * size, math.pi / 2 * turn
        right, low = across - (0.3 + 0.4 * x), down - (0.3 + 0.4 * y)  # (n, fine, fine)
        along = (angle.cos() * right + angle.sin() * low) / radius
        beside = (angle.cos() * low - angle.sin() * right) / radius
        inside = (along.abs() <= 1) & (beside.abs() <= 0.6 * (1 - along) / 2 + 0.08)
        cells = inside.double().unflatten(1, (SIDE, FINE)).unflatten(3, (SIDE, FINE))
        pictures.append((cells.mean((2, 4)) > 0.5).byte())
    return torch.cat(pictures)
