"""The trainer: optimiser steps of a model, the moving average (EMA) of its weights, evaluation
bookkeeping and checkpoint state.

Step k is a pure function of (seed, k, the state before k): torch is seeded before every update and
the rows of a batch come from the permutation of their epoch. No random state is stored, and a run
that was interrupted and resumed equals one that was not, bit for bit. A batch may be cut into
pieces (see `distributed`): then the noise of a piece is a function of (seed, k, update, piece).

In one epoch every update with one batch per step sees every row once, and one that moves `repeat`
times per step sees it `repeat` times: each update, and each member of an ensemble that is trained
in one update, goes through the rows in orders of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import LBFGS, Optimizer

from ..core.abilities import HasLikelihood
from ..core.batch import Batch
from ..core.errors import RunError, UsageError
from ..core.metric import Metric
from ..core.model import Losses, Model, Update, take_step
from ..core.rng import derive_seed, reseed
from ..core.train_config import OptimiserConfig, TrainConfig
from .batch_sampler import BatchSequence, EpochBatches, RowSource
from .checkpoint import check_same_names
from .distributed import (
    ALONE,
    SharedGradients,
    Workers,
    early_messages,
    naming_lost_workers,
    shared_gradients,
    value_of_grad,
)
from .optimiser import (
    check_slots,
    flush_denormals,
    has_converged,
    lbfgs_iteration,
    lr_multiplier_of,
    make_optimiser,
    pack,
    trainable_updates,
    unpack,
)
from .precision import check_bf16
from .regularisation import input_noise, l1_prox, weight_noise

if TYPE_CHECKING:
    from .sharding import ShardedModel


class EMA:
    """a <- d a + (1 - d) w at each step, for weights w and their average a.

    d = min(decay, (1 + k) / (10 + k)) at step k, so that the initial weights are soon forgotten.
    The average covers trainable parameters and the running statistics of batch norm; other buffers
    are those of the live model. With decay 0 there is no average.
    """

    def __init__(
        self, model: nn.Module, decay: float, params: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        """`params` are the parameters of the model by name, or the parts of them that this process
        holds."""
        self.decay = decay
        named = dict(model.named_parameters()) if params is None else params
        trainable = {name: p for name, p in named.items() if p.requires_grad}
        self.live = {**trainable, **batch_norm_statistics(model)} if decay else {}
        self.weights = {name: p.detach().clone() for name, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self.weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(self.weights.values()), list(self.live.values()), 1 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Load a saved average."""
        check_same_names("EMA", weights, self.weights)
        self.weights = {name: weights[name] for name in self.weights}

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the averaged weights in the model inside the block."""
        saved = {name: p.detach().clone() for name, p in self.live.items()}
        self.put(self.weights)
        try:
            yield
        finally:
            self.put(saved)

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        """Copy these weights into the live model."""
        for name, p in self.live.items():
            p.copy_(weights[name])


class RowChunks:
    """At most MAX_COUNTED_ROWS training rows, evenly spaced, in chunks that are read when they are
    wanted."""

    def __init__(self, rows: RowSource, device: torch.device) -> None:
        self.rows, self.device = rows, device

    def __iter__(self) -> Iterator[Batch]:
        count = min(len(self.rows), MAX_COUNTED_ROWS)
        for chunk in (torch.arange(count) * len(self.rows) // count).split(COUNTED_CHUNK):
            yield self.rows.batch(chunk, train=True).sent_to(self.device)


class PieceSums:
    """Sums over the pieces of a batch: of gradients, which torch adds in place, and of losses."""

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        workers: Workers,
        shared: SharedGradients | None = None,
    ) -> None:
        self.params, self.workers, self.shared = params, workers, shared
        self.losses: Losses = {}
        self.total: Tensor | None = None
        self.early = None if shared else early_messages(params, workers)
        for param in params:
            param.grad = None

    def add(self, losses: Losses, total: Tensor, share: float) -> None:
        for name, term in losses.items():
            mean = share * term.detach().mean()
            self.losses[name] = self.losses[name] + mean if name in self.losses else mean
        self.total = share * total if self.total is None else self.total + share * total

    @contextmanager
    def piece(self, last: bool) -> Iterator[None]:
        """The block computes the gradients of a piece, the last of this process or another."""
        with self.early.sending() if last and self.early else nullcontext():
            yield

    def reduced(self, state: LossState) -> tuple[Losses, Tensor]:
        """The loss terms and their sum, and the gradients in place, over all processes. A gradient
        that is None in some of them counts as 0 there and stays None if it is so in all."""
        assert self.total is not None
        total, workers = self.total.clone(), self.workers
        if workers.size > 1:
            has_grad = torch.tensor(
                [param.grad is not None for param in self.params], dtype=total.dtype
            ).to(total.device)
            changed = state.changed.to(total)
            grads: list[Tensor] = []
            if self.shared:
                self.shared.write()
            elif not self.early:
                grads = [value_of_grad(param) for param in self.params]
            sums = iter(workers.sum([*grads, *self.losses.values(), total, has_grad, changed]))
            grads = [next(sums) for _ in grads]
            if self.shared:  # of which all have written theirs, since all sent their losses
                grads = self.shared.sums()
            elif self.early:
                early = self.early.sums()
                grads = [early[id(param)] for param in self.params]
            self.losses = {name: next(sums) for name in self.losses}
            total, has_grad, changed = sums
            for param, grad, there in zip(self.params, grads, has_grad.tolist(), strict=True):
                param.grad = grad if there else None
            state.changed = changed > 0
        state.merge(workers)
        return self.losses, total


class LossState:
    """Saved buffers that losses change, such as the statistics of batch norm. Every piece starts
    from the values before the first, and afterwards real values are the mean over the pieces,
    whose weights are their shares of the rows."""

    def __init__(self, model: nn.Module) -> None:
        saved = model.state_dict(keep_vars=True)
        self.buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
        self.before: list[Tensor] = []
        self.sums: dict[int, Tensor] = {}
        self.changed = torch.zeros(len(self.buffers), dtype=torch.bool)
        self.shares = 0.0  # of the rows, in the pieces that ended

    @contextmanager
    def piece(self, share: float) -> Iterator[None]:
        """The block computes the loss of a `share` of the rows."""
        self.before = self.before or [buffer.detach().clone() for buffer in self.buffers]
        for place in self.changed_places:
            self.buffers[place].copy_(self.before[place])
        yield
        for place, (buffer, old) in enumerate(zip(self.buffers, self.before, strict=True)):
            if not self.changed[place] and not torch.equal(buffer, old):
                self.changed[place] = True
                self.sums[place] = self.shares * old if self.shares else torch.zeros_like(old)
            if self.changed[place] and old.is_floating_point():
                self.sums[place] += share * buffer
        self.shares += share

    @property
    def changed_places(self) -> list[int]:
        return self.changed.nonzero()[:, 0].tolist()

    def merge(self, workers: Workers) -> None:
        """Put the mean over all pieces of all processes into the buffers that changed."""
        places = [place for place in self.changed_places if self.before[place].is_floating_point()]
        means = [self.sums.get(place, self.shares * self.before[place]) for place in places]
        for place, mean in zip(places, workers.sum(means), strict=True):
            self.buffers[place].copy_(mean)


def check_pieces(train_config: TrainConfig, batch_size: int, workers: Workers) -> None:
    """UsageError unless every piece has a row and every process as many pieces."""
    pieces = train_config.pieces
    if pieces > batch_size:
        raise UsageError(
            f"expected train.shards times train.accumulate of at most the {batch_size} rows of a "
            f"batch, found {pieces}; use fewer pieces or workers, or a larger train.batch_size"
        )
    if pieces % workers.size:
        fitting = [size for size in range(1, pieces + 1) if pieces % size == 0]
        raise UsageError(
            f"expected a number of workers that divides the {pieces} pieces of a batch, found "
            f"{workers.size}; use {' or '.join(map(str, fitting[-4:]))}"
        )


def check_shardable(
    updates: Sequence[Update],
    settings: Sequence[OptimiserConfig],
    train_config: TrainConfig,
    workers: Workers,
    compiled: bool,
) -> None:
    """UsageError for a fit whose weights cannot be cut over processes."""
    if workers.size == 1:
        raise UsageError(
            "expected several processes with --shard, found one; add --workers 2, or start it "
            "by torchrun"
        )
    if not any(update.params for update in updates):
        raise UsageError(
            "expected a model whose weights follow gradients with --shard, found one that is "
            "fitted by counting or in closed form, without gradients and moments; leave --shard "
            "out"
        )
    moving = [each for update, each in zip(updates, settings, strict=True) if update.params]
    unsupported = {
        "train.optimiser=lbfgs": any(each.optimiser == "lbfgs" for each in moving),
        "train.weight_noise": any(each.weight_noise for each in moving),
        f"train.refit={train_config.refit}": train_config.refit != "none",
        "--compile": compiled,
    }
    for setting, chosen in unsupported.items():
        if chosen:
            raise UsageError(
                f"expected no {setting} with --shard, which it does not support, found it; leave "
                "one of them out"
            )


def refuse_weights(model: Model, updates: Sequence[Update]) -> None:
    """UsageError for a model whose loss is not a mean over rows, which weights could change."""
    counted = any(update.whole and not update.params for update in updates)
    if counted or len(updates) != 1 or not isinstance(model, HasLikelihood):
        why = "is fitted by counting" if counted else "has a loss of whole batches"
        raise UsageError(
            f"data.weight needs a model whose loss is a mean over rows, and this one {why}; leave "
            "it out, or fit a model such as autoregressive.made or predict.mlp"
        )


def batch_norm_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of every batch norm, by name."""
    norms = [
        (name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)
    ]
    return {
        f"{name}.{key}" if name else key: value
        for name, module in norms
        for key, value in module.named_buffers(recurse=False)
        if value.is_floating_point()
    }


def epoch_batches(rows: int, train_config: TrainConfig) -> EpochBatches:
    """How an epoch of this many rows is cut into batches."""
    size = min(train_config.batch_size, rows)
    return EpochBatches(rows, size, MIN_PIECE_ROWS * train_config.pieces)


def steps_per_epoch(batches: EpochBatches, updates: Sequence[Update]) -> int:
    """Steps in which an update that takes a batch at each step sees every row once; 1 if every
    update takes the whole split."""
    return 1 if all(update.whole for update in updates) else batches.count


def batch_sequences(
    updates: Sequence[Update],
    rows: RowSource,
    batches: EpochBatches,
    seed: int,
    bucket_by_length: bool,
) -> dict[tuple[str, int], BatchSequence]:
    """A sequence of batches for each update that takes them, by its name and the number of the
    batch among those that it takes at once."""
    names = [
        (update.name, part)
        for update in updates
        if not update.whole
        for part in range(update.batches)
    ]
    return {
        name: BatchSequence(rows, batches, seed, place, bucket_by_length)
        for place, name in enumerate(names)
    }


MIN_PIECE_ROWS = 2
"""Rows that each piece of the last batch of an epoch has at least; one row has no variance, which
batch statistics need."""
MAX_INIT_ROWS, MAX_INIT_ENTRIES = 10_000, 1 << 19
"""Training rows, evenly spaced, used for data-dependent initialisation: at most so many rows, or
more of them as long as they have few entries, as those of a table."""
MAX_COUNTED_ROWS, COUNTED_CHUNK = 100_000, 2048
"""Training rows, evenly spaced, in which a model counts frequencies, and how many at once."""
DENORMAL_FLUSH_STEPS = 200
"""Steps between two flushes of denormal numbers."""


@dataclass(frozen=True)
class Refit:
    """A second training on all rows but the test split, after early stopping ended the first."""

    origin: int  # the step at which it starts
    until: int  # the number of its own steps after which it is complete
    goal: float | None = None  # metric of the formerly held-out rows that completes it sooner


class Trainer:
    """A model with its updates and their optimisers, the EMA of its weights, and the counters."""

    def __init__(
        self,
        model: Model,
        rows: RowSource,
        train_config: TrainConfig,
        seed: int = 0,
        precision: str = "fp32",
        compiled: bool = False,
        workers: Workers = ALONE,
        shard: bool = False,
    ) -> None:
        self.workers, self.shard = workers, shard
        self.sharded: ShardedModel | None = None  # from the first step on, if `shard`
        self.model, self.rows, self.train_config, self.seed = model, rows, train_config, seed
        self.device = next(
            (t.device for t in [*model.parameters(), *model.buffers()]), torch.device("cpu")
        )
        self.bf16 = precision == "bf16"
        if self.bf16:
            check_bf16(self.device)
        self.updates, self.frozen = trainable_updates(model, train_config)
        if getattr(rows, "weight", None) is not None:
            refuse_weights(model, self.updates)
        self.losses = [torch.compile(t.loss) if compiled else t.loss for t in self.updates]
        self.settings = [train_config.optimiser_config(t.name) for t in self.updates]
        self.optimisers = self.make_optimisers(model)
        self.shared: dict[int, SharedGradients | None] = {}  # by the number of the update
        if shard:
            check_shardable(self.updates, self.settings, train_config, workers, compiled)
        self.ema = EMA(model, train_config.ema_decay if not shard else 0.0)
        self.batches = epoch_batches(len(rows), train_config)
        self.batch_size = self.batches.size
        self.pieces = train_config.pieces
        check_pieces(train_config, self.batch_size, workers)
        self.sequences = batch_sequences(
            self.updates, rows, self.batches, seed, train_config.bucket_by_length
        )
        self.epoch_steps = steps_per_epoch(self.batches, self.updates)
        self.eval_every = train_config.eval_every or min(max(self.epoch_steps, 50), 1000)
        self.step, self.evals_without_improvement, self.seconds = 0, 0, 0.0
        self.least_critic_distance: float | None = None
        self.evals_without_lower_distance = 0
        self.schedule_steps = 0  # over which the learning rate decays; 0 until the first step
        self.refit: Refit | None = None
        self.best: Metric | None = None
        self.best_step = 0
        self.best_weights: dict[str, Tensor] = {}  # weights at the best held-out metric
        self.pending_losses: list[tuple[int, str, Tensor]] = []
        self.pending_norms: list[tuple[int, str, Tensor]] = []  # of gradients, before clipping
        self.whole_split: Batch | None = None
        self.set_train_mode()

    def make_optimisers(
        self, model: Model, own: Callable[[Sequence[nn.Parameter]], list[nn.Parameter]] = list
    ) -> list[Optimizer | None]:
        """An optimiser of each update with parameters, for what this process has of them."""
        named = lr_multiplier_of(model, self.train_config.lr_multipliers)
        factors = {
            id(part): factor
            for name, factor in named.items()
            for part in own([model.get_parameter(name)])
        }
        return [
            make_optimiser(settings, own(update.params), factors) if update.params else None
            for update, settings in zip(self.updates, self.settings, strict=True)
        ]

    def shard_weights(self) -> None:
        """Cut the weights over the processes, when they have their initial or restored values."""
        from .sharding import ShardedModel

        self.sharded = ShardedModel(self.model, self.workers, self.first_losses)
        self.whole_losses = self.losses
        self.updates, self.frozen = trainable_updates(self.sharded.live, self.train_config)
        self.losses = [partial(self.sharded.compute, update.loss) for update in self.updates]
        self.optimisers = self.make_optimisers(self.sharded.live, self.sharded.own)
        self.ema = EMA(self.sharded.live, self.train_config.ema_decay, self.sharded.local)
        self.set_train_mode()

    def first_losses(self) -> Iterator[Losses]:
        """The losses of each update with parameters on the smallest piece of its first batch."""
        for update, loss in zip(self.updates, self.losses, strict=True):
            if update.params:
                read = self.whole if update.whole else partial(self.batch, 0)
                yield loss(read(update, piece=self.pieces - 1))

    @property
    def trained(self) -> Model:
        """The model, or the copy of it whose weights are cut over the processes."""
        return self.sharded.live if self.sharded else self.model

    @property
    def can_score(self) -> bool:
        """Whether this process takes part in evaluations and checkpoints: the first does, and all
        do if weights are cut over them."""
        return self.workers.is_first or self.sharded is not None

    def agree_if_sharded(self, fact: bool) -> bool:
        """A decision of the first process that all must follow if weights are cut over them."""
        return self.workers.agree(lambda: fact) if self.sharded else fact

    @property
    def age(self) -> int:
        """Steps these weights have been trained for: `step`, counted from its start in a refit."""
        return self.step - self.refit.origin if self.refit else self.step

    @property
    def refit_done(self) -> bool:
        """Whether the refit is complete."""
        return self.refit is not None and (self.age >= self.refit.until or self.converged)

    @property
    def converged(self) -> bool:
        """Whether every optimiser has converged."""
        return all(map(has_converged, self.optimisers))

    def index(self, number: int, update: Update | None = None) -> Tensor:
        """Row indices of the number-th batch of an update, by default the first; if it takes
        several batches at once, of all of them."""
        if update is None:
            return next(iter(self.sequences.values())).index(number)
        parts = (self.sequences[update.name, part] for part in range(update.batches))
        return torch.cat([sequence.index(number) for sequence in parts])

    def batch(self, number: int, update: Update | None = None, piece: int | None = None) -> Batch:
        """The number-th batch of an update, by default the first; or one piece of it."""
        index = self.index(number, update)
        if update and update.rows:
            index = update.rows(index, len(self.rows))
        if update and piece is not None:
            index = self.cut(index, update, piece)
        batch = self.rows.batch(index, train=True).sent_to(self.device)
        batch = replace(batch, step=self.age)
        noise = self.train_config.input_noise
        return input_noise(batch, self.model.space, noise) if noise else batch

    def cut(self, index: Tensor, update: Update, piece: int) -> Tensor:
        """A piece of each of the batches that an update takes at once."""
        parts = index.chunk(update.batches)
        return torch.cat([part.tensor_split(self.pieces)[piece] for part in parts])

    def whole(self, update: Update, piece: int | None = None) -> Batch:
        if self.whole_split is None:
            self.whole_split = self.rows.whole().sent_to(self.device)
        batch, noise = replace(self.whole_split, step=self.age), self.train_config.input_noise
        if update.rows or update.batches > 1 or piece is not None:
            index = torch.arange(len(batch)).repeat(update.batches)
            index = update.rows(index, len(batch)) if update.rows else index
            batch = batch[index if piece is None else self.cut(index, update, piece)]
        return input_noise(batch, self.model.space, noise) if noise else batch

    def initialise(self) -> None:
        """Initialise the model from data and restart the EMA from there."""
        reseed(derive_seed(self.seed, "begin"), self.device)
        most = max(MAX_INIT_ROWS, MAX_INIT_ENTRIES // max(self.model.space.dims, 1))
        count = min(len(self.rows), most if self.model.space.kind == "columns" else MAX_INIT_ROWS)
        index = torch.arange(count) * len(self.rows) // count
        self.model.initialise_from_data(self.rows.batch(index, train=True).sent_to(self.device))
        self.model.count_rows(RowChunks(self.rows, self.device))
        self.synchronise()
        if not self.shard:
            self.ema = EMA(self.model, self.train_config.ema_decay)

    def synchronise(self) -> None:
        """Give every process the weights of the first, from which those of other processors may
        differ by rounding; weights that are cut are the same by themselves."""
        cut = self.sharded.is_cut if self.sharded else lambda _: False
        params = [p for name, p in self.trained.named_parameters() if not cut(name)]
        self.workers.broadcast([*params, *self.trained.buffers()])

    def set_train_mode(self) -> None:
        """Put the model in training mode, frozen modules in evaluation mode."""
        self.trained.train()
        for module in self.frozen:
            module.eval()

    def train_step(self, scale: float) -> None:
        """Apply every due update once, with learning rates multiplied by `scale`."""
        if self.age == 0:
            self.initialise()
        if self.shard and not self.sharded:
            self.shard_weights()
        if not self.trained.training:
            self.set_train_mode()
        for place, update in enumerate(self.updates):
            if self.age % update.every or (update.until is not None and self.age >= update.until):
                continue
            reseed(derive_seed(self.seed, "step", self.age, update.name), self.device)
            for turn in range(update.repeat):
                number = update.repeat * (self.age // update.every) + turn
                pieces, rows = self.read_pieces(update, number, turn), self.taken(update, number)
                self.apply_update(place, update, pieces, scale, rows)
        self.ema.update(self.age)
        self.step += 1
        if self.age % DENORMAL_FLUSH_STEPS == 0:
            for each in filter(None, self.optimisers):
                flush_denormals(each)

    def taken(self, update: Update, number: int) -> int:
        """Rows that an update takes at once, in all processes."""
        if update.whole:
            return update.batches * len(self.rows)
        return len(self.index(number, update))

    def read_pieces(self, update: Update, number: int, turn: int) -> Iterator[Batch]:
        """The pieces of the batch that this process computes, one after the other and with torch
        seeded for each; the batch itself if it is not cut. An update without parameters, which
        changes the state of the model, sees all rows in every process."""
        read = partial(self.whole, update) if update.whole else partial(self.batch, number, update)
        if self.pieces == 1 or not update.params:
            yield read()
            return
        for piece in self.workers.share(self.pieces):
            keys = ("step", self.age, update.name, turn, piece)
            reseed(derive_seed(self.seed, *keys), self.device)
            yield read(piece=piece)

    def apply_update(
        self, number: int, update: Update, pieces: Iterable[Batch], scale: float, rows: int = 0
    ) -> None:
        """One optimiser step of the parameters of update `number`, and of no others; of a batch
        that is cut, `rows` are those of all its pieces."""
        moving = self.optimisers[number]
        if moving is None:
            (batch,) = pieces
            with torch.no_grad(), self.whole_weights():
                computed = self.whole_losses if self.sharded else self.losses
                self.log_losses(update.name, computed[number](batch))
            return
        settings = self.settings[number]
        if isinstance(moving, LBFGS):
            self.lbfgs_step(moving, number, update, list(pieces), settings, rows)
            return
        losses, _ = self.backward(number, update, pieces, settings, rows)
        if settings.grad_clip:
            norm = self.clip_gradients(update.params, settings.grad_clip)
            self.pending_norms.append((self.step, update.name, norm))
        for group in moving.param_groups:
            group["lr"] = settings.lr * scale * group["factor"]
        take_step(moving)
        if settings.l1:
            l1_prox(moving, settings.l1)
        self.log_losses(update.name, losses)

    def clip_gradients(self, params: Sequence[nn.Parameter], largest: float) -> Tensor:
        """Scale the gradients to a norm of at most `largest`; their norm before."""
        if not self.sharded:
            return nn.utils.clip_grad_norm_(params, largest)
        norm = self.sharded.norm(params)
        scale = float((largest / (norm + 1e-6)).clamp(max=1.0))  # as torch has it
        for part in self.sharded.own(params):
            if part.grad is not None:
                part.grad.mul_(scale)
        return norm

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """The model has whole weights, which may change."""
        with self.sharded.changed_as_a_whole() if self.sharded else nullcontext():
            yield

    @contextmanager
    def scoring_weights(self) -> Iterator[None]:
        """The model has the weights used for sampling and scoring, in evaluation mode: in the
        first process alone if they are cut over several, all of which must enter."""
        self.model.eval()
        with self.sharded.gathered(self.weights()) if self.sharded else self.ema.swapped():
            yield

    def backward(
        self,
        number: int,
        update: Update,
        pieces: Iterable[Batch],
        settings: OptimiserConfig,
        rows: int,
    ) -> tuple[Losses, Tensor]:
        """The loss terms and their sum, after computing its gradients for the update's params: of
        a batch that is cut, the means over all its `rows`, here and in the other processes."""
        if self.pieces == 1:
            (batch,) = pieces
            return self.piece_backward(number, update, batch, settings)
        params = update.params
        if self.sharded:  # torch itself sums the gradients of weights that are cut
            self.sharded.drop_gradients()
            params = self.sharded.uncut(params)
        elif number not in self.shared:
            self.shared[number] = shared_gradients(params, self.workers)
        sums = PieceSums(params, self.workers, self.shared.get(number))
        state = LossState(self.trained)
        last = len(self.workers.share(self.pieces)) - 1
        for place, batch in enumerate(pieces):
            share = len(batch) / rows
            with state.piece(share), sums.piece(place == last):
                losses, total = self.piece_backward(number, update, batch, settings, share)
            sums.add(losses, total, share)
        if self.sharded:
            self.sharded.take_gradients(update.params)
        return sums.reduced(state)

    def piece_backward(
        self,
        number: int,
        update: Update,
        batch: Batch,
        settings: OptimiserConfig,
        share: float | None = None,
    ) -> tuple[Losses, Tensor]:
        """The loss terms of one piece and their sum, after computing its gradients, which are
        added to those of other pieces if the piece is a `share` of the batch."""
        with (
            weight_noise(update.params, settings.weight_noise)
            if settings.weight_noise
            else nullcontext()
        ):
            with torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext():
                losses = self.losses[number](batch)
            if batch.weight is not None:
                losses = {name: term * batch.weight for name, term in losses.items()}
            total = torch.stack([term.mean() for term in losses.values()]).sum()
            if share is None:
                for param in update.params:
                    param.grad = None
            part = total if share is None else share * total
            if self.sharded:
                self.sharded.backward(part)
            else:
                with naming_lost_workers(computing=True):  # gradients are sent meanwhile
                    part.backward(inputs=list(update.params))
        return losses, total.detach()

    def lbfgs_step(
        self,
        moving: LBFGS,
        number: int,
        update: Update,
        pieces: Sequence[Batch],
        settings: OptimiserConfig,
        rows: int,
    ) -> None:
        """One iteration of L-BFGS. Every evaluation, also of other steps, uses the same noise: a
        line search needs a deterministic function."""
        evaluated: list[Losses] = []

        def seeded() -> Iterator[Batch]:
            for piece, batch in zip(self.workers.share(self.pieces), pieces, strict=True):
                own = () if self.pieces == 1 else (piece,)
                reseed(derive_seed(self.seed, "search", update.name, *own), self.device)
                yield batch

        def closure() -> Tensor:
            losses, total = self.backward(number, update, seeded(), settings, rows)
            evaluated.append(losses)
            for param in update.params if settings.weight_decay else ():
                weight = param.detach()
                total = total + 0.5 * settings.weight_decay * weight.square().sum()
                param.grad = settings.weight_decay * weight + (
                    0 if param.grad is None else param.grad
                )
            return total

        lbfgs_iteration(moving, closure)
        self.log_losses(update.name, evaluated[0])

    def log_losses(self, update: str, losses: Losses) -> None:
        """Store the loss terms as tensors; `read` converts them together, since each conversion
        waits for the device."""
        self.pending_losses += [
            (self.step, f"{update}/{name}", term.detach().mean()) for name, term in losses.items()
        ]

    def read(self) -> tuple[dict[str, float], dict[str, float], str]:
        """Since the last call: the mean of each loss term, the mean gradient norm of each update
        that clips, and an error message if a term was not finite."""
        terms, bad = mean_values(self.pending_losses)
        norms, _ = mean_values(self.pending_norms)
        self.pending_losses, self.pending_norms = [], []
        if bad is None:
            return terms, norms, ""
        step, name, value = bad
        update, _, term = name.rpartition("/")
        return (
            {},
            {},
            (
                f"the loss term {term!r} of the update {update!r} became {value} at step {step}; "
                "the last finite checkpoint is preserved; try a smaller train.lr or "
                "train.grad_clip=1"
            ),
        )

    def update_best(self, metric: Metric) -> bool:
        """Record a held-out metric; true if it is a new best. In a refit, whose rows include the
        formerly held-out ones, the metric ends training once it reaches the goal."""
        better = metric.replaces(self.best)
        if self.refit and self.refit.goal is not None and self.best:
            if metric.better_than(replace(self.best, value=self.refit.goal)):
                self.refit = replace(self.refit, until=self.age)
            return False
        if better:
            self.best, self.evals_without_improvement, self.best_weights = (
                metric,
                0,
                self.weights(),
            )
            self.best_step = self.step
        else:
            self.evals_without_improvement += 1
        return better

    def update_critic_distance(self, distance: float) -> None:
        """Record the distance of held-out rows and samples by the critic, which patience counts
        instead of the held-out metric."""
        lower = self.least_critic_distance is None or distance < self.least_critic_distance
        if lower:
            self.least_critic_distance = distance
        self.evals_without_lower_distance = 0 if lower else self.evals_without_lower_distance + 1

    @property
    def evals_without_gain(self) -> int:
        """What patience counts."""
        if self.train_config.patience_on == "critic":
            return self.evals_without_lower_distance
        return self.evals_without_improvement

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights used for sampling and scoring: the EMA, other buffers live."""
        if self.sharded:
            return self.sharded.snapshot(self.ema.weights)
        state = self.model.state_dict() | self.ema.weights
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    @property
    def is_finite(self) -> bool:
        """Whether every weight is finite, in all processes if they are cut over several."""
        params = self.sharded.local.values() if self.sharded else self.model.parameters()
        finite = all(bool(p.isfinite().all()) for p in params)
        return self.sharded.is_true_everywhere(finite) if self.sharded else finite

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resume needs: tensors by name, and counters. Of weights that are cut over
        several processes the tensors are read by all of them together."""
        model = self.sharded.state() if self.sharded else self.model.state_dict()
        joined = self.sharded.joined if self.sharded else lambda _, tensor: tensor
        tensors = {f"model/{name}": t for name, t in model.items()}
        tensors |= {f"ema/{name}": joined(name, t) for name, t in self.ema.weights.items()}
        tensors |= {f"best/{name}": t for name, t in self.best_weights.items()}
        params = self.sharded.local.items() if self.sharded else self.model.named_parameters()
        names = {id(p): name for name, p in params}
        numbers, slots_of = {}, {}
        for update, moving in zip(self.updates, self.optimisers, strict=True):
            if moving:
                slots, numbers[update.name] = pack(moving, names)
                slots_of[update.name] = len(slots)
                tensors |= {
                    f"optimiser/{update.name}/{path}": joined(path.rpartition("/")[0], t)
                    for path, t in slots.items()
                }
        counters = {
            "step": self.step,
            "evals_without_improvement": self.evals_without_improvement,
            "least_critic_distance": self.least_critic_distance,
            "evals_without_lower_distance": self.evals_without_lower_distance,
            "seconds": self.seconds,
            "best": None if self.best is None else self.best.to_dict(),
            "best_step": self.best_step,
            "optimiser": numbers,
            "slots": slots_of,
            "schedule_steps": self.schedule_steps,
            "whole_epochs": True,
            "refit": None if self.refit is None else asdict(self.refit),
        }
        return tensors, counters

    def restore(self, tensors: Mapping[str, Tensor], counters: dict[str, Any]) -> None:
        """Load what `state` returned, in as many processes as there are."""

        def under(
            prefix: str, take: Callable[[str, Tensor], Tensor] = lambda _, tensor: tensor
        ) -> dict[str, Tensor]:
            names = (name for name in tensors if name.startswith(prefix))
            return {(k := name.removeprefix(prefix)): take(k, tensors[name]) for name in names}

        self.check_batches(counters)
        try:
            self.model.load_state_dict(under("model/"))
            if self.shard:
                self.shard_weights()
            sharded = self.sharded
            part = sharded.part if sharded else lambda _, tensor: tensor
            self.ema.restore({k: v.to(self.device) for k, v in under("ema/", part).items()})
            params = sharded.local if sharded else dict(self.model.named_parameters())
            for update, moving, settings in zip(
                self.updates, self.optimisers, self.settings, strict=True
            ):
                if moving:
                    slots = under(
                        f"optimiser/{update.name}/", lambda k, v: part(k.rpartition("/")[0], v)
                    )
                    if len(slots) != (count := counters["slots"][update.name]):
                        raise ValueError(
                            f"expected {count} optimiser tensors for {update.name}, "
                            f"found {len(slots)}"
                        )
                    unpack(moving, params, slots, counters["optimiser"][update.name])
                    check_slots(moving, settings)
            joined = sharded.joined if sharded else lambda _, tensor: tensor
            self.best_weights = under("best/", lambda k, v: joined(k, part(k, v)))
            self.best = None if counters["best"] is None else Metric(**counters["best"])
            check_same_names(
                "best weights", self.best_weights, self.trained.state_dict() if self.best else ()
            )
            self.step = counters["step"]
            self.evals_without_improvement = counters["evals_without_improvement"]
            self.least_critic_distance = counters.get("least_critic_distance")
            self.evals_without_lower_distance = counters.get("evals_without_lower_distance", 0)
            self.best_step, self.seconds = counters["best_step"], counters["seconds"]
            self.schedule_steps = counters.get("schedule_steps", 0)
            self.refit = Refit(**counters["refit"]) if counters["refit"] else None
        except (KeyError, RuntimeError, AttributeError, TypeError, ValueError) as error:
            raise RunError(
                f"the checkpoint does not match this model ({error}); it was written with another "
                "configuration or version, or is incomplete; restore run.json and "
                "last.safetensors from a copy, or start a new run"
            ) from error

    def check_batches(self, counters: dict[str, Any]) -> None:
        """RunError for a checkpoint of a version whose batches were others than those of now: it
        left out the rows of an epoch after the last full batch, and updates shared one order."""
        left_out = len(self.rows) % self.batch_size if self.sequences else 0
        if not counters.get("whole_epochs") and (left_out or len(self.sequences) > 1):
            raise RunError(
                "expected a checkpoint of this version, found one of a version that went through "
                f"the {len(self.rows)} training rows in another order; samples and scores of the "
                "run stay available, but to train on, start a new run with its settings"
            )


def mean_values(
    logged: list[tuple[int, str, Tensor]],
) -> tuple[dict[str, float], tuple[int, str, float] | None]:
    """The mean of the values (step, name, value) of each name, and the first that is not finite.
    All are converted at once, since every conversion waits for the device."""
    values = torch.stack([value.float() for *_, value in logged]).tolist() if logged else []
    by_name: dict[str, list[float]] = {}
    for (step, name, _), value in zip(logged, values, strict=True):
        if not math.isfinite(value):
            return {}, (step, name, value)
        by_name.setdefault(name, []).append(value)
    return {name: sum(entries) / len(entries) for name, entries in by_name.items()}, None
