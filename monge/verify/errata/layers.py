"""Common errors on layers: convolutions, norms, dropout, attention, gates."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...nn.attention.linear import feature_map, linear_attention
from ...nn.attention.position import LearnedPositions, SinusoidalPositions, relative_bias
from ...nn.attention.softmax import attend, attention_weights, causal_mask
from ...nn.causal_conv import CausalConv
from ...nn.dilated import gated_tanh
from ...nn.layers.conv import ContinuousConv
from ...nn.layers.dropout import dropout
from ...nn.layers.norm import norm
from ...nn.layers.specs import ConvSpec, PoolSpec, TransposedConvSpec
from ...nn.recurrent import GRU
from .._helpers import gap, most, normal, standard_errors
from ..attention import HEADS, STEPS, WIDTH, parts, randomised
from ..convolution import count
from ..framework import Control
from ..norm_dropout_init import batch_norm, thinned_layer
from ..sequences import INPUTS, built, gru_by_hand

ROUNDING = 1e-12


def r1_a_mask_is_added() -> Control:
    """Common error: softmax(QK' * M), M in {1, -inf}; correct: softmax(QK' + M), M in {0, -inf}.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.3."""
    q, k = normal(2, STEPS, WIDTH)
    times = torch.where(causal_mask(STEPS, STEPS, q) < 0, -math.inf, 1.0)
    printed = (q @ k.T * times / math.sqrt(WIDTH)).softmax(1)
    return Control(spoiled(printed), spoiled(attention_weights(q, k, causal=True)), 0.0)


def spoiled(a: Tensor) -> int:
    """Queries whose weights are no numbers, or not nil on the future."""
    return int((a.isnan() | (a.triu(1) > 0)).any(1).sum())


def r2_the_state_of_linear_attention_is_a_matrix() -> Control:
    """Common error: S = sum_j phi(k_j) v_j, elementwise; correct: sum_j phi(k_j) v_j', a matrix.

    Examines: nn.attention.linear.

    Source: Katharopoulos et al. 2020, Transformers Are RNNs, sec. 3."""
    q, k, v = parts()
    vector = (feature_map(k) * v).sum(2, keepdim=True)  # (B, H, 1, d)
    printed = feature_map(q) * vector / (feature_map(q) @ feature_map(k).sum(2)[..., None])
    a = feature_map(q) @ feature_map(k).mT
    whole = a @ v / a.sum(-1, keepdim=True)
    return Control(gap(printed, whole), gap(linear_attention(q, k, v), whole), ROUNDING)


def centred() -> tuple[nn.Module, Tensor]:
    """A convolution, and images that are zero near their ends."""
    return ConvSpec(4, 3).build((3, 12, 12)).double(), F.pad(normal(2, 3, 4, 4), (4, 4, 4, 4))


def r34_a_shift_shifts_a_convolution() -> Control:
    """Common error: convolution is shift invariant, f(t(x)) = f(x); correct: equivariant, t(f(x)).

    Examines: nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.2."""
    conv, x = centred()
    moved = conv(x.roll(2, 3))
    return Control(gap(moved, conv(x)), gap(moved, conv(x).roll(2, 3)), ROUNDING)


def r37_a_causal_sum_reads_the_past_alone() -> Control:
    """Common error: a causal sum over x_(i-k) to x_(i+k); correct: over x_(i-k) to x_i.

    Examines: nn.causal_conv.

    Source: van den Oord et al. 2016, WaveNet: A Generative Model for Raw Audio, sec. 2.1."""
    causal, both = CausalConv(2, 3, 3).double(), nn.Conv1d(2, 3, 5, padding=2).double()
    x, t = normal(1, 9, 2), 4
    later = torch.cat([x[:, : t + 1], normal(1, 9 - t - 1, 2)], 1)
    leak = gap(both(later.mT)[..., t], both(x.mT)[..., t])
    return Control(leak, gap(causal(later)[:, t], causal(x)[:, t]), 0.0)


def r38_dilation_puts_one_zero_less() -> Control:
    """Common error: dilation d puts d zeros between kernel entries; correct: d - 1 zeros.

    Examines: nn.layers.specs.

    Source: Yu & Koltun 2016, Multi-Scale Context Aggregation by Dilated Convolutions; Dumoulin &
    Visin 2016, A Guide to Convolution Arithmetic for Deep Learning."""
    conv, x, rate = (
        ConvSpec(4, 3, padding=0, dilation=2).build((2, 12)).double(),
        normal(3, 2, 12),
        2,
    )
    assert isinstance(conv, nn.Conv1d)

    def apart(zeros: int) -> float:
        wide = torch.zeros(4, 2, 2 * (zeros + 1) + 1, dtype=torch.float64)
        wide[:, :, :: zeros + 1] = conv.weight
        y, known = F.conv1d(x, wide, conv.bias), conv(x)
        return gap(y, known[..., : y.shape[-1]])

    return Control(apart(rate), apart(rate - 1), ROUNDING)


def r39_filters_are_shared_over_places() -> Control:
    """Common error: output channels share a filter; correct: positions share it, channels do not.

    Examines: nn.layers.specs.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.2."""
    layer = ConvSpec(4, 3)
    found = count(layer.build((3, 8, 9)))
    return Control(abs(found - (3 * 9 + 4)), abs(found - (3 * 4 * 9 + 4)), 0.0)


def r40_transposed_is_no_inverse() -> Control:
    """Common error: transposed convolution inverts, T(C(x)) = x; correct: <C(x), g> = <x, T(g)>.

    Examines: nn.layers.specs.

    Source: Dumoulin & Visin 2016, A Guide to Convolution Arithmetic for Deep Learning, ch. 4."""
    conv = ConvSpec(3, 3, bias=False).build((3, 8, 8)).double()
    back = TransposedConvSpec(3, 3, 1, bias=False).build((3, 8, 8)).double()
    back.load_state_dict(conv.state_dict())
    x, g = normal(2, 2, 3, 8, 8)
    adjoint = gap((conv(x) * g).sum(), (x * back(g)).sum())
    return Control(gap(back(conv(x)), x), adjoint, 1e-11)


def r41_batch_norm_divides_by_n() -> Control:
    """Common error: batch norm divides the variance by n - 1; correct: by n.

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, algorithm 1."""
    layer, x = batch_norm()

    def by_hand(correction: int) -> Tensor:
        mean, variance = x.mean((0, 2, 3), True), x.var((0, 2, 3), correction=correction)
        return (x - mean) / (variance[:, None, None] + layer.eps).sqrt()

    return Control(gap(layer(x), by_hand(1)), gap(layer(x), by_hand(0)), ROUNDING)


def r42_epsilon_stands_beneath_the_root() -> Control:
    """Common error: a norm divides by sqrt(Var) + eps; correct: by sqrt(Var + eps).

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, algorithm 1."""
    layer, x = batch_norm()
    mean, variance = x.mean((0, 2, 3), True), x.var((0, 2, 3), correction=0)[:, None, None]
    beside, beneath = variance.sqrt() + layer.eps, (variance + layer.eps).sqrt()
    return Control(
        gap(layer(x), (x - mean) / beside), gap(layer(x), (x - mean) / beneath), ROUNDING
    )


def r43_a_bias_is_redundant_before_batch_norm() -> Control:
    """Common error: a bias is redundant without batch norm; correct: with it, BN(x + b) = BN(x).

    Examines: nn.layers.norm.

    Source: Ioffe & Szegedy 2015, Batch Normalization, sec. 3.2."""
    (layer, x), b = batch_norm(), normal(3, 1, 1)
    return Control(gap(x + b, x), gap(layer(x + b), layer(x)), ROUNDING)


def r44_layer_norm_averages_features() -> Control:
    """Common error: layer norm averages over rows; correct: over the features of a row.

    Examines: nn.layers.norm.

    Source: Ba, Kiros & Hinton 2016, Layer Normalization."""
    layer, x = norm("layer", 6).double(), normal(5, 6)

    def by_hand(axis: int) -> Tensor:
        return (x - x.mean(axis, True)) / (x.var(axis, correction=0, keepdim=True) + 1e-5).sqrt()

    return Control(gap(layer(x), by_hand(0)), gap(layer(x), by_hand(1)), ROUNDING)


def r45_dropout_divides_by_what_it_keeps() -> Control:
    """Common error: dropout trains on H * M, whose mean is (1 - p) H; correct: H * M / (1 - p).

    Examines: nn.layers.dropout.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting."""
    h, rate, count = torch.rand(4, dtype=torch.float64) + 1, 0.3, 100_000
    samples = dropout(rate).train()(h.expand(count, 4))
    masked = h * (samples != 0)
    return Control(standard_errors(masked, h), standard_errors(samples, h), 5.0)


def r46_dropped_networks_are_scaled_by_what_is_kept() -> Control:
    """Common error: at test time weights times the drop rate p; correct: times 1 - p.

    Examines: nn.layers.dropout.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting."""
    thinned, whole = thinned_layer(bias=False)
    rate = 0.3
    plain = (1 - rate) * thinned  # of masks that are not rescaled
    return Control(
        standard_errors(plain, rate * whole), standard_errors(plain, (1 - rate) * whole), 5.0
    )


def r47_a_kernel_depends_on_the_offset() -> Control:
    """Common error: h_i = sum_j g(i + j) x_j is a convolution; correct: sum_j g(j) x_(i+j).

    Examines: nn.layers.conv.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 9.1."""
    taps, x = torch.zeros(9, dtype=torch.float64), normal(5)
    taps[2:7] = normal(5)  # g(-2), ..., g(2); offsets from -4 to 4
    layer = ContinuousConv(_Taps(taps), 1).double()
    known = F.conv1d(x[None, None], taps[2:7][None, None], padding=2)[0, 0]
    place = torch.arange(5)
    printed = F.pad(taps, (0, 4))[place[:, None] + place + 4] @ x
    return Control(gap(printed, known), gap(layer(x[None, None])[0, 0], known), ROUNDING)


class _Taps(nn.Module):
    """A kernel that is a table, of one input and one output."""

    def __init__(self, taps: Tensor) -> None:
        super().__init__()
        self.taps = taps

    def forward(self, offsets: Tensor) -> Tensor:
        return self.taps[offsets + len(self.taps) // 2, None, None]


def r48_scores_are_divided_by_the_width_of_keys() -> Control:
    """Common error: QK' / sqrt(width of values); correct: / sqrt(width of keys), variance 1.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.1."""
    keys, values, count = 64, 4, 20_000
    q, k = normal(count, 1, keys), normal(count, 2, keys)
    found = attend(q, k, torch.eye(2, values).double().expand(count, 2, values))[:, 0, :2]
    variance = float(found.log().diff(dim=1).var()) / 2  # of one score
    return Control(abs(variance * keys / values - 1), abs(variance - 1), 5e-2)


def r49_a_relative_bias_sees_the_distance() -> Control:
    """Common error: a relative bias b_ij for each pair; correct: b_(i-j) for each distance.

    Examines: nn.attention.position.

    Source: Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Text-to-Text
    Transformer, sec. 2.1."""
    table = relative_bias("table", HEADS)
    assert table is not None
    randomised(table)
    b, free = table(STEPS, STEPS), normal(HEADS, STEPS, STEPS)
    along, beside = (gap(each[:, 1:, 1:], each[:, :-1, :-1]) for each in (b, free))
    return Control(beside, along, 0.0)


def r50_sinusoids_are_not_learned() -> Control:
    """Common error: sinusoidal positions are T x d learned numbers; correct: they are fixed.

    Examines: nn.attention.position.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.5."""
    found, learned = (
        count(each) for each in (SinusoidalPositions(WIDTH), LearnedPositions(WIDTH, STEPS))
    )
    return Control(abs(found - learned), abs(found), 0.0)


def r51_torchs_gru_resets_after_the_product() -> Control:
    """Common error: torch.nn.GRU has tanh(Wx + U(r h)); correct: tanh(Wx + r (U h + b)).

    A GRU of the library has either.

    Examines: nn.recurrent.

    Source: Paszke et al. 2019, PyTorch (documentation of torch.nn.GRU); Cho et al. 2014, Learning
    Phrase Representations Using RNN Encoder-Decoder."""
    x = normal(2, STEPS, INPUTS)
    before, after = (
        built(GRU.Config(width=5).override(f"reset={when}")) for when in ("before", "after")
    )
    after.load_state_dict(before.state_dict())
    peer = nn.GRU(INPUTS, 5, batch_first=True).double()
    peer.load_state_dict(before.core.state_dict())
    printed, proper = (gru_by_hand(after, x, before=when) for when in (True, False))
    right = most(gap(proper, peer(x)[0]), gap(after(x), peer(x)[0]), gap(before(x), printed))
    return Control(gap(printed, peer(x)[0]), right, ROUNDING)


def r52_the_gate_is_a_sigmoid() -> Control:
    """Common error: the gate of a gated PixelCNN is tanh(a) * b; correct: tanh(a) * sigmoid(b).

    Examines: nn.dilated.

    Source: van den Oord et al. 2016, Conditional Image Generation with PixelCNN Decoders, sec.
    2.1."""
    a, b = normal(2, 20, 3)
    found = gated_tanh(torch.cat([a, b], 1))
    return Control(gap(found, a.tanh() * b), gap(found, a.tanh() * b.sigmoid()), ROUNDING)


def r110_halves_are_rounded_down() -> Control:
    """Common error: pooling 13 by 2 gives 13 / 2; correct: floor((13 - 2) / 2) + 1 = 6.

    Examines: nn.layers.specs.

    Source: Dumoulin & Visin 2016, A Guide to Convolution Arithmetic for Deep Learning."""
    found = PoolSpec("max", 2, 2, 0).shape((256, 13, 13))[1]
    return Control(abs(found - 13 / 2), abs(found - 6), 0.0)


def r120_a_mask_is_a_matrix() -> Control:
    """Common error: one row of causal mask serves all queries; correct: a row for each query.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2.3."""
    q, k = normal(2, STEPS, WIDTH)
    found = []
    for length in range(1, STEPS + 1):
        row = torch.zeros(STEPS, dtype=torch.float64)
        row[length:] = -math.inf
        found.append(unlike(attention_weights(q, k, row)))
    return Control(min(found), unlike(attention_weights(q, k, causal=True)), 0.0)


def unlike(a: Tensor) -> int:
    """Weights that are nil and should not be, or should be and are not."""
    return int(((a > 0) != torch.ones_like(a).tril().bool()).sum())
