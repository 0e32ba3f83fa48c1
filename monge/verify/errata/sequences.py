"""Common errors on conditionals and sequences: counts, masks, stationary series, decoders."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.rng import make_generator
from ...data.codecs.tokens import Text
from ...models.autoregressive.count_table import CountTable
from ...models.autoregressive.fvsbn import FVSBN
from ...models.autoregressive.made import MADE
from ...models.autoregressive.nade import NADE
from ...models.sequence.linear_ar import LinearAR
from ...models.sequence.transformer import Transformer
from ...nn.attention.scores import AdditiveScore
from ...nn.attention.softmax import SelfAttention
from ...nn.autoregressive.pixel import RasterNet
from ...nn.autoregressive.pixelcnn import GatedPixelCNN
from ...nn.recurrent import GRU, ElmanRNN
from .._helpers import gap, most, normal
from ..autoregressive import jacobian
from ..framework import Control
from ..linear_ar import MEAN, RHO, SIGMA, STEPS, stable
from ..linear_ar import built as series
from ..sequences import INPUTS, SENTENCES, built, sentences
from ..subjects import SPACES, build, random_rows

BITS = SPACES[0]
ROUNDING = 1e-12


def bits() -> Batch:
    return random_rows(BITS, 8, make_generator(2))


def r56_regression_reads_back_from_its_own_place() -> Control:
    """Common error: x_i = b_0 + b_1 x_(i-1) + ... + b_n x_n; correct: ... + b_n x_(i-n).

    Examines: models.sequence.linear_ar, prob.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.4."""
    phi, x = stable(), MEAN + normal(5, STEPS)
    found = series(phi, "mean").parameters_of_conditionals(Batch(x))[..., 0]
    start, order = MEAN * (1 - phi.sum()), len(phi)
    place = torch.arange(order, STEPS)

    def mean(*reads: Tensor) -> Tensor:
        return start + sum((b * x[:, read] for b, read in zip(phi, reads, strict=True)), 0 * start)

    proper = mean(*(place - lag for lag in range(1, order + 1)))
    printed = mean(place - 1, place - 2, torch.full_like(place, order - 1))
    return Control(gap(printed, found[:, order:]), gap(proper, found[:, order:]), ROUNDING)


def r57_tables_have_so_many_parameters() -> Control:
    """Common error: tables of n bits have 2^(n+1) parameters; correct: 2^n - 1.

    Examines: models.autoregressive.count_table.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 20.10.7."""
    n, model = BITS.dims, build(CountTable.smallest_config(BITS), BITS)
    assert isinstance(model, CountTable)
    found = model.parameter_count
    return Control(abs(found - 2 ** (n + 1)), abs(found - (2**n - 1)), 0.0)


def r58_a_belief_network_has_weights_for_each_place() -> Control:
    """Common error: an FVSBN shares one vector of weights; correct: one per place, n(n + 1)/2.

    Examines: models.autoregressive.fvsbn.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 20.10.8; Neal 1992,
    Connectionist Learning of Belief Networks."""
    n, model = BITS.dims, build(FVSBN.Config(), BITS)
    assert isinstance(model, FVSBN)
    found = model.parameter_count
    return Control(abs(found - n), abs(found - n * (n + 1) // 2), 0.0)


def r59_a_running_sum_takes_in_one_entry() -> Control:
    """Common error: a NADE step adds (b + W x_<i) - (b + W x_<i) = 0; correct: it adds W_i x_i.

    Examines: models.autoregressive.nade.

    Source: Larochelle & Murray 2011, The Neural Autoregressive Distribution Estimator."""
    model, x = build(NADE.smallest_config(BITS), BITS), bits()
    assert isinstance(model, NADE)
    features, into = model.features(x), model.net.into
    sums = [model.net.first + features[:, :i] @ into[:i] for i in range(len(into) + 1)]
    printed = most(
        gap(a - a, f[:, None] * w) for a, f, w in zip(sums[:-1], features.mT, into, strict=True)
    )
    proper = most(
        gap(b - a, f[:, None] * w)
        for a, b, f, w in zip(sums[:-1], sums[1:], features.mT, into, strict=True)
    )
    return Control(printed, proper, ROUNDING)


def r60_an_output_reads_what_comes_before() -> Control:
    """Common error: MADE has no path from x_1..x_d to output d; correct: none from x_d..x_D.

    Examines: models.autoregressive.made.

    Source: Germain et al. 2015, MADE: Masked Autoencoder for Distribution Estimation."""
    model = build(MADE.smallest_config(BITS), BITS)
    assert isinstance(model, MADE)
    slopes = jacobian(model, bits(), 0)  # (outputs, inputs)
    return Control(float(slopes.tril().amax()), float(slopes.triu().amax()), 0.0)


def r61_the_stacks_of_an_image_meet_one_way() -> Control:
    """Common error: PixelCNN's stacks feed each other; correct: vertical feeds horizontal only.

    Examines: nn.autoregressive.pixel, nn.autoregressive.pixelcnn.

    Source: van den Oord et al. 2016, Conditional Image Generation with PixelCNN Decoders, sec.
    2.2."""
    side, middle = 9, 4
    network: RasterNet = (
        GatedPixelCNN.Config(width=12, depth=4, first=3).build((1, side, side), 2).double()
    )
    for weight in network.parameters():  # those of its output start at 0
        torch.nn.init.normal_(weight, std=0.3)
    seen = network.support(middle, middle)[0].flatten()
    late = torch.arange(side**2) >= middle * side + middle
    blind = int((~seen & ~late).sum())
    return Control(
        int((two_ways(side, 4)[middle, middle].flatten() & late).sum()),
        int((seen & late).sum()) + blind,
        0.0,
    )


def two_ways(side: int, depth: int) -> Tensor:
    """Which pixels (h, w) the horizontal stack reads at each place if the vertical one, which
    reads all of its row and of those above, takes in its features too."""
    place = torch.arange(side)
    row, column = torch.meshgrid(place, place, indexing="ij")
    near = (column[..., None, None] - column).abs() <= 1
    up = near & (row - row[..., None, None] <= 0) & (row[..., None, None] - row <= 1)
    left = (row[..., None, None] == row) & (column[..., None, None] - column == 1)
    vertical = near & (row[..., None, None] - row == 1)
    horizontal = left | vertical
    for _ in range(depth):
        joined = vertical | horizontal
        vertical = torch.einsum("ijkl,klmn->ijmn", up.double(), joined.double()) > 0
        horizontal = horizontal | vertical
    return horizontal


def r90_a_series_from_its_mean_is_not_stationary() -> Control:
    """Common error: Var x_t is constant from x_1 = mu + e on; correct: sigma^2 sum rho^2s.

    Examines: models.sequence.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.4."""
    phi, t = torch.tensor([RHO], dtype=torch.float64), torch.arange(1, STEPS + 1).double()
    found = model_covariance(series(phi, "mean")).diagonal()
    grown = SIGMA**2 * (1 - RHO ** (2 * t)) / (1 - RHO**2)
    return Control(gap(found, found[:1]), gap(found, grown), ROUNDING)


@torch.enable_grad()
def model_covariance(model: LinearAR) -> Tensor:
    """Of a Gaussian model's STEPS values: minus the inverse of the Hessian of log p."""
    curved = torch.autograd.functional.hessian(
        lambda x: model.log_prob(Batch(x[None])).sum(), torch.full((STEPS,), MEAN).double()
    )
    return torch.linalg.inv(-curved)


def r91_a_covariance_is_of_one_lag() -> Control:
    """Common error: Cov(x_t, x_(t-k)) = Cov(x_s, x_(s-l)) for any l; correct: for l = k.

    Examines: models.sequence.linear_ar, prob.linear_ar.

    Source: Hamilton 1994, Time Series Analysis, sec. 3.1."""
    matrix = model_covariance(series(stable(), "stationary"))
    same = gap(matrix[1:, 1:], matrix[:-1, :-1])
    return Control(gap(matrix[2:, 1:-1], matrix[2:, :-2]), same, 1e-11)


def r92_an_output_reads_all_steps_so_far() -> Control:
    """Common error: an RNN gives p(y_t | f(x_t)); correct: p(y_t | f(x_<=t)).

    Examines: nn.recurrent.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 10.2."""
    net, x = built(ElmanRNN.Config(width=5)), normal(2, 6, INPUTS)
    alone = torch.cat([net(x[:, t : t + 1]) for t in range(6)], 1)
    so_far = torch.stack([net(x[:, : t + 1])[:, -1] for t in range(6)], 1)
    return Control(gap(alone, net(x)), gap(so_far, net(x)), ROUNDING)


def r93_queries_have_the_width_of_their_map() -> Control:
    """Common error: X 2x4 times W 4x4 gives a Q of width 2; correct: of width 4.

    Examines: nn.attention.softmax.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.2."""
    layer = SelfAttention(4, 1).double()
    width = layer.project(normal(1, 2, 4), None).q.shape[-1]
    return Control(abs(width - 2), abs(width - 4), 0.0)


def r94_a_decoder_reads_the_target_so_far() -> Control:
    """Common error: a decoder's input is the encoded source; correct: the target so far.

    Examines: models.sequence._encoder_decoder.

    Source: Vaswani et al. 2017, Attention Is All You Need, sec. 3.1."""
    model, batch = build(Transformer.smallest_config(SENTENCES), SENTENCES), sentences(6)
    assert isinstance(model, Transformer)
    later, earlier = batch.x.clone(), batch.x.clone()
    later[:, 2:], earlier[:, 0] = (later[:, 2:] + 1) % 3, (earlier[:, 0] + 1) % 3
    outputs, after, before = (
        model.parameters_of_conditionals(Batch(x, batch.given, length=torch.full((6,), 5)))
        for x in (batch.x % 3, later % 3, earlier % 3)
    )
    return Control(gap(outputs[:, 2], before[:, 2]), gap(outputs[:, 2], after[:, 2]), ROUNDING)


def r114_an_additive_score_reads_both_at_once() -> Control:
    """Common error: the additive score is w' tanh(W h) s; correct: w' tanh(W [h, s]).

    Examines: nn.attention.scores.

    Source: Bahdanau, Cho & Bengio 2015, Neural Machine Translation by Jointly Learning to Align
    and Translate; Luong, Pham & Manning 2015, Effective Approaches to Attention-Based NMT, sec.
    3.1."""
    score, h, s = AdditiveScore(5, 5, 8).double(), normal(1, 1, 5), normal(1, 6, 5)
    both = torch.cat([score.query.weight, score.key.weight], 1)  # (8, 10)
    pairs = torch.cat([h.expand(1, 6, 5), s], 2) @ both.T + score.query.bias
    joint = pairs.tanh() @ score.out.weight[0]
    printed = (score.query(h).tanh() @ score.out.weight[0])[..., None] * s.sum(2)
    return Control(
        gap(score(h, s)[0, 0], printed[0, 0]), gap(score(h, s)[0, 0], joint[0]), ROUNDING
    )


def r115_subwords_follow_the_training_text() -> Control:
    """Common error: subwords are morphemes; correct: frequent pieces of the training text.

    The same word has other pieces after another text, and always its own spelling.

    Examines: data.codecs.tokens.

    Source: Sennrich, Haddow & Birch 2016, Neural Machine Translation of Rare Words with Subword
    Units."""
    word, splits, wrong = "annoyingly", [], 0
    for text in ("annoying slowly", "yingly annoyed", "anno ying lying"):
        codec = Text.fit("bpe", [text] * 20, [text] * 20, 300, ends=False)
        (row,) = codec.codes([word], str)
        pieces = [codec.spell([code]) for code in row.tolist()]
        splits.append(pieces)
        wrong += "".join(pieces) != word
        wrong += not all(piece in text for piece in pieces)
    morphemes = sum(pieces != ["annoying", "ly"] for pieces in splits)
    return Control(morphemes, wrong, 0.0)


def r116_an_output_reads_its_input_through_the_state() -> Control:
    """Common error: an RNN's output reads h_t and x_t; correct: x_t through h_t alone.

    A GRU whose update gate is shut keeps h, and gives the same output whatever x is; beside it,
    an output with a path of its own from x.

    Examines: nn.recurrent.

    Source: Goodfellow, Bengio & Courville 2016, Deep Learning, sec. 10.2."""
    net, (x, other) = built(GRU.Config(width=5)), normal(2, 3, INPUTS)
    w, u, b, _ = net.layer(0)
    w.data[5:10], u.data[5:10], b.data[5:10] = 0.0, 0.0, 1e3  # z = 1: h_t = h_(t-1)
    outputs = []
    for read in (x, other):
        state = net.start(3, 2)
        state.layers[0] = (torch.ones(3, 5).double(),)
        outputs.append(net.step(state, read))
    path = [out + read @ w[:5].T for out, read in zip(outputs, (x, other), strict=True)]
    return Control(gap(*path), gap(*outputs), ROUNDING)
