r"""Identities of the two-player game $V(D) = E_{p_d}\log D + E_{p_g}\log(1 - D)$.

The losses are those that models are trained with. Critics have a file of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..core.abilities import HasDiscriminator
from ..core.batch import Batch
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space
from ..models.adversarial._losses import (
    discriminator_terms,
    divergence_bound,
    generator_terms,
    log_ratio,
    value,
)
from ..models.adversarial.pix2pix import Pix2Pix
from ..nn.mlp import MLP
from ..prob.divergence import jensen_shannon, kl, wasserstein
from ._helpers import gap, most, normal, relative
from .framework import Residual, SkipIdentity
from .subjects import build, random_rows

LOG4 = math.log(4)


def tables(count: int = 2, size: int = 7) -> Tensor:
    """Random probability tables without a rare entry, (count, size)."""
    weights = torch.full((size,), 5.0, dtype=torch.float64)
    return torch.distributions.Dirichlet(weights).sample((count,))


def game(p: Tensor, q: Tensor, d: Tensor) -> Tensor:
    """V of data p, model q and a table d of D, all (..., size), by the loss of a discriminator,
    which is -V / 2."""
    terms = discriminator_terms("minimax", d.logit(), d.logit())
    return -2 * (p * terms["real"] + q * terms["fake"]).sum(-1)


def lowered(parameters: Iterable[Tensor], loss: Callable[[], Tensor], steps: int = 50) -> None:
    """Bring a smooth loss to its end by L-BFGS."""
    optimiser = torch.optim.LBFGS(
        list(parameters),
        max_iter=steps,
        tolerance_grad=1e-13,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = loss()
        total.backward()
        return total

    with torch.enable_grad():
        for _ in range(3):
            optimiser.step(closure)


def x82_best_discriminator_is_the_share_of_data() -> Residual:
    """D* = p/(p+q) is stationary, and every change of it lowers V.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, prop. 1."""
    p, q = tables()
    best = p / (p + q)
    with torch.enable_grad():
        d = best.clone().requires_grad_()
        (slope,) = torch.autograd.grad(game(p, q, d), d)
    moved = (best + 0.1 * normal(1000, len(p))).clamp(1e-6, 1 - 1e-6)
    gain = game(p, q, moved) - game(p, q, best)
    return Residual(most(float(slope.abs().amax()), float(gain.amax())), 1e-13)


def x82_value_at_the_best_is_the_divergence() -> Residual:
    """V(D*) = -log 4 + 2 JS(p||q), and KL to p/(p+q) misses it.

    Examines: models.adversarial._losses, prob.divergence.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, sec. 4.1."""
    p, q = tables()
    best = game(p, q, p / (p + q))
    whole = -LOG4 + 2 * jensen_shannon(p, q)
    # Errata R14: the distributions are compared with their mean, not with the ratio p / (p + q).
    wrong = -LOG4 + kl(p, p / (p + q)) + kl(q, q / (p + q))
    missed = 0.0 if float((wrong - best).abs()) > 0.1 else 1.0
    return Residual(float((best - whole).abs()) + missed, 1e-13)


def x82_trained_discriminator_is_the_best_one() -> Residual:
    """Minimising our loss over tables gives (1-s) p/(p+q), converted to p/q.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, prop. 1; Salimans et al. 2016,
    Improved Techniques for Training GANs, sec. 3.4."""
    p, q = tables()
    worst = []
    for smooth in (0.0, 0.2):
        a = torch.zeros_like(p, requires_grad=True)

        def loss(a: Tensor = a, smooth: float = smooth) -> Tensor:
            terms = discriminator_terms("nonsaturating", a, a, smooth)
            return (p * terms["real"] + q * terms["fake"]).sum()

        lowered([a], loss)
        worst += [
            gap(torch.sigmoid(a), (1 - smooth) * p / (p + q)),
            gap(log_ratio("nonsaturating", a, smooth).exp(), p / q),
        ]
    return Residual(most(worst), 1e-4)


def x82_trained_discriminator_reads_the_ratio_of_gaussians() -> Residual:
    """Trained on two normals, D/(1-D) is the ratio of their densities.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, prop. 1; Sugiyama, Suzuki &
    Kanamori 2012, Density Ratio Estimation in Machine Learning."""
    x = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    first, second = (
        torch.distributions.Normal(torch.tensor(mean, dtype=torch.float64), std)
        for mean, std in ((0.5, 1.0), (-0.3, 1.4))
    )
    p, q = (distribution.log_prob(x).exp() * (x[1] - x[0]) for distribution in (first, second))
    features = torch.stack([torch.ones_like(x), x, x.square()], 1)  # (X, 3)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        terms = discriminator_terms("nonsaturating", features @ w, features @ w)
        return (p * terms["real"] + q * terms["fake"]).sum()

    lowered([w], loss)
    return Residual(
        gap((features @ w)[x.abs() < 3], (first.log_prob(x) - second.log_prob(x))[x.abs() < 3]),
        1e-5,
    )


def x83_least_value_is_minus_log_four() -> Residual:
    """min over q of V(D*) = -log 4, where q = p and D* = 1/2.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, theorem 1."""
    p, start = tables()
    logits = start.log().requires_grad_()

    def loss() -> Tensor:
        q = logits.softmax(0)
        return game(p, q, p / (p + q))

    lowered([logits], loss)
    q = logits.softmax(0)
    return Residual(most(abs(float(loss()) + LOG4), gap(q, p) ** 2), 1e-8)


def x84_gradients_at_the_best_discriminator() -> Residual:
    """At D*: grad E log(1-D) = grad 2 JS, grad E(-log D) = grad(KL - 2 JS).

    Examines: models.adversarial._losses, prob.divergence.

    Source: Arjovsky & Bottou 2017, Towards Principled Methods for Training GANs, sec. 2."""
    p, start = tables()
    with torch.enable_grad():
        logits = start.log().requires_grad_()
        q = logits.softmax(0)
        verdict = (p / q).log().detach()  # logit of D*, held fixed
        sides = {
            "minimax": (
                2 * (q * generator_terms("minimax", verdict)).sum(),
                2 * jensen_shannon(p, q),
            ),
            "nonsaturating": (
                2 * (q * generator_terms("nonsaturating", verdict)).sum(),
                kl(q, p) - 2 * jensen_shannon(p, q),
            ),
        }
        slopes = [
            [torch.autograd.grad(side, logits, retain_graph=True)[0] for side in pair]
            for pair in sides.values()
        ]
    return Residual(most(*(gap(left, right) for left, right in slopes)), 1e-12)


def x85_minimax_saturates_where_the_other_does_not() -> Residual:
    """At logit a = -12: d log(1-D)/da = -6e-6, d(-log D)/da = -1.

    Examines: models.adversarial._losses.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, sec. 3."""
    with torch.enable_grad():
        a = torch.tensor(-12.0, dtype=torch.float64, requires_grad=True)
        (flat,) = torch.autograd.grad(2 * generator_terms("minimax", a), a)
        (steep,) = torch.autograd.grad(2 * generator_terms("nonsaturating", a), a)
    share = 1 / (1 + math.exp(12.0))
    return Residual(most(abs(float(flat) + share), abs(float(steep) + 1 - share)), 1e-12)


def x86_loss_is_the_cross_entropy_of_a_balanced_batch() -> Residual:
    """Half real, half fake: cross entropy = J_D = -V/2 = -J_G of minimax.

    Examines: models.adversarial._losses.

    Source: Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks, sec. 3.2."""
    real, fake = normal(2, 50)
    terms = discriminator_terms("minimax", real, fake)
    own = float(sum(term.mean() for term in terms.values()))
    labels = torch.cat([torch.ones(50), torch.zeros(50)]).double()
    entropy = nn.functional.binary_cross_entropy_with_logits(torch.cat([real, fake]), labels)
    rival = float(generator_terms("minimax", fake).mean() - terms["real"].mean())
    return Residual(
        most(abs(own - float(entropy)), abs(own + float(value(real, fake)) / 2), abs(own + rival)),
        1e-13,
    )


def x86_a_models_loss_is_its_value(model: HasDiscriminator, batch: Batch) -> Residual:
    """The loss of the discriminator is -V/2 of its outputs.

    Source: Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks, sec. 3.2."""
    assert isinstance(model, Model)
    chosen = model.config.to_dict()
    if chosen.get("label_smoothing") or chosen["game"] in ("squares", "hinge"):
        raise SkipIdentity("its labels are not 0 and 1, or its loss is no cross entropy")
    torch.manual_seed(1)
    losses = next(update for update in model.updates() if update.params).loss(batch)
    torch.manual_seed(1)
    whole = float(value(*model.logits(batch)))
    return Residual(abs(float(losses["real"].mean() + losses["fake"].mean()) + whole / 2), 1e-12)


def x82_bound_of_the_divergence_stays_below_log_two(
    model: HasDiscriminator, batch: Batch
) -> Residual:
    """(V + log 4)/2 never exceeds log 2, the largest JS.

    Source: Goodfellow et al. 2014, Generative Adversarial Nets, sec. 4.1; Lin 1991, Divergence
    Measures Based on the Shannon Entropy."""
    torch.manual_seed(1)
    bound = float(divergence_bound(*model.logits(batch)))
    return Residual(bound - math.log(2), 0.0)


def x87_only_transport_sees_how_far_supports_are() -> Residual:
    """Parallel lines at t: JS = log 2 whatever t, W1 = |t| with slope sign t.

    Examines: prob.divergence.

    Source: Arjovsky, Chintala & Bottou 2017, Wasserstein GAN, example 1."""
    worst = 0.0
    spots = torch.rand(6, 1, dtype=torch.float64)
    for t in (-1.5, -0.2, 0.3, 2.0):
        with torch.enable_grad():
            shift = torch.tensor(t, dtype=torch.float64, requires_grad=True)
            far = torch.cat([shift.expand(6, 1), spots], 1)
            distance = wasserstein(torch.cat([torch.zeros(6, 1), spots], 1).double(), far)
            (slope,) = torch.autograd.grad(distance, shift)
        apart = torch.eye(2, dtype=torch.float64)  # which line a point lies on
        js = jensen_shannon(apart[0], apart[1])
        worst = max(
            worst,
            abs(float(js) - math.log(2)),
            abs(float(distance) - abs(t)),
            abs(float(slope) - math.copysign(1, t)),
            0.0 if math.isinf(float(kl(apart[0], apart[1]))) else 1.0,
        )
    return Residual(worst, 1e-12)


def x90_latent_arithmetic_is_exact_for_a_linear_generator() -> Residual:
    """G(z1 - z2 + z3) = G(z1) - G(z2) + G(z3) if G is linear.

    Examines: nn.mlp.

    Source: Radford, Metz & Chintala 2016, Unsupervised Representation Learning with DCGANs, sec.
    6.3."""
    linear: MLP = MLP.Config(depth=0).build(4, 6).double()
    z = normal(3, 4)
    x = linear(z)
    return Residual(gap(linear(z[0] - z[1] + z[2]), x[0] - x[1] + x[2]), 1e-14)


def x90_absolute_error_is_least_at_the_median() -> Residual:
    """The L1 term of pix2pix is least at the median of the targets.

    Examines: models.adversarial.pix2pix.

    Source: Hastie, Tibshirani & Friedman 2009, The Elements of Statistical Learning, sec. 2.4;
    Isola et al. 2017, Image-to-Image Translation with Conditional Adversarial Networks, sec.
    3.1."""
    image = Space(kind="real", shape=(1, 4, 4), mean=(0.0,), scale=(1.0,))
    space = replace(image, given={"source": replace(image, name="source")})
    model = build(Pix2Pix.smallest_config(space), space)
    assert isinstance(model, Pix2Pix)
    y = normal(301, 1, 1, 1).exp()
    batch = Batch(y.expand(-1, 1, 4, 4), {"source": Batch(normal(301, 1, 4, 4))})
    errors = []
    grid = torch.linspace(-0.2, 0.2, 41, dtype=torch.float64) + y.median()
    for c in grid:
        model.generate = lambda x, c=c: c.expand_as(x)  # type: ignore
        errors.append(model.generator_loss(batch)["l1"].mean())
    found = torch.stack(errors)
    due = model.config.weight * (y.flatten()[:, None] - grid).abs().mean(0)
    return Residual(
        most(abs(float(grid[found.argmin()] - y.median())), relative(found, due)), 1e-6
    )


def x82_a_discriminator_of_pairs_reads_the_source(model: Pix2Pix, batch: Batch) -> Residual:
    """D(x, y) of a pair changes with x: 1e-6 over the change of its logits.

    Source: Isola et al. 2017, Image-to-Image Translation with Conditional Adversarial Networks,
    sec. 3.4."""
    y = model.real(batch)
    x = model.sources(batch.given, len(batch))
    other = model.sources(random_rows(model.space, len(batch), make_generator(3)).given, len(x))
    change = gap(model.discriminate(x, y), model.discriminate(other, y))
    return Residual(1e-6 / max(change, 1e-12), 1.0)
