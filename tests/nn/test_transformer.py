"""Transformers against torch's layers, and what their blocks promise."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from monge.core.errors import UsageError
from monge.nn.attention.blocks import CausalBlock, EncoderBlock
from monge.nn.attention.transformer import CausalTransformer, DecoderStack, TransformerEncoder

SMALL = TransformerEncoder.Config(width=8, depth=2, heads=2, expand=2, positions="none")


pytestmark = pytest.mark.usefixtures("doubles")


def randomised(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net.eval()


def copy(attention, peer):
    own = (attention.enter, attention.leave)
    with torch.no_grad():
        peer.in_proj_weight.copy_(own[0].weight)
        peer.in_proj_bias.copy_(own[0].bias)
        peer.out_proj.load_state_dict(own[1].state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_equals_torchs(norm):
    block = randomised(EncoderBlock(replace(SMALL, norm=norm)))
    peer = nn.TransformerEncoderLayer(
        8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=norm == "pre"
    )
    copy(block.attention, peer.self_attn)
    for own, other in (
        (block.think.enter, peer.linear1),
        (block.think.leave, peer.linear2),
        (block.first.norm, peer.norm1),
        (block.last.norm, peer.norm2),
    ):
        other.load_state_dict(own.state_dict())
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(block(x), peer(x))


def test_a_decoder_block_equals_torchs():
    block = randomised(CausalBlock(replace(SMALL, norm="post"), memory=8))
    peer = nn.TransformerDecoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    copy(block.attention, peer.self_attn)
    ask = block.ask
    with torch.no_grad():
        peer.multihead_attn.in_proj_weight.copy_(torch.cat([ask.ask.weight, ask.enter.weight]))
        peer.multihead_attn.in_proj_bias.copy_(torch.cat([ask.ask.bias, ask.enter.bias]))
        peer.multihead_attn.out_proj.load_state_dict(ask.leave.state_dict())
    for own, other in (
        (block.think.enter, peer.linear1),
        (block.think.leave, peer.linear2),
        (block.first.norm, peer.norm1),
        (block.middle.norm, peer.norm2),
        (block.last.norm, peer.norm3),
    ):
        other.load_state_dict(own.state_dict())
    x, y = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    torch.testing.assert_close(block(x, ask.encode_memory(y)), peer(x, y, mask))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "linear"},
        {"positions": "buckets"},
        {"norm": "post", "positions": "sinusoidal"},
    ],
)
def test_an_encoder_reads_no_padding(fields):
    net = randomised(replace(SMALL, **fields).build(3, 6))
    x, length = torch.randn(2, 6, 3), torch.tensor([3, 6])
    torch.testing.assert_close(net(x, length)[:1, :3], net(x[:1, :3]))


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_decoder_steps_as_it_passes(norm):
    config = DecoderStack.Config(width=8, depth=2, heads=2, expand=2, norm=norm)
    net = randomised(config.build(3, 4, 5, 6))
    x, memory, length = torch.randn(2, 6, 3), torch.randn(2, 7, 5), torch.tensor([7, 2])
    y = net(x, memory, length)
    state = net.start(2, 6, memory, length)
    steps = [net.step(state, x[:, t]) for t in range(3)]
    state.reorder(torch.tensor([1, 0]))
    steps += [net.step(state, x[[1, 0], t])[[1, 0]] for t in range(3, 6)]
    torch.testing.assert_close(torch.stack(steps, 1), y)
    other = memory.clone()
    other[1, 2:] += 9.0
    assert torch.equal(net(x, other, length), y)
    other[1, 1] += 9.0
    assert not torch.allclose(net(x, other, length)[1], y[1])


def test_dropout_hides_while_training_alone():
    net = CausalTransformer.Config(width=8, depth=1, heads=2, dropout=0.5).build(8, 3, 5)
    x = torch.randn(1, 5, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_a_bias_of_scores_is_refused_where_there_are_none():
    with pytest.raises(UsageError, match="positions=alibi"):
        CausalTransformer.Config(attention="linear", positions="alibi")
