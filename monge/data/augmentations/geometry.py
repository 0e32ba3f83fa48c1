"""Random motions of the plane: each function is a value of data.augment.

Each returns n matrices (n, 3, 3) in homogeneous pixel coordinates relative to the centre of an
image, which map positions in the new image to positions in the old one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotate(n: int, most: float) -> Tensor:
    """Rotation by at most the given number of degrees either way (rotate10)"""
    angle = math.radians(most) * _either(n)
    motion = _identity(n)
    motion[:, 0, 0] = motion[:, 1, 1] = angle.cos()
    motion[:, 1, 0] = angle.sin()
    motion[:, 0, 1] = -angle.sin()
    return motion


def scale(n: int, most: float) -> Tensor:
    """Enlarged or shrunk by at most the given percentage (scale10)"""
    motion = _identity(n)
    motion[:, 0, 0] = motion[:, 1, 1] = (_either(n) * math.log1p(most / 100)).exp()
    return motion


def shift(n: int, most: float) -> Tensor:
    """Shift by at most the given number of whole pixels along each axis (shift2)"""
    motion = _identity(n)
    motion[:, :2, 2] = torch.randint(-int(most), int(most) + 1, (n, 2)).float()
    return motion


def flip(n: int) -> Tensor:
    """Horizontal flip with probability 1/2; for labels that it does not change"""
    motion = _identity(n)
    motion[:, 0, 0] = _sign(n)
    return motion


def flip_over(n: int) -> Tensor:
    """Vertical flip with probability 1/2; for labels that it does not change"""
    motion = _identity(n)
    motion[:, 1, 1] = _sign(n)
    return motion


def _identity(n: int) -> Tensor:
    return torch.eye(3).repeat(n, 1, 1)


def _either(n: int) -> Tensor:
    return 2 * torch.rand(n) - 1


def _sign(n: int) -> Tensor:
    return 1 - 2 * torch.randint(2, (n,)).float()
