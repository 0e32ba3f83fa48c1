r"""VQ-VAE: discrete codes from a learned codebook, with an autoregressive prior over them

The encoder returns a grid of vectors, and each is replaced by the nearest of K vectors of a
codebook: $c_t(x) = \arg\min_k \|h_t(x) - e_k\|$. Gradients pass the replacement as if it were the
identity (straight through). A row then is a sequence of codes, whose prior p(c) is a model of its
own, trained on the codes of the rows while they are learned. Every sequence of codes is one term
of a sum, so that a few of them give a lower bound without noise:
$\log p(x) = \log \sum_c p(c)\,p(x | c) \ge \log \sum_{c \in S} p(c)\,p(x | c)$,
where S holds c(x) and, with score.samples > 1, its neighbours.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Generator, Tensor, nn

from ...core.abilities import (
    CanDecode,
    CanDiagnose,
    CanEncode,
    CanSample,
    Finding,
    Given,
    HasLikelihood,
    HasTerms,
    Likelihood,
)
from ...core.batch import Batch, as_batch
from ...core.config import Config as BaseConfig
from ...core.config import Range
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._diagnostics import find_degenerate_scale
from ._elbo import DecoderModel, build_prior, prior_class
from ._encoder_decoder import DenseEncoderDecoder, GridEncoderDecoder, image_sides
from ._posterior import check_code_shape

PRIOR = "model/autoregressive.gpt"
"""The prior of the codes unless another is chosen."""
MIN_USED_SHARE = 0.25
"""Share of the codebook that the codes of enough rows should use."""
LARGE_IMAGE_PIXELS = 256
"""Pixels from which an image has a larger codebook."""


class VQVAE(DecoderModel, HasTerms, CanEncode, CanDecode, CanDiagnose):
    """p(x | given) = sum_c p(c | given) p(x | c, given) over sequences c of codes (van den Oord,
    Vinyals & Kavukcuoglu 2017).

    `encode` gives the vectors of the codes, one after the other, and `decode` replaces what it is
    given by the nearest of them; `codes` gives their numbers.
    """

    class Config(DecoderModel.Config):
        tag = "model/latent.vqvae"
        codebook_size: Annotated[int, Range(2)] = 128
        """Vectors of the codebook."""
        code_width: Annotated[int, Range(1)] = 16
        """Numbers of a vector of the codebook."""
        positions: Annotated[int, Range(1)] = 8
        """Codes of a row; with net=grid it has one for each place of the smallest map."""
        codebook: Literal["average", "gradient"] = "average"
        """How the codebook learns: moving averages of the vectors nearest to each code, or the
        gradient of their distances."""
        codebook_decay: Annotated[float, Range(0, 1, open=True)] = 0.97
        """Decay of the moving averages of codebook=average."""
        revive: Annotated[float, Range(0, 1)] = 0.03
        """A code that is used less than this share of what it would be if all were used alike
        moves to a vector of the batch (codebook=average); 0 for never."""
        commitment: Annotated[float, Range(0)] = 0.25
        """Weight of the distance of the encoder's vectors from their codes."""
        prior: Model.Config | None = None
        """Model of the codes: one that scores and samples labels, such as gpt, made or nade; none:
        gpt with the settings that it has by default for such codes."""

    class LikelihoodConfig(BaseConfig):
        """How tight the bound is."""

        samples: Annotated[int, Range(1)] = 1
        """Sequences of codes that are summed: that of the row, and those that differ from it in
        one code, the nearest first; more are tighter and slower."""

    config: Config
    used: Tensor
    sums: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        self.grid = code_grid(config, space)
        self.positions, width = math.prod(self.grid), config.code_width
        super().__init__(config, space, self.positions * width, self.positions * width)
        self.latent = Space(kind="real", shape=(self.positions * width,))
        vectors = torch.randn(config.codebook_size, width)
        if config.codebook == "gradient":
            self.vectors: Tensor = nn.Parameter(vectors)
        else:
            self.register_buffer("vectors", vectors)
        self.register_buffer("used", torch.ones(config.codebook_size))  # averages of counts
        self.register_buffer("sums", vectors.clone())  # averages of sums of vectors
        self.prior = build_prior(config.prior, PRIOR, code_space(config, space))

    def loss(self, batch: Batch) -> Losses:
        """-log p(x | c(x)), gradients straight through the codes, and the distances of vectors
        from their codes."""
        h, context = self.encoder_outputs(batch)
        h = self.split(h)  # (B, T, W)
        nearest = self.vectors[self.distances(h).argmin(-1)]  # (B, T, W)
        z = h + (nearest - h).detach()
        terms = {
            "reconstruction": -self.log_given_code(batch, z.flatten(1), context),
            "commitment": self.config.commitment * squared(h - nearest.detach()),
        }
        if self.config.codebook == "gradient":
            terms["codebook"] = squared(h.detach() - nearest)
        return terms

    def prior_loss(self, batch: Batch) -> Losses:
        """The loss of the prior on the codes of the rows."""
        return self.prior.loss(self.coded(batch))

    def updates(self) -> list[Update]:
        moved = {id(param) for param in self.prior.parameters()}
        own = [p for p in self.parameters() if p.requires_grad and id(p) not in moved]
        learned = [p for p in self.prior.parameters() if p.requires_grad]
        updates = [Update("model", self.loss, own), Update("prior", self.prior_loss, learned)]
        if self.config.codebook == "average":
            updates.insert(1, Update("codebook", self.move_codebook))
        return updates

    @torch.no_grad()
    def move_codebook(self, batch: Batch) -> Losses:
        """Each vector of the codebook becomes the average of those nearest to it."""
        decay, size = self.config.codebook_decay, self.config.codebook_size
        h = self.split(self.encoder_outputs(batch)[0]).flatten(0, 1)  # (B T, W)
        codes = self.distances(h).argmin(-1)
        counts = torch.bincount(codes, minlength=size).to(h)
        sums = torch.zeros_like(self.sums).index_add_(0, codes, h)
        self.used.lerp_(counts, 1 - decay)
        self.sums.lerp_(sums, 1 - decay)
        even = len(h) / size
        idle = self.used < self.config.revive * even
        chosen = h[torch.randint(len(h), (size,), device=h.device)]
        self.used.copy_(torch.where(idle, even, self.used))
        self.sums.copy_(torch.where(idle[:, None], even * chosen, self.sums))
        self.vectors.copy_(self.sums / self.used[:, None].clamp_min(1e-9 * even))
        return {"perplexity": perplexity(counts), "revived": idle.sum().to(h)}

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """c ~ p(c | given), then x ~ p(x | c, given)."""
        context = self.context(given or {}, n)
        assert isinstance(self.prior, CanSample), "a prior that was checked samples"
        codes = self.prior.sample(n, given, generator=generator)  # (n, T)
        return self.decode_samples(self.vectors[codes].flatten(1), context, options, generator)

    def initialise_from_data(self, batch: Batch) -> None:
        """The codebook starts as vectors of some rows."""
        super().initialise_from_data(batch)
        with torch.no_grad():
            h = self.split(self.encoder_outputs(batch)[0]).flatten(0, 1)
            order = torch.randperm(len(h), device=h.device)
            self.vectors.copy_(h[order[torch.arange(len(self.vectors)) % len(h)]])
            self.used.fill_(len(h) / len(self.vectors))
            self.sums.copy_(self.vectors * self.used[:, None])
        self.prior.initialise_from_data(self.coded(batch))

    # Codes

    def split(self, h: Tensor) -> Tensor:  # (B, T W) -> (B, T, W)
        return h.unflatten(-1, (self.positions, self.config.code_width))

    def distances(self, h: Tensor) -> Tensor:
        """Squared distances of vectors (*S, W) from those of the codebook, (*S, K), each less the
        squared length of the vector."""
        return self.vectors.square().sum(-1) - 2 * h @ self.vectors.T

    @torch.no_grad()
    def codes(self, batch: Batch | Tensor) -> Tensor:
        """The numbers of the codes of each row, (B, T)."""
        return self.distances(self.split(self.encoder_outputs(as_batch(batch))[0])).argmin(-1)

    def coded(self, batch: Batch) -> Batch:
        """The codes of the rows as events of the prior."""
        return Batch(self.codes(batch), batch.given, step=batch.step)

    @torch.no_grad()
    def encode(self, batch: Batch | Tensor) -> Tensor:
        return self.vectors[self.codes(batch)].flatten(1)

    @torch.no_grad()
    def decode(self, z: Tensor, given: Given | None = None) -> Tensor:
        """The mean of p(x | c) of the codes nearest to z; of a label, its most probable class."""
        check_code_shape(z, self.latent)
        codes = self.distances(self.split(z.to(self.vectors))).argmin(-1)
        return self.mean_given_code(
            self.vectors[codes].flatten(1), self.context(given or {}, len(z))
        )

    # Log-likelihood

    def likelihood(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Likelihood:
        batch, options = as_batch(batch), options or self.LikelihoodConfig()
        assert isinstance(options, self.LikelihoodConfig), "expected a LikelihoodConfig"
        h, context = self.encoder_outputs(batch)
        each = [
            self.log_joint(batch, codes, context)
            for codes in self.neighbours(self.split(h), options.samples)
        ]
        return Likelihood(torch.stack(each).logsumexp(0), "bound")

    def neighbours(self, h: Tensor, count: int) -> list[Tensor]:
        """Sequences of codes (B, T): the nearest, and those in which one code is another, by the
        distance that it adds; at most `count`, none of them twice."""
        distances = self.distances(h)  # (B, T, K)
        codes = distances.argmin(-1)  # (B, T)
        size = distances.shape[-1]
        more = min(count - 1, self.positions * (size - 1))
        if not more:
            return [codes]
        added = distances - distances.gather(-1, codes[..., None])
        added = added.scatter(-1, codes[..., None], torch.inf).flatten(1)  # (B, T K)
        found = [codes]
        for place in added.topk(more, largest=False).indices.unbind(1):  # (B,)
            where = place[:, None] // size  # (B, 1)
            found.append(codes.scatter(1, where, place[:, None] % size))
        return found

    def log_joint(self, batch: Batch, codes: Tensor, context: Tensor) -> Tensor:
        """log p(c) + log p(x | c), (B,)."""
        return self.log_prior(batch, codes) + self.log_given_code(
            batch, self.vectors[codes].flatten(1), context
        )

    def log_prior(self, batch: Batch, codes: Tensor) -> Tensor:
        assert isinstance(self.prior, HasLikelihood), "a prior that was checked has a likelihood"
        return self.prior.likelihood(Batch(codes, batch.given)).value

    def terms(
        self,
        batch: Batch | Tensor,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> dict[str, Tensor]:
        """Terms of the bound of one sequence of codes."""
        batch = as_batch(batch)
        h, context = self.encoder_outputs(batch)
        (codes,) = self.neighbours(self.split(h), 1)
        log_p = self.log_given_code(batch, self.vectors[codes].flatten(1), context)
        return {"reconstruction": -log_p, "codes": -self.log_prior(batch, codes)}

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> list[Finding]:
        codes, size = self.codes(batch), self.config.codebook_size
        counts = torch.bincount(codes.flatten(), minlength=size).double()
        params = self.params(self.encode(batch), self.context(batch.given, len(batch)))
        found = [
            find_unused_codes(counts),
            find_degenerate_scale(self.head, params),
        ]
        return [finding for finding in found if finding]

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        few_rows, train = 0 < space.rows < 10_000, TrainConfig(batch_size=64, ema_decay=0.995)
        if space.is_image:
            # Few codes: those of a fine grid cost more nats than they save on so few pixels.
            large = math.prod(space.shape[1:]) >= LARGE_IMAGE_PIXELS
            config = cls.Config(
                net=GridEncoderDecoder.Config(widths=(32, 64) if large else (64, 128)),
                codebook_size=128 if large else 32,
                commitment=0.25 if large else 1.0,
            )
        else:
            config = cls.Config(
                net=DenseEncoderDecoder.Config(width=256, residual=True),
                codebook_size=32 if few_rows else 64,
                positions=max(min(space.dims // 2, 16), 1),
            )
        prior = prior_class(PRIOR).defaults(code_space(config, space)).config
        assert isinstance(prior, Model.Config), "a model has the configuration of a model"
        return Defaults(replace(config, prior=prior), train)

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        config = cls.Config(
            net=DenseEncoderDecoder.Config(width=16, depth=1),
            codebook_size=4,
            code_width=2,
            positions=2,
        )
        prior = prior_class(PRIOR).smallest_config(code_space(config, space))
        return replace(config, prior=prior)


def code_grid(config: VQVAE.Config, space: Space) -> tuple[int, ...]:
    """The shape of the codes of a row."""
    if isinstance(config.net, GridEncoderDecoder.Config):
        return image_sides(config.net, space)[-1]
    return (config.positions,)


def code_space(config: VQVAE.Config, space: Space) -> Space:
    """The codes of a row as events of the prior."""
    return Space(
        kind="label",
        shape=(math.prod(code_grid(config, space)),),
        size=config.codebook_size,
        high=(config.codebook_size - 1.0,),
        rows=space.rows,
        given=space.given,
    )


def squared(gap: Tensor) -> Tensor:  # (B, T, W) -> (B,)
    return gap.square().flatten(1).sum(1)


def perplexity(counts: Tensor) -> Tensor:
    """exp of the entropy of shares: how many codes used alike would have it."""
    return torch.special.entr(counts / counts.sum()).sum().exp()


def find_unused_codes(counts: Tensor) -> Finding | None:
    """counts: how often each code occurs, (K,)."""
    size, used = len(counts), int((counts > 0).sum())
    if counts.sum() < 4 * size or used >= MIN_USED_SHARE * size:
        return None
    return Finding(
        "unused codes",
        f"{used} of {size} codes are used, as if there were {float(perplexity(counts)):.1f} "
        "of equal use",
        f"set codebook_size={max(2 * used, 2)}, raise revive or lower commitment",
    )
