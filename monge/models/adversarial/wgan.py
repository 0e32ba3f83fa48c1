r"""Wasserstein GAN (WGAN): generator trained against a Lipschitz critic that estimates W_1

The critic f raises $E f(x) - E f(G(z)) \le \sup_{|f|_L \le K} (E f(x) - E f(G(z))) = K\,W_1$, the
generator lowers $-E f(G(z))$. f is unbounded, a score and no probability. What is measured is
$W_1$ up to K: near 1 under the gradient penalty, unknown under weight clipping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import CanDiagnose, Finding, Given, HasCritic
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.layers.init import Init
from ...nn.mlp import MLP
from .._generator import CHOSEN_KINDS, MLPGeneratorModel, default_share_weight
from ._base import MONITOR_EVERY, OPTIMAL_VALUES, check_rows, single_class
from ._convnets import ConditionMaps, critic_convnet, depth_for, upsampler
from ._lipschitz import (
    Clipping,
    Constraint,
    Layers,
    Penalty,
    gradient_norms,
    interpolate,
    lipschitz_bound,
)

STEEP_ACTIVATIONS = ("gelu", "silu", "selu", "prelu")
"""Activations whose slope exceeds 1 somewhere, or can."""
MIN_MEDIAN_GRADIENT, MAX_GRADIENT = 0.05, 5.0
"""Gradient norms of a critic, median and largest, beyond which it misleads the generator."""


class WGAN(MLPGeneratorModel, HasCritic, CanDiagnose):
    """x = G(z, given) with z ~ N(0, I): an implicit distribution trained on the distance W_1.

    Both networks use standardised coordinates: reals standardised, levels dequantised and scaled
    to [-1, 1]; the inverse map ends the generator, so that samples are levels again
    (Arjovsky, Chintala & Bottou 2017; penalty: Gulrajani et al. 2017).
    """

    events = {"real", "levels", "binary", "label", "counts", "columns"}
    family_priority = 1
    optimal_values = OPTIMAL_VALUES

    class Config(MLPGeneratorModel.Config):
        tag = "model/adversarial.wgan"
        critic: MLP.Config = MLP.Config(width=256, depth=3, activation="leaky")
        """Critic network; no residual connections, and no activation steeper than 1."""
        constraint: Constraint.Config = Penalty.Config()
        """Lipschitz constraint of the critic: penalty, clipping or spectral."""
        image_net: Literal["mlp", "conv"] = "mlp"
        """Networks of images: MLPs, or transposed convolutions (with batch norm) against strided
        ones (without), as in dcgan."""
        width: Annotated[int, Range(1)] = 32
        """image_net=conv: channels at half resolution; each halving doubles them."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """image_net=conv: number of downsampling steps; 0 downsamples to about 4 pixels."""
        init: Init = "auto"
        """image_net=conv: initial weights: by the activation (he, xavier, orthogonal), small,
        torch's own, or auto: N(0, 0.02^2) in the generator, torch's in the critic."""
        critic_steps: Annotated[int, Range(1)] = 5
        """Critic updates per generator update."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.critic.residual:
                raise UsageError(
                    "critic.residual=true makes the critic's slope more than the "
                    "product of its layers'; leave it false"
                )
            if self.critic.activation in STEEP_ACTIVATIONS:
                raise UsageError(
                    f"critic.activation={self.critic.activation} is steeper than 1; "
                    "choose relu or leaky"
                )

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.critic, self.layers = self.build_critic()
        self.constraint: Constraint = config.constraint.build()
        self.constraint.bind(self.layers)

    @property
    def convolves(self) -> bool:
        return self.config.image_net == "conv" and self.space.is_image

    def build_generator(self, inputs: int) -> nn.Module:
        if not self.convolves:
            return super().build_generator(inputs)
        channels, *sides = self.space.shape
        depth = self.config.depth or depth_for(sides)
        width, init = self.config.width, self.config.init
        return upsampler(inputs, channels, sides, width, depth, bounded=False, init=init)

    def build_critic(self) -> tuple[nn.Module, Layers]:
        """The critic and its linear maps."""
        if not self.convolves:
            inputs = self.coordinates.width + self.conditions.width
            net: MLP = self.config.critic.build(inputs, 1)
            return net, net.linears
        channels, *sides = self.space.shape
        self.maps = ConditionMaps(self.conditions, self.space)
        depth = self.config.depth or depth_for(sides)
        width, init = self.config.width, self.config.init
        return critic_convnet(channels + self.maps.channels, sides, width, depth, init)

    def loss(self, batch: Batch) -> Losses:
        """The critic minimises f(fake) - f(real) plus its penalty, the generator -f(fake)."""
        return self.critic_loss(batch) | self.generator_loss(batch)

    def updates(self) -> Sequence[Update]:
        critic, generator = list(self.critic.parameters()), list(self.generator.parameters())
        clip = [Update("clip", self.clip)] if isinstance(self.constraint, Clipping) else []
        return [
            Update("critic", self.critic_update, critic, repeat=self.config.critic_steps),
            *clip,
            Update("generator", self.generator_loss, generator),
            Update("watch", self.monitor, every=MONITOR_EVERY),
        ]

    def critic_update(self, batch: Batch) -> Losses:
        # Weights are clipped after every critic update (algorithm 1): here before the next one,
        # and the last by an update of its own.
        check_rows(self, batch)
        self.constraint.project(self.critic.parameters())
        return self.critic_loss(batch)

    def critic_loss(self, batch: Batch) -> Losses:
        real, fake, context = self.points(batch)
        terms = self.constraint.terms(lambda y: self.criticise_points(y, context), real, fake)
        return {"gap": self.gap(real, fake, context), **terms}

    def generator_loss(self, batch: Batch) -> Losses:
        context = self.context(batch.given, len(batch))
        z = self.noise(len(batch))
        fake = self.generate(z, context)
        return {"fake": -self.criticise_points(fake, context)} | self.share_losses(z, context)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x = G(z, given) with z ~ N(0, I)."""
        z = self.noise(n, generator)  # (n, latent)
        y = self.generate(z, self.context(given or {}, n), self.truncation(options))  # (n, D)
        return self.sample_event(y, generator)

    def clip(self, batch: Batch) -> Losses:
        return self.constraint.project(self.critic.parameters())

    def monitor(self, batch: Batch) -> Losses:
        """The critic's estimate of W_1 in standardised coordinates, up to the K of its constraint,
        with a lower and an upper bound of K."""
        return {
            "wasserstein": self.estimate_distance(batch),
            "max_gradient": self.gradient_norms(batch).amax(),
            "lipschitz_bound": lipschitz_bound(self.critic_layers()),
        }

    def estimate_distance(self, batch: Batch) -> Tensor:
        return -self.gap(*self.points(batch)).mean()

    def gradient_norms(self, batch: Batch) -> Tensor:
        """|grad f| between real and fake points, (B,)."""
        real, fake, context = self.points(batch)
        return gradient_norms(lambda y: self.criticise_points(y, context), interpolate(real, fake))

    def points(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Real and fake points (B, D) with the conditions they share (B, C)."""
        context = self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        return self.real(batch), fake, context

    def gap(self, real: Tensor, fake: Tensor, context: Tensor) -> Tensor:
        """f(fake) - f(real), (B,)."""
        both = self.criticise_points(torch.cat([fake, real]), context.repeat(2, 1))
        return both[: len(fake)] - both[len(fake) :]

    def criticise(self, batch: Batch) -> Tensor:
        """f(y), whose slope in y is at most the product of the layers' norms."""
        y = self.coordinates.to_network(batch.x.to(self.coordinates.shift.dtype), dequantise=False)
        return self.criticise_points(y, self.context(batch.given, len(batch)))

    def criticise_points(self, y: Tensor, context: Tensor) -> Tensor:
        if self.convolves:
            image = self.maps.beside(y.unflatten(1, self.space.shape), context)
            return self.critic(image).flatten()  # (B,)
        return self.critic(torch.cat([y, context], 1))[:, 0]  # (B,)

    def outputs(self, z: Tensor, context: Tensor) -> Tensor:
        if not self.convolves:
            return super().outputs(z, context)
        return self.generator(torch.cat([z, context], 1)[:, :, None, None]).flatten(1)

    def critic_layers(self) -> Layers:
        return self.layers

    def diagnose(self, batch: Batch) -> list[Finding]:
        slope = self.gradient_norms(batch)
        typical, most = float(slope.median()), float(slope.amax())
        if typical < MIN_MEDIAN_GRADIENT:
            return [
                Finding(
                    "flat critic",
                    f"its slope between data and samples is {typical:.1e}, "
                    "so hardly any gradient reaches the generator",
                    self.constraint.remedy,
                )
            ]
        if most > MAX_GRADIENT:
            return [
                Finding(
                    "steep critic",
                    f"its slope between data and samples reaches "
                    f"{most:.1f}, so its distance is not W_1",
                    self.constraint.remedy,
                )
            ]
        return []

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        return single_class("wgan", space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: evaluate rarely, without early stopping.
        train_config = TrainConfig(
            lr=1e-3, betas=(0.0, 0.9), batch_size=128, ema_decay=0.999, eval_every=500, patience=0
        )
        if space.kind in CHOSEN_KINDS:
            net = MLP.Config(width=256, depth=3, residual=True)
            config = cls.Config(
                generator=net, critic_steps=3, share_weight=default_share_weight(space)
            )
            return Defaults(config, replace(train_config, lr=5e-4, batch_size=256))
        if space.dims <= 32:
            # In few dimensions a strict slope of 1 between modes costs modes.
            net = MLP.Config(width=128, depth=3, activation="relu")
            critic = MLP.Config(width=128, depth=3, activation="leaky")
            config = cls.Config(
                latent=max(space.dims, 2),
                generator=net,
                critic=critic,
                constraint=Penalty.Config(weight=1.0),
            )
            return Defaults(config, replace(train_config, batch_size=256))
        net = MLP.Config(width=256, depth=3, activation="silu", residual=True)
        config = cls.Config(generator=net, critic_steps=3)
        return Defaults(config, replace(train_config, lr=5e-4, batch_size=64))

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """With clipping the bound is about the largest initial weight of a hidden layer: far below
        it the critic is flat, far above it steep. Convolutional networks learn more slowly."""
        found = cls.defaults(space)
        config, train_config = found.config, found.train
        assert isinstance(config, cls.Config)
        inputs = config.critic.width
        if chosen.get("image_net", config.image_net) == "conv" and space.is_image:
            inputs = 16 * int(chosen.get("width", config.width))  # kernels of 4 x 4 pixels
            train_config = replace(train_config, lr=2e-4)
        if chosen.get("constraint") == "clipping":
            bound = float(f"{inputs**-0.5:.1g}")
            config = replace(config, constraint=Clipping.Config(bound=bound))
        return replace(found, config=config, train=train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            latent=2,
            generator=MLP.Config(width=16, depth=1, activation="relu"),
            critic=MLP.Config(width=16, depth=1, activation="leaky"),
            critic_steps=2 if space.kind == "columns" else 5,
        )
