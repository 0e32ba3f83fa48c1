"""Sequences that branch and share their past equal sequences that each have their own."""

import pytest
import torch

from monge.core.errors import UsageError
from monge.core.rng import make_generator
from monge.nn.attention import beam_cache
from monge.nn.attention.beam_cache import BeamTree
from monge.nn.attention.softmax import KeyValueCache
from monge.nn.attention.transformer import DecoderStack

ROWS, KIN, MOST = 3, 4, 8


def built(positions: str, norm: str) -> DecoderStack:
    torch.manual_seed(0)
    config = DecoderStack.Config(
        width=8, depth=2, heads=2, expand=2, positions=positions, norm=norm
    )
    return config.build(8, 5, 6, MOST).double().eval()


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary", "alibi", "table"])
@pytest.mark.parametrize("read", [2, 5])
@torch.no_grad()
def test_a_branched_state_gives_what_a_whole_pass_gives(monkeypatch, positions, norm, read):
    monkeypatch.setattr(beam_cache, "PRUNE_EVERY", 2)
    net, memory = built(positions, norm), normal(ROWS, read, 6, seed=1)
    length = torch.tensor([read, 2, 1])
    state = net.start(ROWS, MOST, memory, length)
    paths = normal(ROWS, 1, 8, seed=2)  # the inputs of each sequence so far
    owner = torch.arange(ROWS)
    net.step(state, paths[:, -1])
    plan = [(KIN, None), (KIN, None), (KIN, [2, 0]), (1, None), (2, None)]
    beams = 1
    for number, (more, rows) in enumerate(plan):
        g = make_generator(10 + number)
        groups = torch.tensor(rows) if rows else torch.arange(len(paths) // beams)
        pick = torch.randint(beams, (len(groups), more), generator=g)
        if beams == 1 or more != beams:  # a new fan has one origin
            pick = pick[:, :1].expand(-1, more)
        taken = (groups[:, None] * beams + pick).flatten()
        state.reorder(taken, more)
        paths, owner, beams = paths[taken], owner[taken], more
        x = normal(len(paths), 8, seed=20 + number)
        paths = torch.cat([paths, x[:, None]], 1)
        stepped = net.step(state, x)
        whole = net(paths, memory[owner], length[owner])[:, -1]
        torch.testing.assert_close(stepped, whole, rtol=0, atol=1e-12)
        kind = state.blocks[0][1].past
        assert isinstance(kind, BeamTree if beams > 1 else KeyValueCache)
        short = state.blocks[0][1].memory.short
        assert (short is not None) == (beams > 1 and read == 2)


@torch.no_grad()
def test_a_tree_leaves_what_lies_on_no_path_behind():
    """Every sequence of a row goes on from the first, so that all but the last step are shared."""
    net, rows, beams = built("none", "pre"), 2, 3
    state = net.start(rows, 9, normal(rows, 4, 6, seed=0))
    net.step(state, normal(rows, 8, seed=1))
    state.reorder(torch.arange(rows).repeat_interleave(beams), beams)
    for step in range(beam_cache.PRUNE_EVERY):
        net.step(state, normal(rows * beams, 8, seed=2 + step))
        state.reorder((torch.arange(rows) * beams).repeat_interleave(beams), beams)
    tree = state.blocks[0][1].past
    assert (tree.steps, tree.count) == (1 + beam_cache.PRUNE_EVERY, 1 + beam_cache.PRUNE_EVERY)


@torch.no_grad()
def test_a_tree_does_not_grow_beyond_what_it_was_started_for():
    net = built("none", "pre")
    state = net.start(1, 2, normal(1, 3, 6, seed=0))
    net.step(state, normal(1, 8, seed=1))
    state.reorder(torch.zeros(3, dtype=torch.long), 3)
    net.step(state, normal(3, 8, seed=2))
    with pytest.raises(UsageError, match=r"\b2 steps"):
        net.step(state, normal(3, 8, seed=3))
