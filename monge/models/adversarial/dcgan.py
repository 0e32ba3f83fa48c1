"""Deep convolutional GAN (DCGAN): images of any size; projection, ACGAN, augmentation, style

Transposed convolutions generate an image, strided ones discriminate; batch norm everywhere but
at the generator's output and the discriminator's input, ReLU in the generator, leaky ReLU in the
discriminator, tanh at the output, neither pooling nor dense layers (Radford, Metz & Chintala
2016).

The discriminator reads conditions as channels, by a projection on its features (Miyato & Koyama
2018), or predicts them beside the logit (ACGAN: Odena, Olah & Shlens 2017). What it sees of few
pictures can be augmented (Zhao et al. 2020), and the generator can be a small style-based one
(Karras et al. 2020).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import MAX_LAYERS, Range
from ...core.config import Config as BaseConfig
from ...core.errors import UsageError
from ...core.model import Defaults, Losses
from ...core.space import Space
from ...core.train_config import TrainConfig
from ...nn.inputs.standardise import MANY_LEVELS
from ...nn.layers.init import Init
from ._augmentation import Augmentation, augment
from ._base import AdversarialModel, check_rows
from ._conditioning import ConcatConditioning, DiscriminatorConditioning
from ._convnets import broken_rules, depth_for, downsampler
from ._image_generators import ImageGenerator, TransposedGenerator
from ._losses import discriminator_terms, generator_terms, log_ratio

SMALL_LATENT, SMALL_PIXELS = 16, 1024
"""Dimension of the noise by default for grey pictures of at most so many pixels: digits vary in
about a dozen ways, and of mnist after 105 seconds of one thread 4 to 7 % more of the validation
rows have a sample near them than with 64."""
STRETCH = 0.05
"""Of the generator's tanh by default, where there are many levels."""


class DCGAN(AdversarialModel):
    """x = G(z, given) with z ~ N(0, I), for images. For unbounded real values the generator has no
    tanh.

    Conditions reach the generator beside z, and the discriminator as channels beside the image,
    numbers and names constant ones (conditioning=concat), by a term of its logit that is linear in
    them and in its features (projection: Miyato & Koyama 2018), or not at all: it predicts the
    labels, and both networks minimise the cross entropy of this prediction (auxiliary, ACGAN:
    Odena, Olah & Shlens 2017), which favours samples of certain labels.

    augment=translation,cutout changes real and generated pictures alike before the discriminator
    sees them, so that few pictures are not learned by heart (Zhao et al. 2020). generator=style is
    a mapping network, whose style modulates the convolutions of every resolution (StyleGAN2:
    Karras et al. 2020).
    """

    family_priority = 2

    class Config(AdversarialModel.Config):
        tag = "model/adversarial.dcgan"
        width: Annotated[int, Range(1)] = 32
        """Channels at half resolution, in both networks; each halving doubles them."""
        depth: Annotated[int, Range(0, MAX_LAYERS)] = 0
        """Number of downsampling steps; 0 downsamples to about 4 pixels."""
        init: Init = "auto"
        """Initial weights of both networks: N(0, 0.02^2) as in the paper (auto), by the activation
        (he, xavier, orthogonal), small, or torch's own."""
        generator: ImageGenerator.Config = TransposedGenerator.Config()
        """Generator: transposed convolutions, or style: a mapping network whose style modulates
        convolutions (StyleGAN2, small)."""
        conditioning: DiscriminatorConditioning.Config = ConcatConditioning.Config()
        """How the discriminator reads conditions: concat, channels beside the image; projection,
        a product with its features; or auxiliary, it predicts the labels instead (ACGAN)."""
        stretch: Annotated[float, Range(0, 1)] = 0.0
        """Levels: how far beyond their range, as a share of it, the generator's tanh is stretched
        before it is clipped to the range, so that moderate outputs give the lowest and the
        highest level exactly, such as those of a plain background."""
        augment: tuple[Augmentation, ...] = ()
        """Few pictures: random changes of all real and generated pictures that the discriminator
        sees, colour, translation and cutout (DiffAugment); the generator does not learn them."""
        augment_probability: Annotated[float, Range(0, 1)] = 1.0
        """Probability of each of these changes of a picture."""

    class SamplingConfig(AdversarialModel.SamplingConfig):
        truncation: Annotated[float, Range(0, 1, open=True)] = 1.0
        """Below 1: more typical and less diverse samples, which are not of the model's
        distribution; noise beyond twice this value is drawn again, or with generator=style the
        style moves towards its mean, to this share of its distance."""

    config: Config

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        channels, *sides = space.shape
        depth = config.depth or depth_for(sides)
        check_augmentation(config, space)
        self.conditioning: DiscriminatorConditioning = config.conditioning.build(
            self.conditions, space
        )
        bounded = space.kind == "levels"
        if config.stretch and not bounded:
            raise UsageError(
                f"stretch={config.stretch:g} expected levels, whose range has ends, found "
                f"{space}; set stretch=0"
            )
        self.generator: ImageGenerator = config.generator.build(
            config.latent,
            self.conditions.width,
            space.shape,
            config.width,
            depth,
            bounded,
            config.init,
        )
        self.latent = Space(kind="real", shape=(config.latent + self.generator.noise,))
        self.discriminator: nn.Sequential = downsampler(
            channels + self.conditioning.channels,
            sides,
            config.width,
            depth,
            config.init,
            1 + self.conditioning.outputs,
        )
        if isinstance(self.generator, TransposedGenerator) and (
            broken := broken_rules(self.generator, self.discriminator, bounded)
        ):
            raise UsageError(f"not a DCGAN: {broken[0]}")

    def loss(self, batch: Batch) -> Losses:
        """The discriminator minimises the cross entropy of real and fake rows, the generator its
        own loss at fake rows; with conditioning=auxiliary both also that of the labels."""
        return self.discriminator_loss(batch) | self.generator_loss(batch)

    def discriminator_loss(self, batch: Batch) -> Losses:
        """-(log D(x) + log(1 - D(G(z)))) / 2, or the loss of another `game`, with the R1 penalty
        if its weight is positive."""
        check_rows(self, batch)
        config, context = self.config, self.context(batch.given, len(batch))
        with torch.no_grad():
            fake = self.generate(self.noise(len(batch)), context)
        outs = [self.discriminator_outputs(y, context) for y in (self.real(batch), fake)]
        logits = [self.conditioning.logit(out, context) for out in outs]  # (B,) each
        terms = discriminator_terms(config.game, logits[0], logits[1], config.label_smoothing)
        for name, out in zip(("real_class", "fake_class"), outs, strict=True):
            if (loss := self.conditioning.class_loss(out, context)) is not None:
                terms = {**terms, name: loss}
        return {**terms, "penalty": self.r1_penalty(batch)} if config.penalty else terms

    def generator_loss(self, batch: Batch) -> Losses:
        """-log D(G(z)) / 2, or the loss of another `game`."""
        context = self.context(batch.given, len(batch))
        fake = self.generate(self.noise(len(batch)), context)
        out = self.discriminator_outputs(fake, context)
        logits = self.conditioning.logit(out, context)  # (B,)
        terms = {"generator_loss": generator_terms(self.config.game, logits)}
        loss = self.conditioning.class_loss(out, context)
        return terms if loss is None else {**terms, "class_loss": loss}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """x = G(z, given) with z ~ N(0, I), or one of k candidates by the discriminator."""
        return self.to_event(self.sample_points(n, given, options, generator))

    def generate(self, z: Tensor, context: Tensor, truncation: float = 1.0) -> Tensor:
        y = self.generator(z, context, truncation).flatten(1)
        return stretched(y, self.config.stretch) if self.config.stretch else y

    def discriminate(self, y: Tensor, context: Tensor) -> Tensor:
        return self.conditioning.logit(self.discriminator_outputs(y, context), context)  # (B,)

    def discriminator_outputs(self, y: Tensor, context: Tensor, plain: bool = False) -> Tensor:
        """The outputs of the last convolution, (B, 1 + outputs), at points (B, D), which are
        augmented unless they are to be left plain."""
        image, names = y.unflatten(1, self.space.shape), () if plain else self.config.augment
        image = augment(image, names, self.config.augment_probability)
        return self.discriminator(self.conditioning.inputs(image, context)).flatten(1)

    def ratio_at(self, y: Tensor, context: Tensor) -> Tensor:
        if self.config.augment and self.config.augment_probability == 1:
            raise UsageError(
                "augment_probability=1 shows the discriminator no picture as it is, so that it "
                "knows no ratio of them; train with augment_probability=0.5"
            )
        logit = self.conditioning.logit(
            self.discriminator_outputs(y, context, plain=True), context
        )
        return log_ratio(self.config.game, logit, self.config.label_smoothing)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if not space.is_image or min(space.shape[1:]) < 2:
            return (
                f"dcgan expected images (channels, rows, columns) of at least 2x2 pixels, "
                f"found {space}; use adversarial.gan"
            )
        return super().unsupported_reason(space)

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        # The held-out distance is noisy: evaluate rarely, without early stopping.
        train_config = TrainConfig(
            lr=1e-3, betas=(0.5, 0.99), batch_size=64, ema_decay=0.999, eval_every=500, patience=0
        )
        config = cls.Config()
        if space.shape[:1] == (1,) and space.dims <= SMALL_PIXELS:
            config = replace(config, latent=SMALL_LATENT)
        if space.kind == "levels" and space.size >= MANY_LEVELS:
            config = replace(config, stretch=STRETCH)
        return Defaults(config, train_config)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(latent=4, width=32, penalty=1.0)


def stretched(y: Tensor, share: float) -> Tensor:
    """Values in [-1, 1] times 1 + share, clipped to [-1, 1] (Louizos, Welling & Kingma 2018)."""
    return ((1 + share) * y).clamp(-1, 1)


def check_augmentation(config: DCGAN.Config, space: Space) -> None:
    """Refuse changes of images beside conditions that would have to change with them."""
    images = [name for name, part in space.given.items() if part.is_image]
    if config.augment and images:
        raise UsageError(
            f"augment={','.join(config.augment)} expected conditions that are no images, found "
            f"{images[0]}; leave out augment"
        )
