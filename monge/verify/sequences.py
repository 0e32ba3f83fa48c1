r"""Identities of recurrent networks: forms that are the same, one that is not, and gradients.

$\partial h_T / \partial h_0 = \prod_t \mathrm{diag}(\phi'_t) U$ vanishes or explodes with the norm
of U; the cell of an LSTM carries $\prod_t f_t$ instead, which its gates can set to 1.

Identities of sequences: scores of attention, tokens, and rows of unequal length.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.abilities import HasConditionals
from ..core.batch import Batch
from ..core.model import Model
from ..core.rng import make_generator
from ..core.space import Space
from ..data.codecs.tokens import Text
from ..models.sequence._encoder_decoder import SCHEDULED_SAMPLING_WARMUP, EncoderDecoderModel
from ..models.sequence.seq2seq import Seq2Seq
from ..models.sequence.transformer import Transformer
from ..nn.attention.scores import AdditiveScore, BilinearScore, DotScore
from ..nn.attention.softmax import padding_mask
from ..nn.recurrent import GRU, LSTM, Bidirectional, ElmanRNN, RecurrentNet
from ._helpers import gap, most, normal, relative, standard_errors
from .attention import randomised
from .framework import Residual
from .subjects import build

ROUNDING = 1e-13
INPUTS, WIDTH, STEPS = 3, 5, 6


def built(config: RecurrentNet.Config) -> RecurrentNet:
    net = randomised(config.build(INPUTS))
    assert isinstance(net, RecurrentNet)
    return net


def split_lstm(net: RecurrentNet, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step, each gate with matrices of its own for x and for h."""
    w, u, b, other = (part.chunk(4) for part in net.layer(0))
    i, f, new, o = (x @ w[k].T + b[k] + h @ u[k].T + other[k] for k in range(4))
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def joined_lstm(net: RecurrentNet, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step, all gates from one matrix of [h, x]."""
    w, u, b, other = net.layer(0)
    i, f, new, o = (torch.cat([h, x], 1) @ torch.cat([u, w], 1).T + b + other).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def x39_forms_of_the_lstm_agree() -> Residual:
    """Split gates, one matrix of [h, x], cell and sequence give the same LSTM.

    Examines: nn.recurrent.

    Source: Hochreiter & Schmidhuber 1997, Long Short-Term Memory; Gers, Schmidhuber & Cummins
    2000, Learning to Forget."""
    net, x = built(LSTM.Config(width=WIDTH)), normal(2, STEPS, INPUTS)
    whole, state, worst = net(x), net.start(2, STEPS), 0.0
    h = c = one = two = torch.zeros(2, WIDTH, dtype=torch.float64)
    for t in range(STEPS):
        h, c = split_lstm(net, x[:, t], h, c)
        one, two = joined_lstm(net, x[:, t], one, two)
        step = net.step(state, x[:, t])
        worst = most(worst, gap(h, whole[:, t]), gap(one, whole[:, t]), gap(step, whole[:, t]))
    return Residual(worst, ROUNDING)


def x39_reset_after_is_torchs_gru() -> Residual:
    """A GRU whose reset gate acts after the product is torch.nn.GRU.

    Examines: nn.recurrent.

    Source: Paszke et al. 2019, PyTorch (documentation of torch.nn.GRU)."""
    net, x = built(GRU.Config(width=WIDTH)), normal(2, STEPS, INPUTS)
    peer = torch.nn.GRU(INPUTS, WIDTH, batch_first=True).double()
    peer.load_state_dict(net.core.state_dict())
    state = net.start(2, STEPS)
    steps = torch.stack([net.step(state, x[:, t]) for t in range(STEPS)], 1)
    return Residual(most(gap(net(x), peer(x)[0]), gap(steps, peer(x)[0])), ROUNDING)


def gru_by_hand(net: RecurrentNet, x: Tensor, before: bool) -> Tensor:
    """All steps (B, T, width) of a GRU, gate by gate, with the reset before the product with U
    or after it."""
    w, u, b, other = (part.chunk(3) for part in net.layer(0))
    h, steps = torch.zeros(len(x), WIDTH, dtype=torch.float64), []
    for now in x.unbind(1):
        r, z = ((now @ w[k].T + b[k] + h @ u[k].T + other[k]).sigmoid() for k in range(2))
        read = now @ w[2].T + b[2]
        inner = (r * h) @ u[2].T + other[2] if before else r * (h @ u[2].T + other[2])
        h = z * h + (1 - z) * (read + inner).tanh()
        steps.append(h)
    return torch.stack(steps, 1)


def x39_reset_before_is_its_formula() -> Residual:
    """A GRU that resets before the product has tanh(W x + b + U (r h) + b').

    Examines: nn.recurrent.

    Source: Cho et al. 2014, Learning Phrase Representations Using RNN Encoder-Decoder."""
    net, x = built(GRU.Config(width=WIDTH, reset="before")), normal(2, STEPS, INPUTS)
    state, due = net.start(2, STEPS), gru_by_hand(net, x, before=True)
    steps = torch.stack([net.step(state, x[:, t]) for t in range(STEPS)], 1)
    return Residual(most(gap(net(x), due), gap(steps, due)), ROUNDING)


def x39_reset_before_is_another_function() -> Residual:
    """With the same weights, a GRU whose reset gate acts before it differs.

    Examines: nn.recurrent.

    Source: Cho et al. 2014, Learning Phrase Representations Using RNN Encoder-Decoder; Paszke et
    al. 2019, PyTorch (documentation of torch.nn.GRU)."""
    net, x = built(GRU.Config(width=WIDTH, reset="before")), normal(2, STEPS, INPUTS)
    return Residual(1e-2 / gap(net(x), net.core(x)[0]), 1.0)


@torch.enable_grad()
def x40_gradients_of_an_rnn_are_products() -> Residual:
    """d h_T / d h_0 = prod_t diag(phi'_t) U, of norm at most |U|^T.

    Examines: nn.recurrent.

    Source: Pascanu, Mikolov & Bengio 2013, On the Difficulty of Training Recurrent Neural
    Networks, sec. 2."""
    net, x = built(ElmanRNN.Config(width=WIDTH)), normal(STEPS, INPUTS)
    u = net.layer(0)[1].detach()

    def last(h: Tensor) -> Tensor:
        return scanned(net, x, h)[-1]

    h = 0.5 * normal(WIDTH)
    slopes = torch.autograd.functional.jacobian(last, h)
    product = torch.eye(WIDTH, dtype=torch.float64)
    for now in scanned(net, x, h):
        product = (1 - now.detach().square())[:, None] * u @ product
    bound = torch.linalg.matrix_norm(u, 2) ** STEPS
    excess = float((torch.linalg.matrix_norm(slopes, 2) / bound - 1).clamp(min=0))
    size = float(product.abs().amax())
    return Residual(most(gap(slopes, product) / size, excess), 1e-10)


def scanned(net: RecurrentNet, x: Tensor, h: Tensor) -> Tensor:
    """Every hidden vector (T, width) from the first one, (width,)."""
    state = net.start(1, len(x))
    state.layers[0] = (h[None], *state.layers[0][1:])
    return torch.cat([net.step(state, now[None]) for now in x])


@torch.enable_grad()
def x40_the_cell_carries_the_product_of_forget_gates() -> Residual:
    """With gates independent of h, d c_T / d c_0 = prod_t f_t.

    Examines: nn.recurrent.

    Source: Gers, Schmidhuber & Cummins 2000, Learning to Forget."""
    net, x = built(LSTM.Config(width=WIDTH)), normal(STEPS, INPUTS)
    w, u, b, other = net.layer(0)
    u.data.zero_()
    own = slice(WIDTH, 2 * WIDTH)
    forget = (x @ w[own].T + b[own] + other[own]).sigmoid()  # (T, width)

    def last(c: Tensor) -> Tensor:
        state = net.start(1, STEPS)
        state.layers[0] = (state.layers[0][0], c[None])
        for now in x:
            net.step(state, now[None])
        return state.layers[0][1][0]

    slopes = torch.autograd.functional.jacobian(last, normal(WIDTH))
    product = torch.diag(forget.prod(0)).detach()
    return Residual(gap(slopes, product) / float(product.amax()), 1e-10)


SENTENCES = Space(
    kind="tokens",
    shape=(5,),
    size=4,
    varies=True,
    end=3,
    name="target",
    given={"source": Space(kind="tokens", shape=(4,), size=3, varies=True, name="source")},
)
STRINGS, SENTENCE_ROWS = 2000, 400
PLANES = ((0x20, 0x7F), (0xA0, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))
"""Code points of one to four bytes, without the surrogates, which no UTF-8 string holds."""


def seeded_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=make_generator(seed), dtype=torch.float64)


def x110_scores_and_context() -> Residual:
    """A context of each score is in the hull of the values that exist.

    Weights are not negative, sum to one, and are zero on padding.

    Examines: nn.attention.scores, nn.attention.softmax.

    Source: Luong, Pham & Manning 2015, Effective Approaches to Attention-Based NMT, sec. 3.1."""
    q, k, length = seeded_normal(3, 4, 5), seeded_normal(3, 6, 5, seed=1), torch.tensor([6, 2, 4])
    worst = 0.0
    learned = (BilinearScore(5, 5).double(), AdditiveScore(5, 5, 8).double())
    for score in (DotScore(), DotScore(scaled=False), *learned):
        weights = (score(q, k) + padding_mask(length, 6, k)[:, 0]).softmax(-1)
        beyond = weights * (torch.arange(6) >= length[:, None, None])
        context = weights @ k
        seen = torch.arange(6) < length[:, None]
        low = k.masked_fill(~seen[..., None], math.inf).amin(1)[:, None]
        high = k.masked_fill(~seen[..., None], -math.inf).amax(1)[:, None]
        outside = (low - context).clamp(min=0) + (context - high).clamp(min=0)
        worst = max(
            worst,
            float((weights.sum(-1) - 1).abs().max()),
            float(beyond.max()),
            float((-weights).clamp(min=0).max()),
            float(outside.max()),
        )
    return Residual(worst, 1e-12)


def x110_scores_are_their_formulas() -> Residual:
    """Scores q.k / sqrt(d), q.k, q'Wk and v'tanh(Wq + Uk), pair by pair.

    A bilinear score with W = I is the dot product that is not scaled.

    Examines: nn.attention.scores.

    Source: Luong, Pham & Manning 2015, Effective Approaches to Attention-Based NMT, sec. 3.1;
    Bahdanau, Cho & Bengio 2015, Neural Machine Translation by Jointly Learning to Align and
    Translate."""
    q, k = seeded_normal(1, 4, 5), seeded_normal(1, 6, 5, seed=1)
    bilinear, additive = BilinearScore(5, 5).double(), AdditiveScore(5, 5, 8).double()
    w = bilinear.map.weight.clone()  # q' w' k
    hidden = [
        [
            (additive.query.weight @ a + additive.query.bias + additive.key.weight @ b).tanh()
            for b in k[0]
        ]
        for a in q[0]
    ]
    products = torch.stack([torch.stack([(a * b).sum() for b in k[0]]) for a in q[0]])
    due = [
        products / math.sqrt(5),
        products,
        torch.stack([torch.stack([(w @ a) @ b for b in k[0]]) for a in q[0]]),
        torch.stack([torch.stack([additive.out.weight[0] @ h for h in row]) for row in hidden]),
    ]
    worst = [
        gap(score(q, k)[0], known)
        for score, known in zip(
            (DotScore(), DotScore(scaled=False), bilinear, additive), due, strict=True
        )
    ]
    bilinear.map.weight.data = torch.eye(5, dtype=torch.float64)
    return Residual(most(worst, gap(bilinear(q, k), DotScore(scaled=False)(q, k))), 1e-12)


def strings(count: int) -> list[str]:
    """Random strings over all planes of Unicode."""
    generator = make_generator(7)
    found = []
    for _ in range(count):
        length = int(torch.randint(0, 20, (1,), generator=generator))
        planes = torch.randint(0, len(PLANES), (length,), generator=generator).tolist()
        points = [
            int(torch.randint(*PLANES[plane], (1,), generator=generator)) for plane in planes
        ]
        found.append("".join(map(chr, points)))
    return found


def x111_tokens_come_back() -> Residual:
    """decode(encode(s)) = s for every UTF-8 string; merges never add tokens.

    An unseen word has tokens too.

    Examines: data.codecs.tokens.

    Source: Sennrich, Haddow & Birch 2016, Neural Machine Translation of Rare Words with Subword
    Units; Radford et al. 2019, Language Models Are Unsupervised Multitask Learners, sec. 2.2."""
    seen = ["the annoying cat sat annoyingly on the mat", "Über die Brücke läuft die Katze"] * 20
    few = Text.fit("bpe", seen, seen, 300, ends=False)
    many = Text.fit("bpe", seen, seen, 400, ends=False)
    raw = Text.fit("bytes", seen, seen, 0, ends=True)
    texts = [*strings(STRINGS), *seen[:2], "annoyingness", "  two  blanks\n\n"]
    wrong = 0
    codes = [codec.codes(texts, str) for codec in (raw, few, many)]
    for text, *rows in zip(texts, *codes, strict=True):
        for codec, row in zip((raw, few, many), rows, strict=True):
            wrong += codec.spell(row.tolist()) != text
        wrong += not len(rows[0]) - 1 >= len(rows[1]) >= len(rows[2])
    return Residual(float(wrong), 0.0)


def x112_lengths_in_a_batch() -> Residual:
    """Rows of unequal length in a padded batch give what each gives alone.

    For recurrent networks in both directions, attention, and log-likelihoods.

    Examines: models.sequence._encoder_decoder, nn.recurrent.

    Source: Neubig, Goldberg & Dyer 2017, On-the-Fly Operation Batching in Dynamic Computation
    Graphs."""
    x, length = seeded_normal(5, 7, 3), torch.tensor([7, 1, 4, 6, 2])
    worst = 0.0
    for config in (
        ElmanRNN.Config(width=4),
        LSTM.Config(width=4, depth=2),
        GRU.Config(width=4, reset="before"),
        Bidirectional.Config(),
    ):
        torch.manual_seed(0)
        net = config.build(3).double()
        together = net(x, length)
        for row, size in enumerate(length.tolist()):
            alone = net(x[row : row + 1, :size])
            worst = max(worst, float((together[row, :size] - alone[0]).abs().max()))
    for owner in (Transformer, Seq2Seq):
        worst = max(worst, apart(build(owner.smallest_config(SENTENCES), SENTENCES), sentences(6)))
    return Residual(worst, 1e-12)


def sentences(n: int) -> Batch:
    """Sentences and sources of random lengths; the padding is arbitrary."""
    generator = make_generator(5)
    length = torch.randint(1, 5, (2, n), generator=generator)
    y, x = (torch.randint(0, 3, (n, most), generator=generator) for most in (5, 4))
    y.scatter_(1, length[0, :, None], 3)
    y[torch.arange(5) > length[0, :, None]], x[torch.arange(4) >= length[1, :, None]] = 9, 9
    return Batch(y, {"source": Batch(x, length=length[1])}, length=length[0] + 1)


def apart(model: Model, batch: Batch) -> float:
    """By how much log p of rows in a batch differs from that of each alone, cut to its length."""
    assert isinstance(model, HasConditionals), (
        "a model of sentences has a distribution of each symbol"
    )
    assert batch.length is not None, "sentences have lengths"
    together, worst = model.conditionals(batch), 0.0
    source = batch.given["source"]
    assert source.length is not None, "so have their sources"
    for row, (size, read) in enumerate(
        zip(batch.length.tolist(), source.length.tolist(), strict=True)
    ):
        given = {"source": Batch(source.x[row : row + 1, :read])}
        alone = model.conditionals(Batch(batch.x[row : row + 1, :size], given))
        worst = max(worst, float((together[row, :size] - alone[0]).abs().max()))
    return worst


def x117_decoders_read_their_own_samples() -> Residual:
    """Scheduled sampling replaces a share s of the decoder's inputs by samples.

    All of them at s = 1, where the loss is that of decoding from samples alone.

    Examines: models.sequence._encoder_decoder.

    Source: Bengio et al. 2015, Scheduled Sampling for Sequence Prediction with Recurrent Neural
    Networks."""
    worst = []
    for owner in (Transformer, Seq2Seq):
        config = owner.smallest_config(SENTENCES).override("label_smoothing=0")
        half, whole = (
            build(config.override(f"scheduled_sampling={share}"), SENTENCES)
            for share in (0.5, 1.0)
        )
        batch = replace(sentences(SENTENCE_ROWS), step=SCHEDULED_SAMPLING_WARMUP)
        for model in (half, whole):
            assert isinstance(model, EncoderDecoderModel)
            model.bias[0] += 40.0  # it samples the first symbol alone
            x, exist = model.rows(batch)
            memory, inputs = model.encode_source(model.source_of(batch)), model.inputs(x)
            mixed = model.mix_own_samples(memory, inputs, batch.step)
            own = (mixed[:, 1:] == model.embed(torch.zeros_like(x[:, 1:]))).all(-1)
            share = own[(x[:, :-1] != 0) & exist[:, 1:]].double()
            if model is half:
                worst.append(standard_errors(share, torch.tensor(0.5)) / 5)
                continue
            forced = torch.cat([inputs[:, :1], model.embed(torch.zeros_like(x[:, 1:]))], 1)
            log_p = model.logits(model.decode_steps(memory, forced)).log_softmax(-1)
            due = -(log_p.gather(2, x[..., None])[..., 0] * exist).sum(1) / model.average
            off = relative(model.loss(batch)["nll"], due)
            worst += [float((share - 1).abs().amax()), off / 1e-9]
    return Residual(most(worst), 1.0)
