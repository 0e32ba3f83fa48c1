"""Identities of image GANs: how a discriminator reads conditions, augmentation, truncation, style.

The classes and functions are those that models are built from.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.space import Space
from ..models._generator import truncate
from ..models.adversarial._conditioning import AuxiliaryConditioning, ProjectionConditioning
from ..models.adversarial._image_generators import ModulatedConv, StyleGenerator
from ..models.adversarial._losses import discriminator_terms
from ..models.adversarial.dcgan import DCGAN
from ..nn.inputs.features import Conditions
from ._helpers import gap, most, normal
from .adversarial import lowered
from .framework import Residual
from .subjects import build

CLASSES = 3
GIVEN = Space(
    kind="real",
    shape=(1, 4, 4),
    given={"label": Space(kind="label", size=CLASSES, name="label")},
)
MAX_STANDARD_ERRORS = 5.5
"""Standard errors by which one of some hundred means may be off."""


def x136_a_projection_reads_the_ratio_of_class_conditionals() -> Residual:
    """Normals of data and model in each class: a(x, y) = log p(x|y)/q(x|y).

    Examines: models.adversarial._conditioning.

    Source: Miyato & Koyama 2018, cGANs with Projection Discriminator, sec. 3."""
    x = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    means = normal(2, CLASSES, 1)
    logs = -(x - means).square() / 2 - math.log(2 * math.pi) / 2  # (2, classes, X)
    p, q = (logs.exp() * (x[1] - x[0]) / CLASSES).unbind()
    reader = ProjectionConditioning.Config().build(Conditions(GIVEN), GIVEN)
    features = torch.stack([torch.ones_like(x), x], 1)  # the last map h, (X, 2)
    weight = torch.zeros(1 + reader.outputs, 2, dtype=torch.float64, requires_grad=True)

    def logits() -> Tensor:  # (classes, X)
        one = torch.eye(CLASSES, dtype=torch.float64)
        return torch.stack([reader.logit(features @ weight.T, y.expand(len(x), -1)) for y in one])

    def loss() -> Tensor:
        terms = discriminator_terms("nonsaturating", logits(), logits())
        return (p * terms["real"] + q * terms["fake"]).sum()

    lowered([weight], loss, steps=100)
    near = x.abs() < 3
    return Residual(gap(logits()[:, near], (logs[0] - logs[1])[:, near]), 1e-4)


def x137_the_best_class_head_mixes_data_and_model() -> Residual:
    """C* = (p(x,y) + q(x,y))/(p(x) + q(x)); if q = p, -E log C* = H(y|x).

    Examines: models.adversarial._conditioning.

    Source: Odena, Olah & Shlens 2017, Conditional Image Synthesis with Auxiliary Classifier GANs,
    sec. 4; Shu, Bui & Ermon 2017, AC-GAN Learns a Biased Distribution, sec. 2."""
    reader = AuxiliaryConditioning.Config().build(Conditions(GIVEN), GIVEN)
    one, size = torch.eye(CLASSES, dtype=torch.float64), 5
    p, q = torch.distributions.Dirichlet(torch.full((CLASSES * size,), 5.0).double()).sample((2,))
    p, q = p.reshape(CLASSES, size), q.reshape(CLASSES, size)
    worst = []
    for other in (q, p):
        out = torch.zeros(size, 1 + reader.outputs, dtype=torch.float64, requires_grad=True)

        def charged(mass: Tensor, out: Tensor = out) -> Tensor:
            """E -log C / 2 of a table of x and y."""
            each = [reader.class_loss(out, y.expand(size, -1)) for y in one]
            return (mass * torch.stack(each)).sum()

        def loss(other: Tensor = other) -> Tensor:
            return charged(p) + charged(other)

        lowered([out], loss, steps=100)
        due = (p + other) / (p + other).sum(0)
        entropy = -(p * (p / p.sum(0)).log()).sum()
        worst.append(gap(out[:, 1:].softmax(1).T, due))
        worst += [] if other is q else [abs(float(2 * charged(p)) - float(entropy))]
    return Residual(most(worst), 1e-6)


def x137_both_players_are_charged_for_labels() -> Residual:
    """The losses of both players hold -log C(y|G(z))/2 at their fake rows.

    Examines: models.adversarial.dcgan.

    Source: Odena, Olah & Shlens 2017, Conditional Image Synthesis with Auxiliary Classifier GANs,
    sec. 4."""
    model = build(DCGAN.Config(latent=2, width=4).override("conditioning=auxiliary"), GIVEN)
    assert isinstance(model, DCGAN)
    labels = torch.arange(12) % CLASSES
    batch = Batch(normal(12, 1, 4, 4), {"label": Batch(labels)})
    outs: list[Tensor] = []
    hook = model.discriminator.register_forward_hook(
        lambda net, inputs, out: outs.append(out.flatten(1))
    )
    losses = model.discriminator_loss(batch) | model.generator_loss(batch)
    hook.remove()
    names = ("real_class", "fake_class", "class_loss")
    worst = []
    for name, out in zip(names, outs, strict=True):
        due = F.cross_entropy(out[:, 1:], labels, reduction="none") / 2
        worst.append(gap(losses[name], due) if name in losses else math.inf)
    return Residual(most(worst), 1e-12)


def x138_truncated_noise_is_normal_between_its_ends() -> Residual:
    """Truncated noise has the distribution function of N(0, 1) cut at 2 psi.

    Examines: models._generator.

    Source: Brock, Donahue & Simonyan 2019, Large Scale GAN Training for High Fidelity Natural
    Image Synthesis, sec. 3.1; Robert 1995, Simulation of Truncated Normal Variables, sec. 2."""
    z = torch.linspace(-6, 6, 241, dtype=torch.float64)
    worst = [gap(truncate(z, 1.0), z)]
    for psi in (0.05, 0.5, 0.99):
        end = torch.tensor(2 * psi, dtype=torch.float64)
        low, high = torch.special.ndtr(-end), torch.special.ndtr(end)
        found = (torch.special.ndtr(truncate(z, psi)) - low) / (high - low)
        worst.append(gap(found, torch.special.ndtr(z)))
    return Residual(most(worst), 1e-12)


def x139_demodulated_weights_have_unit_norm() -> Residual:
    """Weights of an output map have norm 1 for every style, by impulses.

    Examines: models.adversarial._image_generators.

    Source: Karras et al. 2020, Analyzing and Improving the Image Quality of StyleGAN, sec. 2.2,
    eq. 1 to 3."""
    conv = ModulatedConv(4, 3, 5, 3, True).double()
    impulses = torch.zeros(3, 3, 5, 5, dtype=torch.float64)
    impulses[torch.arange(3), torch.arange(3), 2, 2] = 1  # one of each input map
    worst = []
    for size in (0.1, 1.0, 10.0):
        style = size * normal(1, 4)
        weights = conv.modulated(impulses, style.expand(3, -1))  # (inputs, outputs, 5, 5)
        due = conv.weight * conv.scales(style)[0][:, None, None]  # (outputs, inputs, 3, 3)
        due = due / due.flatten(1).norm(dim=1)[:, None, None, None]
        seen = weights[:, :, 1:4, 1:4].flip(2, 3).transpose(0, 1)
        worst += [
            gap(weights.square().sum((0, 2, 3)), torch.ones(5, dtype=torch.float64)),
            gap(seen, due),
        ]
    return Residual(most(worst), 1e-5)


def x139_a_truncated_style_keeps_its_mean() -> Residual:
    """w' = m + psi (w - m): styles keep their mean, deviations times psi.

    Examines: models.adversarial._image_generators.

    Source: Karras, Laine & Aila 2019, A Style-Based Generator Architecture for Generative
    Adversarial Networks, appendix B."""
    config = StyleGenerator.Config()
    net: StyleGenerator = config.build(3, 2, (1, 4, 4), 4, 1, False, "auto").double()
    seen: list[Tensor] = []
    first = net.convs[0]
    assert isinstance(first, nn.Module)
    hook = first.register_forward_hook(lambda conv, inputs, out: seen.append(inputs[1]))
    z, context = normal(50, 3 + net.noise), normal(1, 2).expand(50, -1)
    for psi in (1.0, 0.3):
        net(z, context, psi)
    hook.remove()
    whole, cut = seen
    mean = net.mean_style(context)
    return Residual(most(gap(cut - mean, 0.3 * (whole - mean)), gap(mean[:1], mean)), 1e-12)


def x140_equal_distributions_stay_equal_under_augmentation() -> Residual:
    """If G(z) ~ x, then T(G(z)) ~ T(x): moments of pixels, standard errors.

    Examines: models.adversarial.dcgan.

    Source: Zhao et al. 2020, Differentiable Augmentation for Data-Efficient GAN Training, sec.
    3.2."""
    space = Space(kind="real", shape=(1, 6, 6))
    settings = ("augment=colour,translation,cutout", "augment_probability=0.8")
    model = build(DCGAN.Config(latent=2, width=2).override(*settings), space)
    assert isinstance(model, DCGAN)
    fake, batch = normal(4000, 36) + 1, Batch(normal(4000, 1, 6, 6) + 1)
    model.generate = lambda z, context, truncation=1.0: fake  # type: ignore
    seen: list[Tensor] = []
    hook = model.discriminator.register_forward_hook(
        lambda net, inputs, out: seen.append(inputs[0].flatten(1))
    )
    model.discriminator_loss(batch)
    model.generator_loss(batch)
    hook.remove()
    real, *others = [torch.cat([x, x.square()], 1) for x in seen]
    errors = [
        (real.mean(0) - other.mean(0)).abs()
        / ((real.var(0) + other.var(0)) / len(real)).sqrt().clamp_min(1e-12)
        for other in others
    ]
    return Residual(most(float(error.amax()) for error in errors), MAX_STANDARD_ERRORS)


def x140_augmentation_passes_gradients_on() -> Residual:
    """The slope of D(T(x)) at x is that of differences, and not 0.

    Examines: models.adversarial.dcgan.

    Source: Zhao et al. 2020, Differentiable Augmentation for Data-Efficient GAN Training, sec.
    3.2."""
    space = Space(kind="real", shape=(1, 6, 6))
    config = DCGAN.Config(latent=2, width=4).override("augment=colour,translation,cutout")
    model = build(config, space)
    assert isinstance(model, DCGAN)
    y, direction, nothing = normal(8, 36), normal(8, 36), torch.zeros(8, 0, dtype=torch.float64)

    def seen(x: Tensor) -> Tensor:
        torch.manual_seed(2)
        return model.discriminate(x, nothing).sum()

    with torch.enable_grad():
        point = y.clone().requires_grad_()
        (slope,) = torch.autograd.grad(seen(point), point)
    step = 1e-5
    found = (seen(y + step * direction) - seen(y - step * direction)) / (2 * step)
    due = (slope * direction).sum()
    flat = 1.0 if bool((slope == 0).all(1).any()) else 0.0
    return Residual(float((found - due).abs() / slope.norm()) + flat, 1e-5)
