r"""A small feature network, trained on the training rows, for Fréchet and kernel distances.

Fréchet and kernel distances of images are commonly computed in the features of Inception, which
was trained on photographs. This network is trained on the training rows themselves. If the data
have a label outside the event, it predicts the label; otherwise it denoises rows, and the best
denoiser $E[x \mid y] = y + \sigma^2 \nabla \log p_\sigma(y)$, $y = x + \sigma n$, depends on the
data density (Miyasawa 1961, Vincent 2011). Its distances compare models of one dataset with each
other, and with nothing else.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.batch import Batch
from ..core.model import new_optimiser, take_step
from ..core.space import Space
from ..nn.inputs.features import Features
from ..nn.layers.specs import (
    ActivationSpec,
    ConvSpec,
    DenseSpec,
    FlattenSpec,
    LayerSpec,
    Shape,
    StackSpec,
)
from .likelihood import HeldOutRows, chunks

NETWORK = "features/1"
"""Version of the architecture in a saved file; increase it when `architecture` changes."""
WIDTH = 64
"""Number of features."""
SMALL, SIDE = 4, 32
"""Smallest side in pixels of images that are convolved, and the side that they are reduced to."""
STEPS, BATCH, RATE, DECAY = 500, 64, 2e-3, 0.01
EPOCHS = 40
"""Most epochs of training; more would overfit few rows."""
ENTRIES = STEPS * SIDE * SIDE * 3
"""Most numbers per row over all steps: long rows are trained on for fewer steps."""
NOISE = 0.5
"""Sigma of the noise, in standard deviations of the data."""
MEASURED = 2000
"""Training rows over which the features are standardised."""


class FeatureNet(nn.Module):
    """x -> h(x), 64 features standardised over training rows; in training a linear map of a(h(x))
    predicts one of `classes`, or x itself without them."""

    mean: Tensor
    scale: Tensor

    def __init__(self, space: Space, classes: int = 0) -> None:
        super().__init__()
        self.space, self.classes = replace(space, given={}), classes
        self.read = Features(self.space)
        self.shape: Shape = (self.read.width,)
        if space.is_image:
            self.shape = (space.shape[0], *(min(side, SIDE) for side in space.shape[1:]))
        self.body = architecture(self.shape).build(self.shape)
        self.head = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, classes or math.prod(self.shape)))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH))

    def prepare(self, batch: Batch) -> Tensor:  # (B, *shape)
        seen = self.read(batch)
        if not self.space.is_image:
            return seen
        _, height, width = self.shape
        return F.adaptive_avg_pool2d(seen.unflatten(1, self.space.shape), (height, width))

    @torch.no_grad()
    def forward(self, batch: Batch) -> Tensor:  # (B, 64)
        parts = [
            (self.body(self.prepare(part)) - self.mean) / self.scale
            for part in batch.chunk(-(-len(batch) // MEASURED))
        ]
        return torch.cat(parts).double()

    def loss(self, batch: Batch, names: Tensor | None) -> Tensor:
        x = self.prepare(batch)
        if names is not None:
            return F.cross_entropy(self.head(self.body(x)), names)
        answer = self.head(self.body(x + NOISE * torch.randn_like(x)))
        return (answer - x.flatten(1)).square().mean()

    @torch.no_grad()
    def accuracy(self, rows: HeldOutRows, names: Tensor) -> float:
        """The share of rows whose label, if known (not below 0), is predicted correctly."""
        predicted = torch.cat(
            [self.head(self.body(self.prepare(part))).argmax(1) for part in chunks(rows)]
        )
        return float((predicted == names)[names >= 0].double().mean())


def architecture(shape: Shape) -> StackSpec:
    """The layers of the network: convolutions for images, dense layers for other rows."""
    layers: list[LayerSpec] = [FlattenSpec()]
    for width in (2 * WIDTH, 2 * WIDTH):
        layers += [DenseSpec(width), ActivationSpec("silu")]
    if len(shape) == 3 and min(shape[1:]) >= SMALL:
        layers = [
            ConvSpec(16, 3, 2),
            ActivationSpec("silu"),
            ConvSpec(32, 3, 2),
            ActivationSpec("silu"),
            FlattenSpec(),
        ]
    return StackSpec((*layers, DenseSpec(WIDTH)))


def train_feature_net(
    space: Space, rows: HeldOutRows, names: Tensor | None = None, classes: int = 0, seed: int = 0
) -> FeatureNet:
    """Train the network on the rows and their labels (n,), if any (negative if unknown); the
    result depends only on these and the seed."""
    known = torch.arange(len(rows)) if names is None else (names >= 0).nonzero()[:, 0]
    steps = min(STEPS, -(-EPOCHS * len(known) // BATCH), max(ENTRIES // max(space.dims, 1), 1))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        net = FeatureNet(space, classes if names is not None else 0)
        adam = new_optimiser(
            torch.optim.AdamW, net.parameters(), RATE, weight_decay=DECAY, fused=True
        )
        for _ in range(steps):
            pick = known[torch.randint(len(known), (BATCH,))]
            net.zero_grad()
            net.loss(rows.batch(pick), None if names is None else names[pick]).backward()
            take_step(adam)
    return standardised(net.eval(), rows)


def standardised(net: FeatureNet, rows: HeldOutRows) -> FeatureNet:
    """The same network with features standardised over these rows."""
    some = torch.linspace(0, len(rows) - 1, min(len(rows), MEASURED)).long()
    found = net(rows.batch(some))
    net.mean, net.scale = found.mean(0).float(), found.std(0).clamp_min(1e-6).float()
    return net
