r"""InfoNCE: contrastive losses that bound mutual information.

One of N candidates, the positive, is sampled jointly with x, the others independently. With
scores s,
$L = -E \log \frac{e^{s(x, y)}}{\sum_j e^{s(x, y_j)}}$, and $\log N - L \le I(x; y)$ for every s,
so L cannot fall below $\log N - I$; at most $\log N$ nats can be measured (van den Oord, Li &
Vinyals 2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(scores: Tensor) -> Tensor:
    """-log p of the positive of each row, the diagonal of scores (N, M), M >= N; (N,)."""
    return scores.logsumexp(1) - scores.diagonal()


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """InfoNCE of two views (N, D) of the same N rows, by the cosine of their codes over a
    temperature; every other view of the batch is a candidate (Chen et al. 2020), (N,)."""
    n = len(one)
    z = F.normalize(torch.cat([one, two]), dim=1)  # (2N, D)
    scores = z @ z.T / temperature
    scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -torch.inf)
    return (
        info_nce(scores.roll(n, 1)).reshape(2, n).mean(0)
    )  # the roll puts positives on the diagonal
