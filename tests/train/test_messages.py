"""What workers send one another: threads stand for processes, so that every case is quick."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from monge.core.errors import DataError, LostWorkerError, RunError
from monge.train import distributed
from monge.train.distributed import MESSAGE_BYTES, GradientMessages, Workers, early_messages
from monge.train.trainer import LossState, PieceSums


class Threads:
    """The collective operations of torch.distributed among threads."""

    def __init__(self, size: int) -> None:
        self.size, self.wall = size, threading.Barrier(size, timeout=20)
        self.slots, self.own = {}, threading.local()
        self.messages = []  # their sizes, as the first thread sends them

    def all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all threads."""
        self.slots[self.own.rank] = tensor.detach().clone()
        if self.own.rank == 0:
            self.messages.append(tensor.numel())
        self.wall.wait()
        found = [self.slots[rank] for rank in range(self.size)]
        self.wall.wait()
        return found

    def broadcast(self, tensor, source):
        tensor.copy_(self.all(tensor)[source])

    def all_reduce(self, tensor, async_op=False):
        tensor.copy_(sum(self.all(tensor)))
        return SimpleNamespace(wait=lambda: None)

    def all_gather(self, tensors, tensor):
        for place, each in zip(tensors, self.all(tensor), strict=True):
            place.copy_(each)


@pytest.fixture
def run(monkeypatch):
    """Run work(workers) in threads; what each returns or raises."""

    def start(work, size=3):
        group = Threads(size)
        monkeypatch.setattr(distributed, "dist", group)
        found = [None] * size

        def one(rank):
            group.own.rank = rank
            try:
                found[rank] = work(Workers(rank, size))
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found, group.messages

    return start


def test_pieces_are_shared_in_order():
    assert [[*Workers(rank, 3).share(6)] for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [Workers(rank, 3).is_first for rank in range(3)] == [True, False, False]


@pytest.mark.parametrize("length", [0, 1, MESSAGE_BYTES - 8, MESSAGE_BYTES - 7, 3 * MESSAGE_BYTES])
@pytest.mark.parametrize("source", [0, 2])
def test_a_message_comes_whole_in_as_few_as_it_takes(length, source, run):
    text = bytes(k % 251 for k in range(length))
    found, sizes = run(lambda w: w.send_bytes(text if w.rank == source else b"x" * 700, source))
    assert found == [text] * 3
    long = length > MESSAGE_BYTES - 8
    assert sizes == [MESSAGE_BYTES] + [length] * long


def test_all_get_the_value_or_the_error_of_the_first(run):
    found, _ = run(lambda w: w.agree(lambda: [w.rank, "é", None]))
    assert found == [[0, "é", None]] * 3

    def fail(w):
        def compute():
            raise DataError("no rows")

        return w.agree(compute)

    found, _ = run(fail)
    assert [type(each) for each in found] == [DataError, LostWorkerError, LostWorkerError]
    assert [str(each) for each in found] == ["no rows"] * 3
    assert Workers().agree(lambda: {1}) == {1}  # alone nothing is sent


@pytest.mark.parametrize("broken", [0, 2])
def test_a_block_that_fails_in_one_fails_in_all(broken, run):
    def work(w):
        with w.together():
            if w.rank == broken:
                raise DataError("no rows")
        return "done"

    found, _ = run(work)
    assert all(isinstance(each, LostWorkerError) for each in found[1:])
    assert isinstance(found[0], DataError if broken == 0 else RunError)
    assert ("2" in str(found[0])) == (broken == 2)
    assert all("no rows" in str(each) for each in found)


def test_a_block_that_succeeds_goes_on(run):
    def work(w):
        with w.together():
            pass
        return w.rank

    assert run(work)[0] == [0, 1, 2]
    with pytest.raises(DataError), Workers().together():
        raise DataError("no rows")
    with Workers().together():
        pass


def test_a_lost_worker_is_not_told_to_the_others():
    with pytest.raises(LostWorkerError), Workers(0, 2).together():
        raise LostWorkerError("ended")


def test_sums_keep_shapes_and_types(run):
    def work(w):
        tensors = [torch.full((2, 3), w.rank + 1.0), torch.tensor(w.rank, dtype=torch.float64)]
        return w.sum(tensors)

    found, sizes = run(work)
    for first, second in found:
        assert torch.equal(first, torch.full((2, 3), 6.0))
        assert torch.equal(second, torch.tensor(3.0, dtype=torch.float64))
    assert sizes == [7]  # one message
    assert run(lambda w: w.sum([]))[0] == [[], [], []]
    found, sizes = run(lambda w: w.barrier())
    assert (found, sizes) == ([None] * 3, [1])


def test_tensors_are_given_to_all(run):
    def work(w):
        value = torch.full((2, 2), float(w.rank)).T[:, :1]  # not contiguous
        w.broadcast([value], 1)
        return value

    assert all(torch.equal(each, torch.ones(2, 1)) for each in run(work)[0])


def test_the_first_says_what_differs(run):
    assert run(lambda w: w.check_same({"code": 1, "data": [1]}))[0] == [None] * 3
    found, _ = run(lambda w: w.check_same({"code": 1, "data": w.rank == 2}))
    assert [type(each) for each in found] == [RunError, LostWorkerError, LostWorkerError]
    assert "data" in str(found[0])
    assert "worker 2" in str(found[0])
    Workers().check_same({"code": 1})


def params(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def test_gradients_are_sent_in_messages_from_the_last_to_the_first(monkeypatch, run):
    monkeypatch.setattr(distributed, "EARLY_BYTES", 16)  # four numbers
    weights = params(2, 3, 4, 1, 3, 2)
    grouped = [[len(each) for each in message] for message in GradientMessages(weights).waiting]
    assert grouped == [[2, 3], [1, 4], [3, 2]]  # a message ends once it has four
    mixed = [*params(1), nn.Parameter(torch.zeros(1).double()), *params(1, 1)]
    assert [len(message) for message in GradientMessages(mixed).waiting] == [2, 1, 1]

    def work(w):
        weights = params(2, 3, 4)
        messages = GradientMessages(weights)
        with messages.sending():
            loss = sum((k + 1) * p.sum() for k, p in enumerate(weights[1:]))
            (loss * (w.rank + 1)).backward()
            sent = len(messages.sent)
        (weights[1] * 0).sum().backward()  # after the block nothing is sent by itself
        sums = messages.sums()
        return sent, len(messages.sent), [sums[id(p)].tolist() for p in weights]

    found, sizes = run(work)
    assert found == [(1, 2, [[0.0] * 2, [6.0] * 3, [12.0] * 4])] * 3
    assert sizes == [4, 5]


def test_small_gradients_go_in_one_message_at_the_end(monkeypatch):
    monkeypatch.setattr(distributed, "EARLY_BYTES", 16)
    assert early_messages(params(4, 3), Workers(0, 2)) is None
    assert early_messages(params(4, 4), Workers(0, 2)) is not None
    assert early_messages(params(4, 4), Workers()) is None


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.once, self.never = params(2, 2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("still", torch.ones(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)


@pytest.mark.parametrize("early", [False, True])
def test_pieces_of_all_workers_are_one_batch(early, monkeypatch, run):
    """Gradients are sums, losses too, and statistics that some pieces change are their mean."""
    monkeypatch.setattr(distributed, "EARLY_BYTES", 4 if early else 2**20)

    def work(w):
        model = Counted()
        weights, state = list(model.parameters()), LossState(model)
        sums = PieceSums(weights, w)
        assert (sums.early is not None) == early
        for piece in w.share(4):
            share = (0.1, 0.2, 0.3, 0.4)[piece]
            with state.piece(share):
                model.count += 1
                if piece != 0:
                    model.mean.add_(float(piece))
            loss = (piece + 1) * model.used.sum() + (model.once.sum() if w.rank else 0)
            with sums.piece(piece == w.share(4)[-1]):
                (share * loss).backward()
            sums.add({"a": torch.full((3,), float(piece))}, torch.tensor(2.0 * piece), share)
        losses, total = sums.reduced(state)
        assert model.never.grad is None
        assert torch.equal(model.unsaved, torch.zeros(2))
        assert torch.equal(model.still, torch.ones(2))
        return (
            model.used.grad[0].item(),
            model.once.grad[0].item(),
            losses["a"].item(),
            total.item(),
            model.mean[0].item(),
            int(model.count),
        )

    found, _ = run(work, 2)
    rows = 0.2 + 2 * 0.3 + 3 * 0.4
    for each in found:
        due = (0.1 + 0.4 + 0.9 + 1.6, 0.7, rows, 2 * rows, rows)
        assert each[:5] == pytest.approx(due)
        assert each[5] == 1  # every piece starts from the values before the first
