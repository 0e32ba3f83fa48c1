r"""Gradients of expectations, $\nabla_\phi E_{q_\phi} f(z)$, from samples.

Differentiating f alone at fixed samples misses that the distribution moves. Two estimators do not:

    pathwise         z = g(eps, phi): E grad f(g(eps, phi)); f must be differentiable in z (the
                     posteriors of latent models, `vae`)
    score function   E [(f - b) grad log q(z)] + E grad f (Williams 1992); z may be discrete (the
                     sampled attention of `seq2seq hard=true hard_choice=sample`)

A baseline b that does not depend on z leaves the mean unchanged, since $E \nabla \log q = 0$, and
lowers the variance; the mean of the other samples of a row is one (Kool et al. 2019).
"""

from __future__ import annotations

from torch import Tensor

from ..core.errors import UsageError
from .distributions import pathwise as pathwise


def score_function(value: Tensor, log_prob: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """`value`, the f of samples, with the gradient of the score-function estimator added to its
    own; log_prob is log q of the samples, which must carry no gradient themselves.

    Examples
    --------
    >>> import torch
    >>> from monge.prob.gradient_estimators import score_function
    >>> logit = torch.zeros((), requires_grad=True)
    >>> z = torch.tensor([0.0, 1.0])  # both values, with their probabilities
    >>> q = torch.distributions.Bernoulli(logits=logit)
    >>> weights = q.log_prob(z).exp().detach()
    >>> (weights * score_function(3 * z, q.log_prob(z))).sum().backward()
    >>> round(logit.grad.item(), 6)  # of 3 sigmoid(logit)
    0.75
    """
    push = (value - baseline).detach() * log_prob
    return value + push - push.detach()


def leave_one_out(value: Tensor) -> Tensor:
    """The mean of the other samples of each row, (S, ...), a baseline for S of at least 2."""
    if len(value) < 2:
        raise UsageError(
            "expected at least 2 samples per row for a baseline of the others, found "
            f"{len(value)}; draw more, or use another baseline"
        )
    return ((value.sum(0) - value) / (len(value) - 1)).detach()
