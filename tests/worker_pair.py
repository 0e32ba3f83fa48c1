"""Training by two processes: `train` runs this file as both of them, which exchange values, fit a
small run and walk some subjects.

    python worker_pair.py FOLDER STEPS SUBJECT...

A subject is model, kind of event and condition with colons between them; the kind `sentences` is
that of models which take texts alone.
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
from monge.core.errors import DataError, MongeError
from monge.run.run import start
from monge.train import checkpoint, distributed
from monge.train.trainer import Trainer

SMALL_FIT = ("made", "iris", "width=8", "train.eval_every=4")
"""Model, data and settings of the run that both processes fit, in the folder `run`."""


def subjects() -> list[str]:
    """Every model of the registry on the first data that it takes."""
    pairs = {entry.name: supported(entry.name)[:1] for entry in registry.entries()}
    return [
        ":".join((name, *(pair[0] if pair else ("sentences", "")))) for name, pair in pairs.items()
    ]


def trainer(
    subject: str,
    workers: distributed.Workers = distributed.ALONE,
    shard: bool = False,
    **settings,
) -> Trainer:
    """The trainer of a subject in float64, two shards a batch."""
    name, kind, given = subject.split(":")
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
    return Trainer(model, rows, train_config, seed=1, workers=workers, shard=shard)


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
    return found


def outcome(attempt: Callable[[], object]) -> list[str]:
    """The class and the sentence of the error, if there is one."""
    try:
        attempt()
    except MongeError as error:
        return [type(error).__name__, str(error)]
    return []


if __name__ == "__main__":
    torch.set_num_threads(1)
    group = distributed.join_workers()
    exchanged = json.dumps(exchange(group))
    (Path(sys.argv[1]) / f"exchanged-{group.rank}.json").write_text(exchanged)
    for _ in start(*SMALL_FIT, out=Path(sys.argv[1]) / "run").train("6steps"):
        pass
    for each in sys.argv[3:]:
        made = trainer(each, group)
        advance(made, int(sys.argv[2]))
        if group.is_first:
            checkpoint.save(path_of(Path(sys.argv[1]), each), *made.state())
