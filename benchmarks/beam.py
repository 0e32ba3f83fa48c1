"""Beam search: ours against transformers' generate on the same encoder-decoder.

Both have 3 + 3 blocks, 4 heads, width 256, 512 hidden units, 4000 symbols and the peer's weights;
64 sources of 16 symbols, 5 beams, at most 40 symbols. The sequences are compared first. Sentences
end after some 5 to 25 symbols, as translations do, or, as the worst case for a search that leaves
finished sentences behind, never. All run alternately in one process on one thread after an
unmeasured round: the median and spread of CPU time, and the ratio. Where no sentence ends, the
products alone run beside them, of maps and attention, which both sides need: the time of the peer
over theirs is the limit of any ratio.

    python -m benchmarks.beam                # needs transformers for the peer
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monge.core.batch import Batch
from monge.core.space import Space
from monge.models.sequence.transformer import Transformer
from monge.nn.attention.transformer import CausalTransformer
from monge.nn.layers.linear import linear

from .clock import alternate, measured, show
from .results import keep
from .sides import installed

SYMBOLS, WIDTH, DEPTH, HEADS, HIDDEN = 4000, 256, 3, 4, 512
ROWS, READ, STEPS, BEAMS, ROUNDS = 64, 16, 40, 5, 5
END, SHORT, LONG = SYMBOLS - 1, 5.0, 25.0


def ours(there: Any | None) -> Transformer:
    """Our model, with the peer's weights where there is a peer."""
    torch.manual_seed(0)
    source = Space(kind="tokens", shape=(READ,), size=SYMBOLS, varies=True, name="source")
    space = Space(
        kind="tokens", shape=(STEPS,), size=SYMBOLS, varies=True, end=END, given={"source": source}
    )
    net = CausalTransformer.Config(
        width=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        expand=HIDDEN // WIDTH,
        activation="relu",
        norm="post",
        positions="sinusoidal",
    )
    model: Transformer = Transformer.Config(net=net).build(space).eval()
    if there is not None:
        copy(there, model)
    return model


@torch.no_grad()
def copy(there: Any, model: Transformer) -> None:
    """The peer's weights in our model; its first symbol is 0."""
    trunk, stack = there.model, model.decoder.stack
    model.embedding.copy_(trunk.shared.weight)
    model.first.copy_(trunk.shared.weight[0] * WIDTH**0.5)
    model.bias.copy_(there.final_logits_bias[0])
    for entrance in (model.encoder.entrance, stack.entrance):
        entrance.places.layout = "halves"
    stack.leave.weight.copy_(torch.eye(WIDTH))
    stack.leave.bias.zero_()
    for block, other in zip(model.encoder.blocks, trunk.encoder.layers, strict=True):
        own(block, other)
    for block, other in zip(stack.each, trunk.decoder.layers, strict=True):
        own(block, other)
        cross = other.encoder_attn
        joined(block.ask.enter, cross.k_proj, cross.v_proj)
        joined(block.ask.ask, cross.q_proj)
        joined(block.ask.leave, cross.out_proj)
        block.middle.norm.load_state_dict(other.encoder_attn_layer_norm.state_dict())


def own(block: Any, other: Any) -> None:
    """Self-attention and position-wise network of a block."""
    look = other.self_attn
    joined(block.attention.enter, look.q_proj, look.k_proj, look.v_proj)
    joined(block.attention.leave, look.out_proj)
    joined(block.think.enter, other.fc1)
    joined(block.think.leave, other.fc2)
    block.first.norm.load_state_dict(other.self_attn_layer_norm.state_dict())
    block.last.norm.load_state_dict(other.final_layer_norm.state_dict())


def joined(layer: Any, *others: Any) -> None:
    layer.weight.copy_(torch.cat([other.weight for other in others]))
    layer.bias.copy_(torch.cat([other.bias for other in others]))


@torch.no_grad()
def teach(model: Transformer, there: Any | None, source: Batch) -> None:
    """Let each sentence end near a length of its own: weights of the end's logit, by least squares
    on random beginnings, that let it rise by one a step and lead from there on."""
    g = torch.Generator().manual_seed(1)
    x = torch.randint(1, END, (ROWS, STEPS), generator=g)
    vectors = model.decode_steps(model.encode_source(source), model.inputs(x)).flatten(0, 1)
    length = SHORT + (LONG - SHORT) * torch.rand(ROWS, 1, generator=g)
    goal = (torch.arange(STEPS) - length).clamp(-8, 8) + 4
    known = torch.cat([vectors, torch.ones(len(vectors), 1)], 1)
    weights = torch.linalg.lstsq(known, goal.reshape(-1, 1)).solution[:, 0]
    model.embedding[END], model.bias[END] = weights[:-1], weights[-1]
    if there is not None:
        there.model.shared.weight[END] = weights[:-1]
        there.final_logits_bias[0, END] = weights[-1]


def peer() -> Any | None:
    """Marian of that size, or nothing where transformers is not installed."""
    if not installed("transformers"):
        return None
    warnings.filterwarnings("ignore")
    from transformers import MarianConfig, MarianMTModel, logging

    logging.set_verbosity_error()
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=SYMBOLS,
        d_model=WIDTH,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        activation_function="relu",
        max_position_embeddings=64,
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=END,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        bos_token_id=0,
    )
    model = MarianMTModel(config).eval()
    for parameter in model.parameters():  # distributions that are not flat, so that beams differ
        if parameter.requires_grad and parameter.ndim > 1:
            parameter.data.mul_(3.0)
    return model


def generate(model: Any, x: Tensor) -> Tensor:
    return model.generate(
        input_ids=x,
        attention_mask=torch.ones_like(x),
        num_beams=BEAMS,
        max_new_tokens=STEPS,
        do_sample=False,
        length_penalty=1.0,
        early_stopping=True,
    )[:, 1:]


@torch.inference_mode()
def products(model: Transformer) -> Tensor:
    """The products of the decoder for every beam at every step: its maps, self-attention as if the
    beams of a row had one past, and cross-attention with its maps multiplied into the keys and
    values of the source."""
    stack, size = model.decoder.stack, WIDTH // HEADS
    maps = [model.out.t().contiguous()]
    for block in stack.each:
        layers = (block.attention.enter, block.attention.leave)
        layers += (block.think.enter, block.think.leave)
        maps += [layer.weight.t().contiguous() for layer in layers]
    inputs = {size: torch.randn(ROWS * BEAMS, size) for size in (WIDTH, HIDDEN)}
    q, past = (
        torch.randn(ROWS, HEADS, BEAMS, size),
        torch.randn(2 * DEPTH, ROWS, HEADS, STEPS, size),
    )
    asked, read = torch.randn(ROWS, BEAMS, WIDTH), torch.randn(DEPTH, ROWS, WIDTH, HEADS * READ)
    for step in range(1, STEPS + 1):
        for weight in maps:
            last = linear(inputs[weight.shape[0]], weight.T)
        for k, v, source in zip(past[:DEPTH], past[DEPTH:], read, strict=True):
            F.scaled_dot_product_attention(q, k[:, :, :step], v[:, :, :step])
            torch.bmm(torch.bmm(asked, source), source.mT)
    return last


def equal(mine: Tensor, theirs: Tensor) -> float:
    """The share of sequences that agree up to their end; the peer fills up with 0."""
    same = 0
    for left, right in zip(mine.tolist(), theirs.tolist(), strict=True):
        left = left[: left.index(END) + 1] if END in left else left
        same += left == right[: len(left)]
    return same / len(mine)


@torch.no_grad()
def compare(ends: bool) -> None:
    other = peer()
    model = ours(other)
    x = torch.randint(1, END, (ROWS, READ), generator=torch.Generator().manual_seed(0))
    source = {"source": Batch(x, length=torch.full((ROWS,), READ))}
    if ends:
        teach(model, other, source["source"])
    else:
        model.bias[END] = -1e9
        if other is not None:
            other.final_logits_bias[0, END] = -1e9
    work: dict[str, Callable[[], Tensor]] = {
        "monge": lambda: model.mode(source, model.SamplingConfig(beams=BEAMS))
    }
    found = work["monge"]()
    lengths = (found != END).sum(1)
    print(
        f"sentences of {int(lengths.min())} to {int(lengths.max())} symbols, "
        f"{float(lengths.double().mean()):.1f} on average"
    )
    if other is not None:
        work["transformers"] = lambda: generate(other, x)
        print(f"sequences that agree: {equal(found, generate(other, x)):.0%}")
    if not ends:
        work["products alone"] = lambda: products(model)
        products(model)
    times = alternate(work, ROUNDS, warm=0)  # each has searched once
    show(
        times,
        {
            name: f"{ROWS / statistics.median(spent):.1f} sentences/s"
            for name, spent in times.items()
        },
        name="ending" if ends else "endless",
        shared="products alone",
    )


def main() -> None:
    torch.set_num_threads(1)
    compare(ends=True)
    compare(ends=False)
    keep("beam", measured, peers=["transformers"])


if __name__ == "__main__":
    main()
