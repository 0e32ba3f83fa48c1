r"""Which rows are unlike the data of a model: scores, and how well they separate two sets of rows.

A likelihood alone can fail: pictures of one colour are more likely than the pictures a model was
trained on, since an entry that is easy to predict costs little whatever it means (Nalisnick et al.
2019a). Three corrections are common: a ratio to what the row costs a model of the background or a
compressor of files (Ren et al. 2019; Serrà et al. 2020), the distance of the likelihood from its
mean, as typical rows are those with the usual value and not the highest (Nalisnick et al. 2019b),
and the Mahalanobis distance from the data (Lee et al. 2018). Every score here is larger for rows
that are less like the data.
"""

from __future__ import annotations

import io
import math
import zlib

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from ..core.metric import Metric

Scores = NDArray[np.float64]
RIDGE = 1e-3
"""Share of the mean variance that is added to every variance, so that a constant entry counts."""
FOUND = 0.95
"""Share of the other rows that a threshold has to find where false alarms are counted."""


def auroc(inside: Scores, outside: Scores) -> Metric:
    """The probability that a row outside has the larger score, ties counting half, and its
    standard error (DeLong, DeLong & Clarke-Pearson 1988)."""
    above = placements(outside, inside)  # (m,): share of the rows inside below each row outside
    below = 1 - placements(inside, outside)  # (n,): share of the rows outside above each inside
    variance = sum(
        each.var(ddof=1) / len(each) if len(each) > 1 else math.nan for each in (above, below)
    )
    return Metric(float(above.mean()), "estimate", math.sqrt(variance), "AUROC")


def placements(values: Scores, others: Scores) -> Scores:
    """The share of `others` below each value, those equal to it counting half."""
    others = np.sort(others)
    low, high = (np.searchsorted(others, values, side) for side in ("left", "right"))
    return (low + high) / (2 * len(others))


def false_alarms(inside: Scores, outside: Scores) -> float:
    """The share of the rows inside above the threshold that finds 95 % of those outside."""
    missed = math.floor(len(outside) * (1 - FOUND) + 1e-9)  # rows that need not be found
    return float((inside >= np.sort(outside)[missed]).mean())


def p_values(inside: Scores, scores: Scores) -> Scores:
    """How probable a score as large is for a row inside, at least 1 / (n + 1)."""
    ordered = np.sort(inside)
    larger = len(ordered) - np.searchsorted(ordered, scores, "left")
    return (1 + larger) / (1 + len(ordered))


def mahalanobis(reference: Scores, rows: Scores) -> Scores:
    """Distances of rows (N, F) from the mean of the reference (M, F) in units of its
    covariance."""
    centre = reference.mean(0)
    covariance = np.atleast_2d(np.cov(reference.T, bias=True))
    ridge = RIDGE * max(float(np.trace(covariance)) / len(covariance), 1e-12)
    root = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    return np.linalg.norm(solve_triangular(root, (rows - centre).T, lower=True), axis=0)


def compressed_nats(pictures: NDArray[np.uint8]) -> Scores:
    """What each row (N, C, H, W) or (N, D) of bytes costs a compressor of files: PNG for pictures
    of one or three colours, deflate for others; nats."""
    return np.array([8 * math.log(2) * len(compressed(each)) for each in pictures])


def compressed(row: NDArray[np.uint8]) -> bytes:
    if row.ndim != 3 or len(row) not in (1, 3):
        return zlib.compress(row.tobytes(), 9)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(row[0] if len(row) == 1 else np.moveaxis(row, 0, -1)).save(
        file, "png", optimize=True
    )
    return file.getvalue()
