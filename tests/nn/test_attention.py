"""Attention, its positions and its relatives, against sums written out and against torch's own."""

import math

import pytest
import torch
from torch import nn

from monge.core.errors import DataError, UsageError
from monge.nn.attention import scores as alignment
from monge.nn.attention.linear import (
    CausalLinearAttention,
    LinearAttention,
    causal_linear_attention,
    feature_map,
    linear_attention,
)
from monge.nn.attention.position import (
    AlibiBias,
    BucketBias,
    ClippedBias,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    absolute_positions,
    relative_bias,
    sinusoids,
)
from monge.nn.attention.softmax import (
    CausalAttention,
    CrossAttention,
    SelfAttention,
    attend,
    attention_weights,
    padding_mask,
    self_attend,
)

pytestmark = pytest.mark.usefixtures("doubles")


def written_out(q, k, v, allowed):
    """One query and one key at a time."""
    out = torch.zeros(len(q), v.shape[1])
    for t in range(len(q)):
        score = {
            s: float(q[t] @ k[s]) / math.sqrt(q.shape[1]) for s in range(len(k)) if allowed(t, s)
        }
        total = sum(map(math.exp, score.values()))
        for s, value in score.items():
            out[t] += math.exp(value) / total * v[s]
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_sum_it_states(causal):
    q, k, v = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 4)
    found = attend(q[None], k[None], v[None], causal=causal)[0]
    expected = written_out(q, k, v, lambda t, s: s <= t or not causal)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(attention_weights(q, k, causal=causal) @ v, expected)


def test_a_product_mask_of_one_and_minus_infinity_looks_ahead_or_breaks():
    """The mask must be added: minus infinity times a negative score is plus infinity."""
    scores = torch.tensor([[1.0, -2.0], [0.5, 0.3]])
    wrong = (scores * torch.tensor([[1.0, -math.inf], [1.0, 1.0]])).softmax(1)
    assert float(wrong[0, 1]) != 0
    right = (scores + torch.tensor([[0.0, -math.inf], [0.0, 0.0]])).softmax(1)
    assert float(right[0, 1]) == 0


@pytest.mark.parametrize("causal", [False, True])
def test_heads_equal_torchs_multi_head_attention(causal):
    own = CausalAttention(8, 2) if causal else SelfAttention(8, 2)
    peer = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        peer.in_proj_weight.copy_(own.enter.weight)
        peer.in_proj_bias.copy_(own.enter.bias)
        peer.out_proj.weight.copy_(own.leave.weight)
        peer.out_proj.bias.copy_(own.leave.bias)
    x = torch.randn(3, 6, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(6) if causal else None
    y, a = peer(x, x, x, attn_mask=mask, average_attn_weights=False)
    torch.testing.assert_close(own(x), y)
    torch.testing.assert_close(own.weights(x), a)


@pytest.mark.parametrize(
    "build",
    [
        lambda: SelfAttention(8, 2),
        lambda: SelfAttention(8, 2, "table"),
        lambda: LinearAttention(8, 2),
    ],
)
def test_padding_changes_nothing(build):
    layer, x, length = build().eval(), torch.randn(2, 7, 8), torch.tensor([4, 7])
    padded = layer(x, length)
    torch.testing.assert_close(padded[:1, :4], layer(x[:1, :4]))
    x[0, 4:] = 1e6
    assert torch.equal(layer(x, length)[0, :4], padded[0, :4])


def test_an_empty_sequence_is_refused():
    with pytest.raises(DataError, match=r"sequence 1\b.*length 0"):
        padding_mask(torch.tensor([2, 0]), 3, torch.zeros(()))
    with pytest.raises(DataError, match=r"sequence 0\b.*length 0"):
        LinearAttention(8, 2)(torch.randn(1, 3, 8), torch.tensor([0]))


def test_widths_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"width=6.*heads=4"):
        SelfAttention(6, 4)
    with pytest.raises(UsageError, match=r"rotary.*\b3\b"):
        SelfAttention(6, 2, "rotary")
    with pytest.raises(UsageError, match=r"\b5\b.*\b4\b.*positions=sinusoidal"):
        LearnedPositions(3, 4)(torch.zeros(1, 5, 3))
    with pytest.raises(UsageError, match=r"\b3\b.*\b4\b"):
        alignment.build_score("dot", 3, 4)
    layer = CausalAttention(4, 1)
    state = layer.start(1, 1)
    layer.step(state, torch.zeros(1, 4))
    with pytest.raises(UsageError, match=r"\b1 steps"):
        layer.step(state, torch.zeros(1, 4))


def test_cross_attention_reads_the_memory_and_not_its_padding():
    layer, x, y = CrossAttention(8, 2, memory=5), torch.randn(2, 3, 8), torch.randn(2, 6, 5)
    length = torch.tensor([6, 4])
    out, a = (
        layer(x, layer.encode_memory(y, length)),
        layer.weights(x, layer.encode_memory(y, length)),
    )
    assert out.shape == (2, 3, 8)
    assert not a[1, :, :, 4:].any()
    torch.testing.assert_close(a.sum(-1), torch.ones(2, 2, 3))
    torch.testing.assert_close(out[1:], layer(x[1:], layer.encode_memory(y[1:, :4])))
    each = torch.cat([layer(x[:, t : t + 1], layer.encode_memory(y, length)) for t in range(3)], 1)
    torch.testing.assert_close(each, out)
    memory = layer.encode_memory(y, length)
    memory.reorder(torch.tensor([1]))
    torch.testing.assert_close(layer(x[1:], memory), out[1:])


def test_free_attention_is_the_case_of_identity_maps():
    layer = SelfAttention(4, 1)
    with torch.no_grad():
        layer.enter.weight.copy_(torch.eye(4).repeat(3, 1))
        layer.leave.weight.copy_(torch.eye(4))
        layer.enter.bias.zero_()
        layer.leave.bias.zero_()
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(layer(x), self_attend(x))


@pytest.mark.parametrize("steps", [1, 7, 8, 20])
def test_chunks_of_linear_attention_equal_the_quadratic_form(steps):
    q, k, v = torch.randn(3, 2, 3, steps, 4).unbind(0)
    a = feature_map(q) @ feature_map(k).mT
    for found, each in (
        (linear_attention(q, k, v), a),
        (causal_linear_attention(q, k, v, chunk=8), a.tril()),
    ):
        torch.testing.assert_close(found, each @ v / each.sum(-1, keepdim=True))


def test_linear_attention_has_derivatives_and_survives_far_scores():
    q, k, v = (torch.randn(1, 1, 6, 2, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *x: causal_linear_attention(*x, chunk=4), (q, k, v))
    low = torch.full((1, 1, 6, 2), -40.0, dtype=torch.float32)
    assert causal_linear_attention(low, low, low).isfinite().all()


def test_a_step_of_linear_attention_costs_the_same_memory_at_any_length():
    layer = CausalLinearAttention(8, 2)
    assert layer.start(3, 10).s.shape == layer.start(3, 10_000).s.shape == (3, 2, 4, 4)


def test_sinusoids_are_the_formula_in_either_layout():
    waves = sinusoids(9, 6)
    for t in range(9):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            assert float(waves[t, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-14)
            assert float(waves[t, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-14)
    halves = sinusoids(9, 6, "halves")
    assert torch.equal(halves, waves[:, [0, 2, 4, 1, 3, 5]])
    assert sinusoids(4, 5).shape == (4, 5)


def test_places_are_added_or_set_beside():
    x = torch.randn(2, 4, 6)
    added, beside = SinusoidalPositions(6)(x), SinusoidalPositions(6, "concatenate")(x)
    torch.testing.assert_close(added - x, sinusoids(4, 6).expand(2, 4, 6))
    assert torch.equal(beside[..., :6], x)
    torch.testing.assert_close(beside[..., 6:], (added - x))
    assert absolute_positions("rotary", 6, 4) is None
    assert relative_bias("rotary", 2) is None


def test_rotary_products_see_the_distance_alone():
    rotate, q, k = RotaryPositions(6), torch.randn(6), torch.randn(6)
    scores = rotate(q.expand(1, 9, 6))[0] @ rotate(k.expand(1, 9, 6))[0].T  # (t, s)
    for distance in range(-8, 9):
        line = scores.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line))
    assert float(scores[0, 0]) == pytest.approx(float(q @ k))
    assert float((scores[0, 1:] - scores[0, 0]).abs().amin()) > 1e-6


@pytest.mark.parametrize("bias", [ClippedBias(2, 3), BucketBias(2, 8, 20), AlibiBias(2)])
def test_relative_biases_are_toeplitz_and_clipped(bias):
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    b = bias(7, 9)
    assert b.shape == (2, 7, 9)
    assert torch.equal(b[:, 1:, 1:], b[:, :-1, :-1])
    far = bias.of(torch.tensor([-500, -400, 400, 500]))
    if isinstance(bias, AlibiBias):
        assert torch.equal(far[:, 0] / far[:, 1], torch.tensor([1.25, 1.25]))
        assert torch.equal(bias.slopes, torch.tensor([2.0**-4, 2.0**-8]))
    else:
        assert torch.equal(far[:, 0], far[:, 1])
        assert torch.equal(far[:, 2], far[:, 3])
        assert not torch.equal(far[:, 1], far[:, 2])


def test_buckets_are_single_near_by_and_widen():
    bucket = BucketBias(1, 16, 32).bucket(torch.arange(40))
    assert bucket[:5].tolist() == [0, 1, 2, 3, 4]
    assert (bucket.diff() >= 0).all()
    assert bucket.diff().amax() == 1
    assert bucket[32:].unique().tolist() == [7]


@torch.no_grad()
def test_scores_are_their_formulas():
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    dot, bilinear = alignment.build_score("dot", 4, 4), alignment.build_score("bilinear", 4, 4)
    additive = alignment.build_score("additive", 4, 4, 6)
    unscaled = alignment.build_score("unscaled", 4, 4)
    torch.testing.assert_close(unscaled(q, k), torch.einsum("btd,bsd->bts", q, k))
    torch.testing.assert_close(dot(q, k), unscaled(q, k) / 2)
    one, other = q[1, 2], k[1, 3]
    assert float(dot(q, k)[1, 2, 3]) == pytest.approx(float(one @ other) / 2)
    expected = other @ bilinear.map.weight @ one
    assert float(bilinear(q, k)[1, 2, 3]) == pytest.approx(float(expected))
    inner = additive.query.weight @ one + additive.query.bias + additive.key.weight @ other
    expected = additive.out.weight[0] @ inner.tanh()
    assert float(additive(q, k)[1, 2, 3]) == pytest.approx(float(expected))


def test_hard_attention_takes_one_value_and_learns_through_the_soft_one():
    scores, v = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 5, 4)
    h = alignment.HardAttention()(scores, v)
    assert torch.equal(h, v[torch.arange(2)[:, None], scores.argmax(-1)])
    (slope,) = torch.autograd.grad(h.sum(), scores)
    (soft,) = torch.autograd.grad((scores.softmax(-1) @ v).sum(), scores)
    torch.testing.assert_close(slope, soft)
    assert not alignment.HardAttention(straight=False)(scores, v).requires_grad


@pytest.mark.parametrize("choice", ["sample", "gumbel"])
def test_stochastic_attention_follows_the_softmax(choice):
    scores = torch.tensor([0.3, -1.0, 1.2])
    taken = alignment.HardAttention(choice, straight=False).weights(scores.expand(20_000, 1, 3))
    torch.testing.assert_close(taken.mean((0, 1)), scores.softmax(0), atol=0.015, rtol=0)
    assert torch.equal(taken.sum(-1), torch.ones(20_000, 1))


def test_the_score_function_estimator_is_unbiased():
    """E[f(j) d log p(j)] = d E[f(j)], from the log-probability of what was taken."""
    scores = torch.tensor([0.3, -1.0, 1.2, -math.inf], requires_grad=True)
    reward, taken = torch.tensor([1.0, 2.0, -1.0, 5.0]), torch.eye(4)[:3]
    chance = scores.softmax(0)[:3].detach()
    log_p = alignment.log_prob(scores.expand(3, 4), taken)
    (found,) = torch.autograd.grad((chance * reward[:3] * log_p).sum(), scores)
    (exact,) = torch.autograd.grad((scores.softmax(0) * reward).sum(), scores)
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
@torch.no_grad()
def test_a_cache_goes_on_with_more_and_fewer_sequences(positions):
    torch.manual_seed(0)
    layer = CausalAttention(8, 2, positions).double().eval()
    x = torch.randn(5, 6, 8, dtype=torch.float64)
    state, own = layer.start(3, 6), torch.arange(3)
    for step, rows in enumerate(
        ([0, 1, 2], [2, 0, 0, 1, 2], [4, 3, 1, 0, 2], [1, 3], [1, 0], [1])
    ):
        state.reorder(torch.tensor(rows))
        own = own[rows]
        whole = layer(x[own])[:, step]
        torch.testing.assert_close(layer.step(state, x[own, step]), whole, rtol=0, atol=1e-12)
