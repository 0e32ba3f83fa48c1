"""Training by two processes: `train` runs this file as both of them, which exchange values, fit a
small run and walk some subjects.

    python worker_pair.py FOLDER STEPS SUBJECT...

A subject is model, kind of event and condition with colons between them; the kind `sentences` is
that of models which take texts alone. Before a subject `sharded:` cuts its weights, and `shared:`
sums gradients of any size in shared memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import small_data
import torch
from candidates import Subject, supported
from training import advance

from monge import registry
from monge.core.errors import DataError, MongeError, UsageError
from monge.run.run import start
from monge.run.saved import ComputeConfig
from monge.train import checkpoint, distributed
from monge.train.sharding import read_whole
from monge.train.trainer import Trainer

SHARDED_SETTINGS = {"ema_decay": 0.9, "grad_clip": 0.5, "accumulate": 2, "l1": 1e-3}
"""Training settings of models whose weights are cut, beside their own."""
SMALL_FIT = ("made", "iris", "width=8", "train.eval_every=4", "train.ema_decay=0.9")
"""Model, data and settings of the run that both processes fit, in the folder `run`."""
SHARED_BYTES = distributed.SHARED_BYTES


def subjects() -> list[str]:
    """Every model of the registry on the first data that it takes."""
    pairs = {entry.name: supported(entry.name)[:1] for entry in registry.entries()}
    return [
        ":".join((name, *(pair[0] if pair else ("sentences", "")))) for name, pair in pairs.items()
    ]


def trainer(subject: str, workers: distributed.Workers = distributed.ALONE, **settings) -> Trainer:
    """The trainer of a subject in float64, two shards a batch; one process cuts no weights."""
    *how, name, kind, given = subject.split(":")
    if kind == "sentences":
        space, batch = small_data.sentences(4)
        model_class = registry.find(name)
        config, defaults = model_class.smallest_config(space), model_class.defaults(space).train
    else:
        case = Subject(name, kind, given)
        space, batch, config, defaults = (
            case.space,
            case.batch[:600],
            case.config,
            case.train_config,
        )
    rows = small_data.Rows(batch.double())
    train_config = replace(defaults, **({"shards": 2, "batch_size": 63, "warmup": 0} | settings))
    torch.manual_seed(0)
    model = config.build(space).double()
    return Trainer(
        model,
        rows,
        train_config,
        seed=1,
        workers=workers,
        shard=how == ["sharded"] and workers.size > 1,
    )


def train(folder: Path, steps: int, *names: str) -> None:
    """Train these subjects with two processes; the first saves the state of each."""
    command = [sys.executable, __file__, str(folder), str(steps), *names]
    assert distributed.launch(command, 2, 1) == 0


def path_of(folder: Path, subject: str) -> Path:
    return folder / f"{subject.replace(':', '-')}.safetensors"


def exchange(group: distributed.Workers) -> dict[str, object]:
    """What this process gets when both agree, fail or differ."""

    def failing(rank: int) -> None:
        if group.rank == rank:
            raise DataError(f"no rows in {rank}")

    found: dict[str, object] = {
        "short": group.agree(lambda: [group.rank, None, "é"]),
        "long": group.agree(lambda: "x" * 2000 + str(group.rank)),
    }
    for name, attempt in {
        "agree": lambda: group.agree(lambda: failing(0)),
        "same": lambda: group.check_same({"code": 1, "data": [1, 2]}),
        "differ": lambda: group.check_same({"code": 1, "data": group.rank}),
    }.items():
        found[name] = outcome(attempt)
    for rank in range(2):

        def together(rank: int = rank) -> None:
            with group.together():
                failing(rank)

        found[f"together {rank}"] = outcome(together)
    tensors = [torch.full((2, 3), 1.0 + group.rank), torch.full((), 10.0 * group.rank)]
    found["sum"] = [tensor.tolist() for tensor in group.sum(tensors)]
    memory = distributed.share_memory(2, group)
    assert memory is not None
    memory[group.rank] = 5 + group.rank
    group.barrier()
    found["memory"] = list(memory[:2])
    return found


def outcome(attempt: Callable[[], object]) -> list[str]:
    """The class and the sentence of the error, if there is one."""
    try:
        attempt()
    except MongeError as error:
        return [type(error).__name__, str(error)]
    return []


def fit_small(folder: Path, shard: bool) -> None:
    run = start(*SMALL_FIT, out=folder, compute=ComputeConfig(shard=shard))
    for _ in run.train("6steps"):
        pass


def train_subject(subject: str, steps: int, group: distributed.Workers, folder: Path) -> str:
    """Train, go on from the state after half of the steps, and save; why it is refused, if so."""
    settings = SHARDED_SETTINGS if subject.startswith("sharded:") else {}
    path = path_of(folder, subject)
    least = 0 if subject.startswith("shared:") else SHARED_BYTES
    distributed.SHARED_BYTES = least
    try:
        made = trainer(subject, group, **settings)
    except UsageError as error:
        return str(error)
    advance(made, steps // 2)
    if made.sharded:
        checkpoint.save_in_turn(path, *made.state(), read_whole, group.is_first)
        group.barrier()
        made = trainer(subject, group, **settings)
        made.restore(*checkpoint.load(path, in_turn=True))
        group.barrier()
    advance(made, steps - steps // 2)
    taken = [each is not None for each in made.shared.values()]
    assert taken == [least == 0] * len(taken)  # no model is so large by itself
    if made.sharded:
        checkpoint.save_in_turn(path, *made.state(), read_whole, group.is_first)
    elif group.is_first:
        checkpoint.save(path, *made.state())
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    group, where = distributed.join_workers(), Path(sys.argv[1])
    exchanged = json.dumps(exchange(group))
    (where / f"exchanged-{group.rank}.json").write_text(exchanged)
    fit_small(where / "run", shard=False)
    fit_small(where / "sharded", shard=True)
    refused = {each: train_subject(each, int(sys.argv[2]), group, where) for each in sys.argv[3:]}
    if group.is_first:
        (where / "refused.json").write_text(json.dumps(refused))
