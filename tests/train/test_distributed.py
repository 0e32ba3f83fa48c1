"""Batches that are cut into pieces, and several processes that compute them."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace

import pytest
import small_data
import torch
import worker_pair
from candidates import subject
from torch import nn
from training import advance, assert_unbroken

from monge import registry
from monge.cli.fit import command as fit_command
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.ensemble import Ensemble
from monge.core.errors import LostWorkerError, RunError, UsageError
from monge.core.model import Model
from monge.core.rng import derive_seed
from monge.core.train_config import TrainConfig
from monge.run.run import load, start
from monge.train import checkpoint, distributed
from monge.train.distributed import ALONE, Workers
from monge.train.trainer import Trainer

FAMILIES = (
    "autoregressive.made:binary:",
    "adversarial.dcgan:levels:",  # batch norm, two players, a closed-form monitor
    "adversarial.wgan:real:",
    "baseline.mixture:real:",  # EM on the whole split
    "latent.vae:binary:",
    "predict.logistic:label:picture",  # L-BFGS on the whole split
)


SHARED = tuple(f"shared:{FAMILIES[k]}" for k in (0, 2, 5))  # the sums are of any gradients
SHARDED = tuple(
    f"sharded:{name}"
    for name in (
        "adversarial.wgan:real:",  # updates that are no optimiser steps, derivatives in a loss
        "autoregressive.gpt:real:",  # blocks that are gathered one after the other
        "latent.vae:binary:",
    )
)


def largest_gap(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    gaps = [(one[key].double() - other[key].double()).abs() for key in one]
    return max(float(gap.max()) for gap in gaps if gap.numel())


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def trained(name: str, steps: int = 5, **settings) -> Trainer:
    made = worker_pair.trainer(name, **settings)
    advance(made, steps)
    return made


@pytest.mark.parametrize(
    "pieces", [{"accumulate": 3}, {"shards": 4}, {"shards": 2, "accumulate": 3}]
)
def test_pieces_of_unequal_size_equal_the_whole_batch(pieces):
    """The loss of made is a mean over rows, without noise or batch statistics; 63 rows, and 33 in
    the last batch of the epoch."""
    whole = trained("autoregressive.made:binary:", 11, shards=1)
    cut = trained("autoregressive.made:binary:", 11, **{"shards": 1, **pieces})
    assert largest_gap(weights(whole), weights(cut)) < 1e-12
    (terms, *_), (other, *_) = whole.read(), cut.read()
    assert terms == pytest.approx(other, rel=1e-12)


def test_weighted_rows_count_the_same_in_pieces():
    def make(**settings):
        made = worker_pair.trainer("autoregressive.made:binary:", **settings)
        weight = torch.linspace(0.1, 2, len(made.rows.all), dtype=torch.float64)
        made.rows.all = replace(made.rows.all, weight=weight)
        advance(made, 4)
        return weights(made)

    assert largest_gap(make(shards=1), make(shards=5)) < 1e-12


def test_lbfgs_on_pieces_of_the_split_equals_lbfgs():
    name = "predict.logistic:label:picture"
    whole, cut = trained(name, shards=1), trained(name, shards=4)
    assert largest_gap(weights(whole), weights(cut)) < 1e-8


class NoisyModel(Model):
    """Logs the rows and the noise of each loss, moves one number and counts rows in a buffer."""

    events = {"real"}

    def __init__(self, space):
        super().__init__(NoisyModel.Config(), space)
        self.a, self.norm = nn.Parameter(torch.zeros(())), nn.BatchNorm1d(1, affine=False)
        self.seen = []

    def loss(self, batch: Batch):
        noise = torch.randn(3)
        self.norm(batch.x[:, :1])
        self.seen.append((batch.row.tolist(), noise))
        return {"loss": (batch.x[:, 0] - self.a) ** 2}

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


def noisy(**settings) -> Trainer:
    space, batch = small_data.make("real")
    made = Trainer(
        NoisyModel(space), small_data.Rows(batch), TrainConfig(batch_size=100, **settings), seed=4
    )
    advance(made, 1)
    return made


def test_one_piece_is_seeded_by_step_and_update_alone():
    """What runs were before batches could be cut."""
    made = noisy()
    ((rows, noise),) = made.model.seen
    torch.manual_seed(derive_seed(4, "step", 0, "model"))
    assert torch.equal(noise, torch.randn(3))
    assert rows == made.index(0).tolist()


def test_each_piece_has_its_own_noise_and_statistics():
    made, x = noisy(shards=3), small_data.make("real")[1].x[:, 0]
    rows, noise = zip(*made.model.seen, strict=True)
    assert [row for piece in rows for row in piece] == made.index(0).tolist()
    assert [len(piece) for piece in rows] == [34, 33, 33]
    assert len({tuple(each.tolist()) for each in noise}) == 3
    again = noisy(shards=1, accumulate=3)
    assert all(torch.equal(a, b[1]) for a, b in zip(noise, again.model.seen, strict=True))
    means = [float(x[list(piece)].mean()) * len(piece) / 100 for piece in rows]
    assert float(made.model.norm.running_mean) == pytest.approx(0.1 * sum(means), rel=1e-4)
    variances = [float(x[list(piece)].var()) * len(piece) / 100 for piece in rows]
    expected = 0.9 + 0.1 * sum(variances)
    assert float(made.model.norm.running_var) == pytest.approx(expected, rel=1e-4)
    assert int(made.model.norm.num_batches_tracked) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_resuming_a_cut_fit_changes_nothing(name, tmp_path):
    assert_unbroken(lambda: worker_pair.trainer(name), tmp_path)


def test_a_bootstrap_is_cut_like_any_batch():
    case = subject("autoregressive.made", "binary", "")
    config = Ensemble.Config(member=case.config, members=2, bag=True)

    def make(shards: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = config.build(case.space).double()
        rows = small_data.Rows(case.train.all.double())
        made = Trainer(model, rows, replace(case.train_config, shards=shards), seed=1)
        advance(made, 3)
        assert int(model.bootstrap_rows) == len(rows)
        return weights(made)

    assert largest_gap(make(1), make(4)) < 1e-12


def test_pieces_and_workers_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"\b63\b.*\b64\b"):
        worker_pair.trainer(FAMILIES[0], shards=8, accumulate=8)
    with pytest.raises(UsageError, match=r"\b4\b.*\b3\b"):
        worker_pair.trainer(FAMILIES[0], Workers(0, 3), shards=4)


def test_processes_that_cannot_connect_are_told_so(monkeypatch):
    for name, value in zip(
        distributed.LAUNCH_VARIABLES, ("0", "4", "localhost", "1"), strict=True
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed.dist, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"\b4\b"):
        distributed.join_workers()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert distributed.join_workers() is ALONE


def test_one_process_needs_no_other():
    with ALONE.together():
        assert ALONE.agree(lambda: math.pi) == math.pi
    with pytest.raises(RunError, match="full"), ALONE.together():
        raise RunError("full")
    assert list(ALONE.share(4)) == [0, 1, 2, 3]
    assert list(Workers(1, 2).share(4)) == [2, 3]
    assert issubclass(LostWorkerError, RunError)


def gaps_to_one_process(folder, steps, names) -> dict[str, float]:
    """The largest difference of any tensor of the state, for each subject."""
    gaps = {}
    for name in names:
        tensors, counters = checkpoint.load(worker_pair.path_of(folder, name))
        settings = worker_pair.SHARDED_SETTINGS if name.startswith("sharded:") else {}
        expected, own = trained(name, steps, **settings).state()
        assert counters == own
        gaps[name] = largest_gap(expected, tensors)
    return gaps


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder in which two processes have trained the families and exchanged values."""
    folder = tmp_path_factory.mktemp("pair")
    worker_pair.train(folder, 3, *FAMILIES, *SHARED, *SHARDED)
    return folder


def test_two_workers_equal_one_process(pair):
    gaps = gaps_to_one_process(pair, 3, (*FAMILIES, *SHARED))
    assert {name: gap for name, gap in gaps.items() if not gap < 1e-9} == {}


def test_weights_cut_over_two_workers_equal_one_process(pair):
    gaps = gaps_to_one_process(pair, 3, SHARDED)
    assert {name: gap for name, gap in gaps.items() if not gap < 1e-9} == {}


def test_a_run_with_cut_weights_is_like_one_without(pair):
    one, other = load(pair / "run"), load(pair / "sharded")
    for file in ("last.safetensors", "best.safetensors"):
        whole, cut = (checkpoint.load(run.folder / file) for run in (one, other))
        assert largest_gap(whole[0], cut[0]) < 1e-5  # single precision
        assert {*whole[1]} == {*cut[1]}
    assert [entry["step"] for entry in other.log] == [4, 6]
    assert other.result["held_out"]["value"] == pytest.approx(one.result["held_out"]["value"])
    for _ in other.train("8steps"):  # one process goes on
        pass
    assert other.result["step"] == 8


@pytest.mark.parametrize(
    ("name", "settings", "size", "named"),
    [
        ("autoregressive.made:binary:", {}, 1, "--workers"),
        ("baseline.mixture:real:", {}, 2, "closed form"),
        ("predict.logistic:label:picture", {}, 2, "lbfgs"),
        ("autoregressive.made:binary:", {"weight_noise": 0.1}, 2, "weight_noise"),
        ("autoregressive.made:binary:", {"refit": "same", "patience": 3}, 2, "refit=same"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(name, settings, size, named):
    made = worker_pair.trainer(name, **settings)
    with pytest.raises(UsageError, match=named):
        Trainer(made.model, made.rows, made.train_config, workers=Workers(0, size), shard=True)


def test_workers_agree_fail_together_and_notice_differences(pair):
    first, second = (json.loads((pair / f"exchanged-{rank}.json").read_text()) for rank in (0, 1))
    for found in (first, second):
        assert found["short"] == [0, None, "é"]
        assert found["long"] == "x" * 2000 + "0"
        assert found["same"] == []
        assert found["sum"] == [[[3.0] * 3] * 2, 10.0]
        assert found["memory"] == [5, 6]
        kind, sentence = found["differ"]
        assert kind == ("RunError" if found is first else "LostWorkerError")
        assert "data" in sentence
        assert "code" not in sentence
    for name, kind in {"agree": "DataError", "together 0": "DataError"}.items():
        assert first[name] == [kind, "no rows in 0"]
        assert second[name] == ["LostWorkerError", "no rows in 0"]
    kind, sentence = first["together 1"]
    assert kind == "RunError"
    assert "no rows in 1" in sentence
    assert second["together 1"][0] == "LostWorkerError"


def test_gradients_of_three_processes_are_summed_in_their_memory():
    shapes = ((), (), (3, 2))
    dtypes = (torch.float32, torch.float64, torch.float32)
    generator = torch.Generator().manual_seed(0)
    own = [
        [nn.Parameter(torch.zeros(s, dtype=d)) for s, d in zip(shapes, dtypes, strict=True)]
        for _ in range(3)
    ]
    for params in own:
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)
    own[0][2].grad = own[1][1].grad = own[2][1].grad = own[0][1].grad = None
    size = distributed.shared_bytes(own[0])
    memory = torch.full((6 * size,), 255, dtype=torch.uint8).split(size)  # what was there before
    exchanges = [
        distributed.SharedGradients(params, Workers(rank, 3), memory)
        for rank, params in enumerate(own)
    ]
    due = [
        sum((p.grad if p.grad is not None else torch.zeros_like(p)) for p in same)
        for same in zip(*own, strict=True)
    ]
    for _ in range(3):
        for exchange in exchanges:
            exchange.write()
        for exchange in exchanges:
            for found, expected in zip(exchange.sums(), due, strict=True):
                assert torch.equal(found, expected)
                assert found.dtype == expected.dtype
        for params in own:
            for param, expected in zip(params, due, strict=True):
                if param.grad is not None:
                    assert torch.equal(param.grad, expected)
        due = [3 * each for each in due]
        for params in own:
            params[2].grad = due[2] / 3


def test_gradients_are_written_where_nobody_reads_those_before():
    """A process that goes on to its next step replaces nothing that another still adds."""
    params = [[nn.Parameter(torch.zeros(4))] for _ in range(2)]
    size = distributed.shared_bytes(params[0])
    memory = torch.zeros(4 * size, dtype=torch.uint8).split(size)
    quick, late = (
        distributed.SharedGradients(own, Workers(rank, 2), memory)
        for rank, own in enumerate(params)
    )
    for step in range(1, 5):
        for (param,), exchange in zip(params, (quick, late), strict=True):
            param.grad = torch.full((4,), float(step))
            exchange.write()
        assert torch.equal(quick.sums()[0], torch.full((4,), 2.0 * step))
        params[0][0].grad = torch.full((4,), 100.0)
        quick.write()  # of the next step, before the other has added this one
        assert torch.equal(late.sums()[0], torch.full((4,), 2.0 * step))
        params[1][0].grad = torch.full((4,), 100.0)
        late.write()
        assert torch.equal(late.sums()[0], torch.full((4,), 200.0))
        quick.sums()


class OtherMachine(Workers):
    """One of two processes, of which the second is on another machine than the first."""

    sent: tuple[str, str] = ("", "")
    sums: tuple[float, ...] = ()

    def agree(self, compute):
        return compute() if self.is_first else self.sent

    def sum(self, tensors):
        OtherMachine.sums = tuple(map(float, tensors))
        return [tensor + self.is_first for tensor in tensors]  # the first alone has the memory


def test_processes_of_two_machines_share_no_memory():
    handle = os.memfd_create("gradients-of-mine")  # where the first has its own, as it may happen
    os.ftruncate(handle, 8)
    here, none = f"/proc/{os.getpid()}/fd/{handle}", "/proc/0/fd/1"
    for path, name, shared in (
        (here, "gradients-of-mine", True),
        (here, "gradients-of-another", False),
        (none, "gradients-of-another", False),
    ):
        OtherMachine.sent = (path, name)
        assert (distributed.share_memory(8, OtherMachine(1, 2)) is not None) == shared
        assert OtherMachine.sums == (float(not shared),)  # the first learns of it
    os.close(handle)
    assert distributed.share_memory(8, OtherMachine(0, 2)) is None


def test_small_gradients_and_those_of_other_devices_are_not_shared():
    pair, half = Workers(1, 2), distributed.SHARED_BYTES // 8
    for workers, size, device in (
        (ALONE, 2 * half, "cpu"),
        (pair, half, "cpu"),
        (pair, 2 * half, "meta"),
    ):
        params = [nn.Parameter(torch.empty(size, device=device))]
        assert distributed.shared_gradients(params, workers) is None


def state_of(folder) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "last.safetensors")[0]


def test_a_run_of_two_workers_is_resumed_by_one(pair, tmp_path):
    run = load(pair / "run")
    assert run.metadata["train"]["shards"] == 2
    assert [entry["step"] for entry in run.log] == [4, 6]
    for _ in run.train("10steps"):
        pass
    whole = start(*worker_pair.SMALL_FIT, "train.shards=2", out=tmp_path / "one")
    for _ in whole.train("10steps"):
        pass
    assert largest_gap(state_of(run.folder), state_of(whole.folder)) < 1e-4  # single precision


def test_workers_get_the_command_line_without_their_number(monkeypatch):
    launched = []
    monkeypatch.setattr(distributed, "launch", lambda *words: launched.append(words) or 3)
    words = ["made", "iris", "width=8", "--given", "a", "--given", "b", "--seed", "4", "-q"]
    assert attempt(["fit", *words, "--workers", "2"]) == 3
    ((command, count, threads),) = launched
    assert count == 2
    assert threads >= 1
    assert command[:5] == [sys.executable, "-P", "-m", "monge", "fit"]
    context = fit_command.make_context("fit", command[5:])
    expected = fit_command.make_context("fit", words)
    assert context.params == expected.params


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_ends_early_ends_all_with_one_sentence(rank, monkeypatch, capfd):
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 1.0)
    program = f"import os, time; os.environ['RANK'] == '{rank}' and os.kill(os.getpid(), 9); "
    program += "time.sleep(60)"
    with pytest.raises(RunError, match=rf"worker {rank} .*\b9\b"):
        distributed.launch([sys.executable, "-c", program], 2, 1)
    assert capfd.readouterr() == ("", "")


def test_more_workers_than_a_machine_can_hold_are_not_started(monkeypatch):
    monkeypatch.setattr(distributed.subprocess, "Popen", None)
    most = distributed.MOST_PER_PROCESSOR * os.cpu_count()
    with pytest.raises(UsageError, match=rf"\b{most}\b.*\b{most + 1}\b"):
        distributed.launch([sys.executable], most + 1, 1)


def test_the_exit_code_is_that_of_the_first_worker():
    program = "import os, sys; sys.exit(2 * (os.environ['RANK'] == '0'))"
    assert distributed.launch([sys.executable, "-c", program], 2, 1) == 2


def test_workers_end_their_connection_before_the_interpreter_ends():
    """Otherwise a busy machine aborts most of them when all is done."""
    program = """
import atexit, torch, torch.distributed as dist, os
atexit.register(lambda: os._exit(dist.is_initialized()))  # called last
from monge.train.distributed import join_workers
assert join_workers().sum([torch.ones(1)])[0] == 2
"""
    assert distributed.launch([sys.executable, "-c", program], 2, 1) == 0


def test_a_fit_that_torchrun_starts_again_goes_on_in_its_folder(tmp_path, monkeypatch):
    first = start("made", "iris", "width=8", name="mine")
    for _ in first.train("3steps"):
        pass
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = start("made", "iris", "width=8", name="mine")
    assert again.folder == first.folder
    for _ in again.train("6steps"):
        pass
    assert again.result["step"] == 6
    other = start("made", "iris", "width=9", name="mine")
    assert other.folder != first.folder
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert start("made", "iris", "width=8", name="mine").folder != first.folder


@pytest.mark.slow
def test_two_workers_equal_one_process_for_every_model(tmp_path):
    names = worker_pair.subjects()
    worker_pair.train(tmp_path, 20, *names)
    gaps = gaps_to_one_process(tmp_path, 20, names)
    print("largest gap of", len(gaps), "models:", max(gaps.values()))
    assert {name: gap for name, gap in gaps.items() if not gap < 1e-9} == {}


@pytest.mark.slow
def test_cut_weights_equal_one_process_for_every_model(tmp_path):
    names = [f"sharded:{name}" for name in worker_pair.subjects()]
    worker_pair.train(tmp_path, 20, *names)
    refused = json.loads((tmp_path / "refused.json").read_text())
    taken = [name for name in names if not refused[name]]
    families = {name.split(":")[1].split(".")[0] for name in taken}
    assert families == {entry.family for entry in registry.entries()} - {"baseline"}
    gaps = gaps_to_one_process(tmp_path, 20, taken)
    print("largest gap of", len(gaps), "models:", max(gaps.values()))
    print("refused:", {name: why for name, why in refused.items() if why})
    assert {name: gap for name, gap in gaps.items() if not gap < 1e-9} == {}
