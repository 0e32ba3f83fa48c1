r"""Identities of attention: what it depends on, and that its many forms are one.

$A = \mathrm{softmax}(Q K^\top / \sqrt d + M)$ is equivariant to a permutation of the steps until
positions or a causal mask distinguish them; linear attention is a recurrence; hard attention is
the limit of soft attention, and soft the mean of stochastic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..nn.attention.linear import causal_linear_attention, feature_map, linear_attention
from ..nn.attention.position import (
    AlibiBias,
    BucketBias,
    ClippedBias,
    Positions,
    RelativeBias,
    SinusoidalPositions,
    relative_bias,
    sinusoids,
)
from ..nn.attention.scores import DotScore, HardAttention
from ..nn.attention.softmax import (
    CausalAttention,
    SelfAttention,
    attend,
    attention_weights,
    self_attend,
)
from ..nn.attention.transformer import TransformerEncoder
from ..nn.layers.conv import NonLocal
from ._helpers import gap, most, normal
from .framework import Residual

ROUNDING = 1e-12
"""What float64 leaves of a few products and a softmax."""
BIASES: tuple[Positions, ...] = ("table", "buckets", "alibi")
SAMPLES, FEWER = 200_000, 100_000
WIDTH, HEADS, STEPS = 8, 2, 7


@torch.no_grad()
def randomised(net: nn.Module) -> nn.Module:
    """In float64 and far from any symmetric start."""
    net.double().eval()
    for parameter in net.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def x31_attention_is_equivariant() -> Residual:
    """MHA(P X) = P MHA(X) for every permutation P of the steps.

    Examines: nn.attention.softmax.

    Source: Lee et al. 2019, Set Transformer."""
    layer, x = randomised(SelfAttention(WIDTH, HEADS)), normal(3, STEPS, WIDTH)
    order = torch.randperm(STEPS)
    return Residual(gap(layer(x[:, order]), layer(x)[:, order]), ROUNDING)


def x31_positions_distinguish_steps() -> Residual:
    """With positions, added or concatenated, MHA(P X, E) is not P MHA(X, E).

    Examines: nn.attention.blocks, nn.attention.transformer.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.5."""
    nets = [
        randomised(
            TransformerEncoder.Config(
                width=WIDTH, depth=1, heads=HEADS, positions="sinusoidal", join=join
            ).build(WIDTH)
        )
        for join in ("add", "concatenate")
    ]
    x, order = normal(3, STEPS, WIDTH), torch.arange(STEPS).roll(1)
    least = min(gap(net(x[:, order]), net(x)[:, order]) for net in nets)
    return Residual(1e-2 / least, 1.0)


def x31_permuting_steps_with_their_places_is_equivariant() -> Residual:
    """Permuting [X, E] as a whole is equivariant.

    Examines: nn.attention.position, nn.attention.softmax.

    Source: Lee et al. 2019, Set Transformer; Vaswani et al. 2017, Attention Is All You Need, sec.
    3.5."""
    layer, order = randomised(SelfAttention(2 * WIDTH, HEADS)), torch.randperm(STEPS)
    places = sinusoids(STEPS, WIDTH).expand(3, -1, -1)
    joined = torch.cat([normal(3, STEPS, WIDTH), places], 2)
    return Residual(gap(layer(joined[:, order]), layer(joined)[:, order]), ROUNDING)


def x31_places_beside_are_added_after_a_map() -> Residual:
    """[X, E] W = X W_1 + E W_2, so adding is the case W_1 = W_2.

    Examines: nn.attention.position.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.5."""
    x, e, w = normal(1, STEPS, WIDTH), sinusoids(STEPS, WIDTH), normal(2 * WIDTH, 5)
    beside, added = (SinusoidalPositions(WIDTH, join).double() for join in ("concatenate", "add"))
    twice = torch.cat([w[:WIDTH], w[:WIDTH]])
    return Residual(
        most(
            gap(beside(x) @ w, x @ w[:WIDTH] + e @ w[WIDTH:]),
            gap(beside(x) @ twice, added(x) @ w[:WIDTH]),
        ),
        ROUNDING,
    )


def x32_the_mask_leaves_no_future() -> Residual:
    """Under the causal mask, later steps change nothing, bit for bit.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.3."""
    layer, x = randomised(CausalAttention(WIDTH, HEADS)), normal(3, STEPS, WIDTH)
    worst = 0.0
    for place in range(1, STEPS):
        other = torch.cat([x[:, :place], normal(3, STEPS - place, WIDTH)], 1)
        worst = most(worst, gap(layer(other)[:, :place], layer(x)[:, :place]))
    return Residual(worst, 0.0)


def x32_cached_steps_equal_the_masked_pass() -> Residual:
    """Decoding step by step with cached keys and values = the masked pass.

    Examines: nn.attention.softmax.

    Source: Shazeer 2019, Fast Transformer Decoding: One Write-Head Is All You Need."""
    layer, x = CausalAttention(WIDTH, HEADS, "rotary"), normal(3, STEPS, WIDTH)
    randomised(layer)
    state = layer.start(3, STEPS)
    steps = torch.stack([layer.step(state, x[:, t]) for t in range(STEPS)], 1)
    return Residual(gap(steps, layer(x)), ROUNDING)


def x32_padding_changes_nothing() -> Residual:
    """A padded and masked sequence gives the same output as without padding.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.3."""
    layer, x, length = (
        randomised(SelfAttention(WIDTH, HEADS)),
        normal(1, STEPS, WIDTH),
        torch.tensor([4]),
    )
    return Residual(gap(layer(x, length)[:, :4], layer(x[:, :4])), ROUNDING)


def x33_identity_maps_give_the_non_local_layer() -> Residual:
    """W_q = W_k = W_v = I gives sum_s softmax_s(x_t . x_s / sqrt(d)) x_s.

    Examines: nn.attention.softmax.

    Source: Wang et al. 2018, Non-local Neural Networks, sec. 3."""
    layer, x = SelfAttention(WIDTH, 1).double(), normal(3, STEPS, WIDTH)
    layer.enter.weight.copy_(torch.eye(WIDTH).repeat(3, 1))
    layer.leave.weight.copy_(torch.eye(WIDTH))
    layer.enter.bias.zero_()
    layer.leave.bias.zero_()
    by_hand = (x @ x.mT / math.sqrt(WIDTH)).softmax(-1) @ x
    return Residual(most(gap(layer(x), by_hand), gap(self_attend(x), by_hand)), ROUNDING)


def x33_non_local_blocks_are_their_formulas() -> Residual:
    """y_i = x_i + W sum_j alpha_ij G x_j in each of four pairings.

    Examines: nn.layers.conv.

    Source: Wang et al. 2018, Non-local Neural Networks, sec. 3."""
    x, worst = normal(2, 4, 3, 2), 0.0
    rows = x.flatten(2).mT  # (B, n, C)
    for pairing in ("gaussian", "embedded", "dot", "concat"):
        block = NonLocal(4, pairing, width=3)
        randomised(block)
        query, key = block.query(rows), block.key(rows)
        if pairing == "concat":
            alpha = (query + key.mT).relu() / rows.shape[1]
        elif pairing == "dot":
            alpha = query @ key.mT / rows.shape[1]
        else:
            alpha = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        found = block.out(alpha @ block.value(rows)).mT.reshape(x.shape)
        worst = most(worst, gap(block(x), x + found))
    return Residual(worst, ROUNDING)


def parts() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (3, HEADS, 20, 4) each."""
    q, k, v = normal(3, 3, HEADS, 20, 4).unbind(0)
    return q, k, v


def x34_linear_attention_is_the_quadratic_form() -> Residual:
    """phi(q)' S / phi(q)' Z is the mean of v weighted by phi(q) . phi(k).

    Examines: nn.attention.linear.

    Source: Katharopoulos et al. 2020, Transformers Are RNNs, sec. 3."""
    q, k, v = parts()
    a = feature_map(q) @ feature_map(k).mT
    return Residual(gap(linear_attention(q, k, v), a @ v / a.sum(-1, keepdim=True)), ROUNDING)


def x34_causal_chunks_are_the_recurrence() -> Residual:
    """The causal pass in chunks is S_t = S_{t-1} + phi(k_t) v_t'.

    Examines: nn.attention.linear.

    Source: Katharopoulos et al. 2020, Transformers Are RNNs, sec. 3."""
    q, k, v = parts()
    s, z, steps = q.new_zeros(3, HEADS, 4, 4), q.new_zeros(3, HEADS, 4), []
    for now, key, value in zip(
        *(x.unbind(2) for x in (feature_map(q), feature_map(k), v)), strict=True
    ):
        s, z = s + key[..., None] * value[..., None, :], z + key
        steps.append((now[..., None] * s).sum(-2) / (now * z).sum(-1, keepdim=True))
    found = causal_linear_attention(q, k, v, chunk=8)
    return Residual(gap(found, torch.stack(steps, 2)), ROUNDING)


def x35_cold_attention_is_hard() -> Residual:
    """softmax(s / tau) V tends to V[argmax s] as tau tends to 0.

    Examines: nn.attention.scores.

    Source: Bishop 2006, Pattern Recognition and Machine Learning, sec. 4.2; Xu et al. 2015, Show,
    Attend and Tell, sec. 4."""
    scores = torch.stack([torch.randperm(STEPS).double() for _ in range(5)])  # without ties
    v = normal(STEPS, WIDTH)
    return Residual(gap((scores / 1e-3).softmax(1) @ v, HardAttention()(scores, v)), 1e-6)


def x35_stochastic_attention_is_soft_in_the_mean() -> Residual:
    """Attention to one step sampled from softmax(s) has the soft one as mean.

    Examines: nn.attention.scores.

    Source: Xu et al. 2015, Show, Attend and Tell, sec. 4."""
    scores, v = normal(1, STEPS), normal(STEPS, WIDTH)
    samples = HardAttention("sample", straight=False)(
        scores.expand(SAMPLES, STEPS), v
    )  # (SAMPLES, WIDTH)
    error = samples.std(0) / math.sqrt(SAMPLES)
    return Residual(float(((samples.mean(0) - scores.softmax(1) @ v) / error).abs().amax()), 5.0)


def biases() -> list[RelativeBias]:
    found = [relative_bias(kind, HEADS) for kind in BIASES]
    return [bias for bias in found if bias is not None and randomised(bias) is not None]


def x36_relative_biases_are_toeplitz() -> Residual:
    """A relative position bias b depends on t - s alone.

    Examines: nn.attention.position.

    Source: Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Text-to-Text
    Transformer, sec. 2.1."""
    tables = [bias(STEPS, STEPS) for bias in biases()]
    return Residual(most(*(gap(b[:, 1:, 1:], b[:, :-1, :-1]) for b in tables)), 0.0)


def x36_biases_distinguish_past_and_future() -> Residual:
    """b(t - s) is a number for each clipped distance, with its sign.

    A table has 2 reach + 1 numbers, buckets of the past are not those of the future, and the
    slopes of ALiBi are 2^(-8 h / heads).

    Examines: nn.attention.position.

    Source: Shaw, Uszkoreit & Vaswani 2018, Self-Attention with Relative Position Representations;
    Press, Smith & Lewis 2022, Train Short, Test Long."""
    reach, distance = 3, torch.arange(-5, 6)
    table, buckets, alibi = ClippedBias(HEADS, reach), BucketBias(HEADS), AlibiBias(HEADS)
    for bias in (table, buckets, alibi):
        randomised(bias)
    places = [min(max(int(d), -reach), reach) + reach for d in distance]
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]).double()
    ahead, behind = buckets.of(distance[:5]), buckets.of(distance[6:].flip(0))
    return Residual(
        most(
            gap(table.of(distance), table.weight[:, places]),
            gap(alibi.of(distance), -slopes[:, None] * distance.abs()),
            float((ahead == behind).any()),
        ),
        0.0,
    )


def x36_a_window_may_be_shifted() -> Residual:
    """Without absolute positions, the logits of a window are shift invariant.

    Examines: nn.attention.softmax.

    Source: Shaw, Uszkoreit & Vaswani 2018, Self-Attention with Relative Position
    Representations."""
    worst = 0.0
    for kind in (*BIASES, "rotary"):
        layer, x = CausalAttention(WIDTH, HEADS, kind), normal(2, 2 * STEPS, WIDTH)
        randomised(layer)
        late = torch.cat([x[:, :STEPS], x[:, :STEPS]], 1)
        both = logits(layer, late)
        worst = most(worst, gap(both[..., :STEPS, :STEPS], both[..., STEPS:, STEPS:]))
    return Residual(worst, ROUNDING)


def logits(layer: CausalAttention, x: Tensor) -> Tensor:
    """Scores before the softmax, (B, heads, T, T)."""
    q, k, _, bias = layer.project(x, None)
    scores = q @ k.mT / math.sqrt(layer.size)
    return scores if bias is None else scores + bias


def x37_sinusoids_turn() -> Residual:
    """PE(t + k) = R_k PE(t), rotating plane i by k / 10000^(2i/d).

    Examines: nn.attention.position.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.5."""
    waves = SinusoidalPositions(WIDTH).double().table(40).unflatten(1, (-1, 2))  # (T, planes, 2)
    planes = torch.arange(WIDTH // 2, dtype=torch.float64)
    rates = 10_000 ** (-2 * planes / WIDTH)
    angles = torch.arange(40).double()[:, None] * rates
    worst = gap(waves, torch.stack([angles.sin(), angles.cos()], 2))
    for k in (1, 5, 17):
        cos, sin = (k * rates).cos(), (k * rates).sin()
        turned = torch.stack(
            [cos * waves[..., 0] + sin * waves[..., 1], cos * waves[..., 1] - sin * waves[..., 0]],
            2,
        )
        worst = most(worst, gap(turned[:-k], waves[k:]))
    return Residual(worst, ROUNDING)


def x37_products_of_sinusoids_see_the_distance() -> Residual:
    """PE(t) . PE(s) depends on t - s alone, and no entry exceeds 1.

    Examines: nn.attention.position.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.5."""
    waves = sinusoids(40, WIDTH)
    products = waves @ waves.T
    beyond = float((waves.abs().amax() - 1).clamp(min=0))
    return Residual(most(gap(products[1:, 1:], products[:-1, :-1]), beyond), ROUNDING)


def x38_scores_have_unit_variance() -> Residual:
    """q, k ~ N(0, I_d): the scores of attention have variance 1 at every d.

    Of two keys, the log ratio of the weights is the difference of two scores, of variance 2.

    Examines: nn.attention.scores, nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.1."""
    return Residual(most(*(abs(variance - 1) for variance in score_variances())), 5e-2)


def score_variances() -> list[float]:
    """Of scores by every function that computes them, at several widths of keys."""
    found = []
    for width in (1, 4, 16, 64):
        q, k = normal(FEWER, 1, width), normal(FEWER, 2, width)
        values = torch.eye(2, dtype=torch.float64).expand(FEWER, 2, 2)
        for weights in (attention_weights(q, k), attend(q, k, values)):
            found.append(float(weights[:, 0].log().diff(dim=1).var()) / 2)
        found.append(float(DotScore()(q, k)[:, 0, 0].var()))
    return found
