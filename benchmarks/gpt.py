"""GPT: ours against transformers' GPT-2, a training step, and sampling with the cache of each.

Both have 4 blocks, 4 heads, width 128, 256 symbols and the same weights: the outputs of a pass are
compared first. A step of training takes 12 rows of 64 symbols: loss, gradients and fused AdamW on
both sides, without dropout and with the peer's own 0.1. Then each samples 500 symbols, the peer by
`generate` and, in its favour, by a bare loop around its forward pass with the cache it recommends.
All run alternately in one process on one thread after an unmeasured round; reported are the median
and the spread of CPU time, and ratios. Beside them run the products alone, which both sides need:
those of all maps and of attention, for a step of training also attention and gelu as torch has
them, forward and backward, each by the fastest kernel of torch. The time of a peer over theirs is
the limit of any ratio. Last,
how our time grows with the length: the exponent of a power law, for `ssm` of the same width and
depth too, whose state has a constant size.

    python -m benchmarks.gpt                 # needs transformers for the peer
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monge.core.batch import Batch
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.autoregressive.gpt import GPT
from monge.models.sequence.ssm import SSM
from monge.nn.attention.transformer import CausalTransformer
from monge.nn.layers.linear import linear
from monge.nn.state_space import Mamba

from .clock import alternate, measured, power, show, timed
from .results import keep
from .sides import installed, stepper

SYMBOLS, WIDTH, DEPTH, HEADS = 256, 128, 4, 4
ROWS, CONTEXT, STEPS = 12, 64, 10


def symbols(steps: int) -> Space:
    return Space(
        kind="levels", shape=(steps,), size=SYMBOLS, mean=(128.0,), scale=(70.0,), high=(255.0,)
    )


def built(steps: int, **fields: Any) -> GPT:
    torch.manual_seed(0)
    net = CausalTransformer.Config(width=WIDTH, depth=DEPTH, heads=HEADS, **fields)
    model: GPT = GPT.Config(net=net, levels="categorical").build(symbols(steps)).eval()
    torch.nn.init.normal_(model.net.net.leave.weight, std=0.02)
    return model


def peer(steps: int, dropout: float = 0.1) -> Any | None:
    """GPT-2 of the same size, or nothing where transformers is not installed."""
    if not installed("transformers"):
        return None
    warnings.filterwarnings("ignore")
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=SYMBOLS,
        n_positions=steps + 1,
        n_embd=WIDTH,
        n_layer=DEPTH,
        n_head=HEADS,
        activation_function="gelu",
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=None,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def copy(there: Any, model: GPT) -> None:
    """The peer's weights in our model; its first symbol is 0."""
    trunk, stack = there.transformer, model.net.net
    model.entries.table.copy_(trunk.wte.weight)
    model.entries.weight.zero_()
    model.first.copy_(trunk.wte.weight[0])
    model.offset.zero_()
    stack.entrance.places.weight.copy_(trunk.wpe.weight[: len(stack.entrance.places.weight)])
    for block, other in zip(stack.each, trunk.h, strict=True):
        pairs = (
            (block.attention.enter, other.attn.c_attn),
            (block.attention.leave, other.attn.c_proj),
            (block.think.enter, other.mlp.c_fc),
            (block.think.leave, other.mlp.c_proj),
        )
        for own, theirs in pairs:
            own.weight.copy_(theirs.weight.T)
            own.bias.copy_(theirs.bias)
        block.first.norm.load_state_dict(other.ln_1.state_dict())
        block.last.norm.load_state_dict(other.ln_2.state_dict())
    stack.norm.load_state_dict(trunk.ln_f.state_dict())
    stack.leave.weight.copy_(there.lm_head.weight)


@torch.no_grad()
def generate(there: Any, rows: int, steps: int) -> Tensor:
    start = torch.zeros(rows, 1, dtype=torch.long)
    return there.generate(
        start,
        attention_mask=torch.ones_like(start),
        max_new_tokens=steps,
        do_sample=True,
        top_k=0,
        use_cache=True,
    )


@torch.no_grad()
def loop(there: Any, rows: int, steps: int) -> Tensor:
    """No processor of logits, no criterion of stopping: what the peer's network alone costs."""
    now, past, sampled = torch.zeros(rows, 1, dtype=torch.long), None, []
    for _ in range(steps):
        out = there(now, past_key_values=past, use_cache=True)
        past = out.past_key_values
        now = torch.multinomial(out.logits[:, -1].softmax(-1), 1)
        sampled.append(now)
    return torch.cat(sampled, 1)


def agree(there: Any, model: GPT, steps: int) -> None:
    copy(there, model)
    x = torch.randint(SYMBOLS, (2, steps))
    with torch.no_grad():
        ours = model.parameters_of_conditionals(Batch(x.float()))
        theirs = there(torch.cat([torch.zeros(2, 1, dtype=torch.long), x[:, :-1]], 1)).logits
    sizes = [sum(p.numel() for p in net.parameters()) for net in (model.net, there)]
    print(
        f"  outputs differ by at most {float((ours - theirs).abs().amax()):.1e}; parameters of "
        f"the networks: {sizes[0]} and {sizes[1]}"
    )


def compare(there: Any | None, model: GPT, rows: int, steps: int, repeats: int) -> None:
    works: dict[str, Callable[[], object]] = {
        "monge": lambda: model.sample(rows, generator=make_generator(0))
    }
    if there is not None:
        works["transformers, generate"] = lambda: generate(there, rows, steps)
        works["transformers, bare loop"] = lambda: loop(there, rows, steps)
    works["products alone"] = sampling_products(model, rows, steps)
    times = alternate(works, repeats)
    print(f"  batch {rows}, {steps} symbols")
    show(
        times,
        {name: f"{steps / statistics.median(spent):.0f} steps/s" for name, spent in times.items()},
        0,
        "    ",
        f"sample rows {rows}",
        "products alone",
    )


def train(repeats: int, dropout: float) -> None:
    """A step of training, side by side on the same rows; both begin at the same loss."""
    model, there = built(CONTEXT, dropout=dropout), peer(CONTEXT, dropout)
    x = torch.randint(SYMBOLS, (ROWS, CONTEXT), generator=make_generator(0))
    losses: dict[str, tuple[torch.nn.Module, Callable[[], Tensor]]] = {
        "monge": (model, lambda: model.loss(Batch(x.float()))["nll"].mean())
    }
    if there is not None:
        copy(there, model)
        read = torch.cat([torch.zeros(ROWS, 1, dtype=torch.long), x[:, :-1]], 1)
        losses["transformers"] = there, lambda: there(read, labels=x, shift_labels=x).loss
    initial = " and ".join(f"{float(loss()):.4f}" for _, loss in losses.values())
    print(f"  a step of training, {ROWS} x {CONTEXT}, dropout {dropout}; losses {initial}")
    works = {name: stepping(*pair) for name, pair in losses.items()}
    if not dropout:
        works["products alone"] = training_products(model)
    times = alternate(works, repeats)
    show(
        {name: [one / STEPS for one in spent] for name, spent in times.items()},
        head="    ",
        name=f"step dropout {dropout}",
        shared="products alone",
    )


def stepping(net: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """What takes a few steps."""
    step = stepper(net.train(), loss, decayed=True)

    def work() -> None:
        for _ in range(STEPS):
            step()

    return work


def maps_of(model: GPT) -> list[Tensor]:
    """The weights (inputs, outputs) of every linear map of the network, in order."""
    linears = (m for m in model.net.net.modules() if isinstance(m, torch.nn.Linear))
    return [linear.weight.detach().t().contiguous() for linear in linears]


def training_products(model: GPT) -> Callable[[], None]:
    """The products of a few steps by the fastest kernels of torch."""
    maps, g = maps_of(model), make_generator(0)
    rows = {
        size: torch.randn(ROWS * CONTEXT, size, generator=g)
        for size in {size for weight in maps for size in weight.shape}
    }
    heads = torch.randn(3, ROWS, HEADS, CONTEXT, WIDTH // HEADS, generator=g).requires_grad_()
    hidden = torch.randn(ROWS * CONTEXT, 4 * WIDTH, generator=g).requires_grad_()

    def work() -> None:
        for _ in range(STEPS):
            for weight in maps:
                x, slope = rows[weight.shape[0]], rows[weight.shape[1]]
                with torch.no_grad():
                    linear(x, weight.T), linear(slope, weight), linear(x.T, slope.T)
            for _ in range(DEPTH):
                y = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
                torch.autograd.grad(y, heads, y.detach())
                torch.autograd.grad(F.gelu(hidden), hidden, hidden.detach())

    return work


def sampling_products(model: GPT, rows: int, steps: int) -> Callable[[], None]:
    """The products of sampling, with keys and values at hand."""
    maps = maps_of(model)
    inputs = {weight.shape[0]: torch.randn(rows, weight.shape[0]) for weight in maps}
    size = WIDTH // HEADS
    keys, values = torch.randn(2, DEPTH, rows * HEADS, steps, size)
    q = torch.randn(rows * HEADS, 1, size)

    @torch.inference_mode()
    def work() -> None:
        for step in range(1, steps + 1):
            for weight in maps:
                torch.mm(inputs[weight.shape[0]], weight)
            for k, v in zip(keys, values, strict=True):
                torch.bmm(torch.bmm(q, k[:, :step].mT), v[:, :step])

    return work


def built_ssm(steps: int) -> SSM:
    torch.manual_seed(0)
    net = Mamba.Config(width=WIDTH, depth=DEPTH, heads=HEADS)
    model: SSM = SSM.Config(net=net, levels="categorical").build(symbols(steps)).eval()
    return model


def grow(repeats: int, kind: str, make: Callable[[int], GPT | SSM]) -> None:
    lengths, times = (250, 500, 1000, 2000), []
    for steps in lengths:
        model = make(steps)
        model.sample(1, generator=make_generator(0))
        spent = [
            timed(lambda model=model: model.sample(1, generator=make_generator(1)))
            for _ in range(repeats)
        ]
        times.append(statistics.median(spent))
    each = ", ".join(f"{n}: {1e3 * spent:.0f} ms" for n, spent in zip(lengths, times, strict=True))
    print(f"  {kind}, batch 1, {each}: length to the power {power(lengths, times):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="symbols sampled")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of A/B")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"GPT {DEPTH} x {HEADS} x {WIDTH}, {SYMBOLS} symbols, one thread")
    model, there = built(options.steps), peer(options.steps)
    if there is not None:
        agree(there, model, options.steps)
    for dropout in (0.0, 0.1):
        train(options.repeats, dropout)
    for rows in (1, 16):
        compare(there, model, rows, options.steps, options.repeats)
    grow(3, "softmax attention", built)
    grow(3, "linear attention", lambda steps: built(steps, attention="linear"))
    grow(3, "ssm", built_ssm)
    keep("gpt", measured, peers=["transformers"])


if __name__ == "__main__":
    main()
