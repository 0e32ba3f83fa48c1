r"""Semi-supervised VAE (M2): classes and rows with one latent code, from few labels

A class y and a code z generate the inputs x of a classifier: $p(y)\, p(z)\, p(x | y, z)$. With a
classifier $q(y | x)$ and the posterior $q(z | x, y)$ of a VAE of x given y, whose evidence lower
bound is $L(x, y) \le \log p(x | y)$, a row with a label has the bound
$\log p(x, y) \ge L(x, y) + \log p(y)$ and one without

$\log p(x) \ge \sum_y q(y | x) [L(x, y) + \log p(y) - \log q(y | x)]$,

with equality in y where $q(y | x) \propto p(y)\, e^{L(x, y)}$. Rows with a label train the
classifier besides, by $-w \log q(y | x)$. What predicts is q(y | x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range, find, title_of
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model
from ...core.space import Space
from ...core.train_config import TrainConfig
from ._base import Predictor, WrappedPredictor, check_one_network, default_network

CLASSIFIER, GENERATOR = "model/predict.mlp", "model/latent.vae"
"""The classifier unless another is chosen, and the model of the inputs given their class."""
CLASSIFIERS = (CLASSIFIER, "model/predict.cnn", "model/predict.resnet")
"""Those whose loss is -log q(y | x) alone."""
LABELLED_SHARE = 0.125
"""Share of labelled rows in training."""


class M2(WrappedPredictor):
    """p(y | x) by the classifier q(y | x) of a generative model of x and y (Kingma, Rezende,
    Mohamed & Welling 2014, model M2).

    `sample_inputs` samples x given y from the generative part.
    """

    events = {"label", "binary"}
    givens = {"real", "binary", "levels", "counts", "columns"}
    uses_unlabelled = True

    class Config(WrappedPredictor.Config):
        tag = "model/predict.m2"
        classifier: Model.Config | None = None
        """The classifier q(y | x): mlp, cnn or resnet; none: mlp with the settings that it has by
        default."""
        vae: Model.Config | None = None
        """The vae of the inputs given their class; none: with the settings that it has by
        default."""
        classifier_weight: Annotated[float, Range(0)] = 10.0
        """Weight w of -log q(y | x) of rows with a label. Kingma et al. have a tenth of the number
        of labels."""

    config: Config
    log_prior: Tensor

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        (self.field,) = space.given
        self.classes = 2 if space.kind == "binary" else space.size
        self.predictor = build_classifier(config.classifier, space)
        self.vae = build_vae(config.vae, space)
        even = torch.full((self.classes,), 1 / self.classes)
        self.register_buffer("log_prior", even.log())  # log p(y); `initialise_from_data` sets it

    def loss(self, batch: Batch) -> Losses:
        """Minus the bounds of rows with and without a label, parts of the mean over all rows, and
        the mean of -w log q(y | x) of the former."""
        n, known = len(batch), batch.observed_mask.reshape(len(batch), -1).all(1)
        params = self.predictor.params(batch.given, n)
        (log_q,) = self.predictor.head.values(params)  # (B, K)
        labelled, rest = batch[known], batch[~known]
        own = self.bounds(labelled, labelled.x.reshape(-1).long())
        own = own + self.log_prior[labelled.x.reshape(-1).long()]
        others = marginal_bound(self.all_bounds(rest), self.log_prior, log_q[~known])
        nll = self.predictor.weighted_nll(labelled, params[known])["nll"]
        weight = self.config.classifier_weight / max(len(labelled), 1)
        terms = {
            "labelled": -own.sum() / n,
            "unlabelled": -others.sum() / n,
            "nll": weight * nll.sum(),
        }
        return {name: term.expand(n) for name, term in terms.items()}

    def bounds(self, batch: Batch, y: Tensor) -> Tensor:
        """The ELBO of the inputs of each row given classes y (B,), (B,)."""
        if not len(batch):
            return self.log_prior.new_zeros(0)
        return -sum_terms(self.vae.loss(self.inputs(batch, y)))

    def all_bounds(self, batch: Batch) -> Tensor:
        """The ELBO of the inputs of each row given every class, (B, K)."""
        rows = torch.arange(len(batch)).repeat_interleave(self.classes)
        y = torch.arange(self.classes, device=self.log_prior.device).repeat(len(batch))
        return self.bounds(batch[rows], y).reshape(len(batch), self.classes)

    def inputs(self, batch: Batch, y: Tensor) -> Batch:
        """The inputs of the rows as events, given their classes y (B,)."""
        own = batch.given[self.field]
        code = y if self.space.kind == "label" else y.to(self.log_prior.dtype)
        return replace(own, given={self.space.name: Batch(code)}, step=batch.step, row=batch.row)

    @torch.no_grad()
    def sample_inputs(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """x ~ p(x | y) for classes y (n,), in the units of the data."""
        code = y if self.space.kind == "label" else y.to(self.log_prior.dtype)
        return self.vae.sample(len(y), {self.space.name: Batch(code)}, generator=generator)

    def initialise_from_data(self, batch: Batch) -> None:
        """p(y) are the shares of the labelled rows."""
        self.predictor.initialise_from_data(batch)
        y = batch.x.reshape(-1).long()
        self.vae.initialise_from_data(self.inputs(batch, y))
        seen = y[batch.observed_mask.reshape(-1)]
        counts = torch.bincount(seen, minlength=self.classes) + 1.0
        self.log_prior.copy_((counts / counts.sum()).log())

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y ~ q(y | x)."""
        return self.predictor.sample(n, given, options, generator)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.shape:
            return f"predict.m2 predicts one class, and the target is {space}; use predict.semi"
        if len(space.given) != 1:
            found = ", ".join(space.given) or "none"
            return (
                f"predict.m2 expects one field that the class is predicted from, found {found}; "
                "name the class with --target, or use predict.semi"
            )
        return None

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        classifier = default_network(find(CLASSIFIER).owner, space)
        vae: Any = find(GENERATOR).owner.defaults(input_space(space)).config
        train_config = TrainConfig(batch_size=128, ema_decay=0.995, lr=1e-3)
        config = cls.Config(classifier=classifier, vae=vae)
        return Defaults(config, train_config, (f"labelled_share={LABELLED_SHARE}",))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(
            classifier=find(CLASSIFIER).owner.smallest_config(space),
            vae=find(GENERATOR).owner.smallest_config(input_space(space)),
        )


def marginal_bound(bounds: Tensor, log_prior: Tensor, log_q: Tensor) -> Tensor:
    """sum_y q(y) [L(y) + log p(y) - log q(y)] of bounds L (B, K) and log q (B, K), (B,)."""
    return (log_q.exp() * (bounds + log_prior - log_q)).sum(1)


def sum_terms(losses: Losses) -> Tensor:
    first, *others = losses.values()
    for term in others:
        first = first + term
    return first


def input_space(space: Space) -> Space:
    """The inputs as an event given the class."""
    (part,) = space.given.values()
    return replace(part, rows=space.rows, given={space.name: replace(space, given={})})


def build_vae(chosen: BaseConfig | None, space: Space) -> Any:
    config: Any = chosen or find(GENERATOR).owner.defaults(input_space(space)).config
    if config.tag != GENERATOR:
        raise UsageError(
            f"expected the settings of a vae, found {title_of(type(config))}; choose vae=vae"
        )
    if config.total_correlation or config.free_bits:
        raise UsageError(
            "expected a vae whose loss is a bound of every row, found vae.total_correlation or "
            "vae.free_bits, which are of a batch; leave them out"
        )
    return config.build(input_space(space))


def build_classifier(chosen: BaseConfig | None, space: Space) -> Predictor:
    config: Any = chosen or default_network(find(CLASSIFIER).owner, space)
    names: Sequence[str] = [tag.rpartition(".")[2] for tag in CLASSIFIERS]
    if config.tag not in CLASSIFIERS:
        raise UsageError(
            f"expected classifier={'|'.join(names)}, found {title_of(type(config))}; choose one "
            "of them"
        )
    if reason := config.owner.unsupported_reason(space):
        raise UsageError(reason)
    check_one_network(config, "classifier")
    return config.build(space)
