r"""Semi-supervised predictor: classes from few labels and many rows without one

Another predictor p(y | x) learns from labelled rows as usual, and from the others by a target that
it makes itself, of weight w:

fixmatch      $-1[\max_k q_k \ge \tau]\, \log p(\arg\max_k q_k \mid A(x))$ with $q = p(y \mid x)$,
              where A is a strong augmentation and x is augmented as the data are (Sohn et al.
              2020)
pseudo_label  the same without A: confident predictions are taken for labels (Lee 2013)
mean_teacher  $\sum_k (p(k \mid A(x)) - p'(k \mid x))^2$, where the weights of the teacher p' are a
              moving average of those of p (Tarvainen & Valpola 2017)

No gradient passes q and p'. Each term is the mean over its own rows, so that w does not depend on
how many of them have a label. Without rows that lack one, it is the other predictor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ...core.abilities import Given
from ...core.batch import Batch
from ...core.config import Config as BaseConfig
from ...core.config import Range, find, title_of
from ...core.errors import UsageError
from ...core.model import Defaults, Losses, Model, Update
from ...core.space import Space
from ...core.train_config import TrainConfig
from .._moving_average import follow, warmed_up
from .._views import cut_out, mixed_rows, transform_images
from ._base import Predictor, WrappedPredictor, check_one_network, default_network
from ._images import SMALL_SIDE, image_side

DENSE, CONVOLUTIONS = "model/predict.mlp", "model/predict.cnn"
"""The predictor of rows, and of images that are large enough."""
PREDICTORS = (DENSE, CONVOLUTIONS, "model/predict.resnet", "model/predict.recurrent")
"""Those whose loss is -log p(y | x) alone."""
LABELLED_SHARE = 0.125
"""Share of labelled rows in training: one for seven without a label (Sohn et al. 2020)."""
BATCH, MIN_STEPS, EPOCHS = 256, 3000, 20
"""Rows of a step; steps of few rows; how often each of many rows is seen."""


class SemiSupervised(WrappedPredictor):
    """p(y | x) of another predictor, trained on rows with a label and on rows without one."""

    events = {"label", "binary"}
    givens = {"real", "binary", "levels", "label", "counts", "columns"}
    uses_unlabelled = True

    class Config(WrappedPredictor.Config):
        tag = "model/predict.semi"
        method: Literal["fixmatch", "pseudo_label", "mean_teacher"] = "fixmatch"
        """What rows without a label are trained towards: the confident class of the weakly
        augmented row, the same without a strong augmentation, or a teacher's probabilities."""
        predictor: Model.Config | None = None
        """The predictor that learns: mlp, cnn, resnet or recurrent; none: cnn for images
        of 16 pixels a side and more, otherwise mlp, each with the settings that it has by
        default."""
        unlabelled_weight: Annotated[float, Range(0)] = 1.0
        """Weight w of the term of rows without a label."""
        ramp_up: Annotated[int, Range(0)] = 0
        """Steps over which the weight rises from 0 to w."""
        threshold: Annotated[float, Range(0, 1)] = 0.95
        """fixmatch and pseudo_label: the least probability of a class that is taken for one."""
        teacher_decay: Annotated[float, Range(0, 1, open=True)] = 0.99
        """mean_teacher: decay of the moving average of the weights at each step."""
        rotate: Annotated[float, Range(0, 180)] = 30.0
        """Strong augmentation of images: maximum rotation in degrees."""
        shear: Annotated[float, Range(0, 1)] = 0.3
        """Strong augmentation of images: maximum shear as a share of the height."""
        zoom: Annotated[float, Range(0)] = 0.2
        """Strong augmentation of images: maximum relative change of size."""
        shift: Annotated[float, Range(0, 0.5)] = 0.1
        """Strong augmentation of images: maximum shift as a share of the size."""
        cutout: Annotated[float, Range(0, 1)] = 0.4
        """Strong augmentation of images: side of the square that is cut out, as a share of the
        shorter side."""
        corrupt: Annotated[float, Range(0, 1)] = 0.2
        """Strong augmentation of other inputs: share of entries replaced by those of other
        rows."""

    config: Config
    predictor: Predictor
    teacher: Predictor | None

    def __init__(self, config: Config, space: Space) -> None:
        super().__init__(config, space)
        self.predictor = build_predictor(config.predictor, space)
        self.teacher = None
        if config.method == "mean_teacher":
            self.teacher = copy.deepcopy(self.predictor).requires_grad_(False)

    def loss(self, batch: Batch) -> Losses:
        """-log p(y | x) of rows with a label, and what the method adds for the others."""
        known, n = batch.observed_mask.reshape(len(batch), -1).any(1), len(batch)
        labelled, rest = batch[known], batch[~known]
        targets, kept = self.targets(batch, ~known)
        seen = self.student_inputs(rest.given) if len(rest) else rest.given
        given = join(labelled.given, seen)
        params = self.predictor.params(given, n)
        own, others = params[: len(labelled)], params[len(labelled) :]
        terms = self.predictor.weighted_nll(labelled, own) | {
            "unlabelled": self.weight(batch.step) * self.disagreement(others, targets, kept)
        }
        return {name: spread_mean(term, n) for name, term in terms.items()}

    @torch.no_grad()
    def targets(self, batch: Batch, chosen: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """Probabilities (B, K_i) of each entry of the chosen rows, which the predictor is trained
        towards, and the entries (B, D) in which it is confident enough, if that is asked. The
        network reads all rows, so that statistics of a batch are those of many."""
        model = self.teacher or self.predictor
        params = model.params(batch.given, len(batch))[chosen]
        every = [values.exp() for values in model.head.values(params)]
        if self.teacher is not None:
            return every, None
        kept = torch.stack([each.amax(-1) >= self.config.threshold for each in every], 1)
        sharp = [F.one_hot(each.argmax(-1), each.shape[-1]).to(each) for each in every]
        return sharp, kept

    def disagreement(self, params: Tensor, targets: list[Tensor], kept: Tensor | None) -> Tensor:
        """The term of each row without a label, (B,)."""
        pairs = list(zip(self.predictor.head.values(params), targets, strict=True))
        if kept is None:
            each = [(log_p.exp() - wanted).square().sum(-1) for log_p, wanted in pairs]
            return torch.stack(each, 1).sum(1)
        each = [-(wanted * log_p).sum(-1) for log_p, wanted in pairs]
        return torch.where(kept, torch.stack(each, 1), 0.0).sum(1)

    def weight(self, step: int) -> float:
        """w, which rises over the first `ramp_up` steps."""
        ramp, weight = self.config.ramp_up, self.config.unlabelled_weight
        return weight * min(1.0, (step + 1) / ramp) if ramp else weight

    def student_inputs(self, given: Given) -> dict[str, Batch]:
        """The inputs of rows without a label as the predictor sees them."""
        if self.config.method == "pseudo_label":
            return dict(given)
        return {name: self.augment(part, self.space.given[name]) for name, part in given.items()}

    def augment(self, part: Batch, space: Space) -> Batch:
        """A strongly augmented view of an input."""
        c = self.config
        if not space.is_image or image_side(self.space) < 2:
            flat, seen = part.x.flatten(1) if part.x.ndim > 1 else part.x[:, None], part.observed
            rows = mixed_rows(len(flat), flat.shape[1], c.corrupt, flat.device)
            if seen is not None:
                own = part.observed_mask.reshape(flat.shape)
                seen = own.gather(0, rows).reshape(part.x.shape)
            return replace(part, x=flat.gather(0, rows).reshape(part.x.shape), observed=seen)
        mean = space.spread("mean").to(self.predictor.out.weight)
        x = torch.where(part.observed_mask, part.x.to(mean), mean)
        x = transform_images(x, c.rotate, c.zoom, c.shift, c.shear)
        return replace(part, x=cut_out(x, c.cutout, mean) if c.cutout else x, observed=None)

    # The teacher

    def updates(self) -> list[Update]:
        own = [param for param in self.predictor.parameters() if param.requires_grad]
        updates = [Update("model", self.loss, own)]
        if self.teacher is not None:
            updates.append(Update("teacher", self.move_teacher))
        return updates

    @torch.no_grad()
    def move_teacher(self, batch: Batch) -> Losses:
        """The weights of the teacher follow those of the predictor."""
        assert self.teacher is not None, "only for method=mean_teacher"
        decay = warmed_up(self.config.teacher_decay, batch.step)
        return {"distance": follow(self.teacher, self.predictor, decay)}

    def initialise_from_data(self, batch: Batch) -> None:
        self.predictor.initialise_from_data(batch)
        if self.teacher is not None:
            self.teacher.load_state_dict(self.predictor.state_dict())

    @torch.no_grad()
    def sample(
        self,
        n: int,
        given: Given | None = None,
        options: BaseConfig | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """y ~ p(y | x)."""
        return self.predictor.sample(n, given, options, generator)

    @classmethod
    def unsupported_reason(cls, space: Space) -> str | None:
        if space.given:
            return None
        return (
            "predict.semi predicts from conditions, and there are none; name the field to predict "
            "with --target"
        )

    @classmethod
    def defaults(cls, space: Space) -> Defaults:
        return cls.defaults_with(space, {})

    @classmethod
    def defaults_with(cls, space: Space, chosen: Mapping[str, str]) -> Defaults:
        """Settings by the method. Held-out rows are evaluated once, at the end: networks that
        trust their own labels lose likelihood while they gain accuracy, so that the weights with
        the best likelihood are early ones; and labels of held-out rows choose nothing."""
        images = default_tag(space) == CONVOLUTIONS
        predictor = default_network(find(default_tag(space)).owner, space)
        predictor = replace(predictor, dropout=0.0) if images else predictor
        by_method: dict[str, dict[str, Any]] = {
            "pseudo_label": {"ramp_up": 500},
            "mean_teacher": {"unlabelled_weight": 10.0, "ramp_up": 500},
        }
        method = chosen.get("method", "fixmatch")
        own: Any = {"method": method} if method in by_method else {}
        config = cls.Config(predictor=predictor, **own, **by_method.get(method, {}))
        steps = max(MIN_STEPS, EPOCHS * space.rows // BATCH)
        train_config = TrainConfig(
            optimiser="adamw",
            lr=2e-3,
            weight_decay=0.02,
            batch_size=BATCH,
            ema_decay=0.995,
            schedule="cosine",
            max_steps=steps,
            eval_every=steps,
            patience=0,
        )
        data = [f"labelled_share={LABELLED_SHARE}"]
        data += [f"augment=shift{image_side(space) // 14}"] if images else []
        return Defaults(config, train_config, tuple(data))

    @classmethod
    def smallest_config(cls, space: Space) -> Config:
        return cls.Config(predictor=find(DENSE).owner.smallest_config(space))


def default_tag(space: Space) -> str:
    """The predictor for such inputs."""
    images = [part for part in space.given.values() if part.is_image]
    large = len(images) == 1 and image_side(space) >= SMALL_SIDE
    return CONVOLUTIONS if large else DENSE


def build_predictor(chosen: BaseConfig | None, space: Space) -> Predictor:
    """The chosen predictor, else the default one for such inputs."""
    config: Any = chosen or default_network(find(default_tag(space)).owner, space)
    if config.tag not in PREDICTORS:
        names = "|".join(tag.rpartition(".")[2] for tag in PREDICTORS)
        raise UsageError(
            f"expected predictor={names}, found {title_of(type(config))}; choose one of them"
        )
    if reason := config.owner.unsupported_reason(space):
        raise UsageError(reason)
    check_one_network(config, "predictor")
    for name in ("encoder", "start"):
        if getattr(config, name) is not None:
            raise UsageError(
                f"expected predictor.{name} to be none, found a run, which predict.semi does not "
                "load; leave it out"
            )
    return config.build(space)


def join(one: Given, two: Given) -> dict[str, Batch]:
    """The rows of two conditions after each other, missing values read as such."""
    return {name: join_parts(one[name], two[name]) for name in one}


def join_parts(one: Batch, two: Batch) -> Batch:
    seen = None
    if one.observed is not None or two.observed is not None:
        seen = torch.cat([one.observed_mask, two.observed_mask])
    kind = torch.promote_types(one.x.dtype, two.x.dtype)
    return Batch(torch.cat([one.x.to(kind), two.x.to(kind)]), observed=seen)


def spread_mean(term: Tensor, rows: int) -> Tensor:
    """A term of some rows (n,) as its mean in each of `rows`, (rows,); 0 if there are none."""
    mean = term.mean() if len(term) else term.sum()
    return mean.expand(rows)
