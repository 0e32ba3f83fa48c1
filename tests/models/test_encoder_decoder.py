"""Models of sentences given a source: exact sums, teacher forcing against steps, beams, fits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import small_data
import torch
from torch import Tensor
from training import assert_unbroken

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.likelihood import HeldOutScorer
from monge.models.sequence.seq2seq import Seq2Seq
from monge.models.sequence.transformer import Transformer
from monge.nn.attention.transformer import CausalTransformer
from monge.nn.recurrent import LSTM
from monge.train.budget import Budget
from monge.train.loop import evaluate_ema, fit
from monge.train.trainer import Trainer

NET = CausalTransformer.Config(width=8, depth=2, heads=2, expand=2, positions="sinusoidal")
CONFIGS = {
    "transformer": Transformer.Config(net=NET),
    "post": Transformer.Config(net=replace(NET, norm="post", positions="learned"), share="none"),
    "none": Seq2Seq.Config(net=LSTM.Config(width=8, depth=2), attention="none"),
    "dot": replace(Seq2Seq.smallest_config(small_data.sentences(4)[0]), attention="dot"),
    "bilinear": Seq2Seq.smallest_config(small_data.sentences(4)[0]),
    "additive": replace(Seq2Seq.smallest_config(small_data.sentences(4)[0]), attention="additive"),
    "input": Seq2Seq.Config(
        net=LSTM.Config(width=8, depth=2), attention="additive", context="input"
    ),
    "hard": replace(Seq2Seq.smallest_config(small_data.sentences(4)[0]), hard=True),
}
for choice in ("argmax", "sample"):
    CONFIGS[choice] = replace(CONFIGS["hard"], hard_choice=choice)
CONFIGS["sample at the input"] = replace(CONFIGS["sample"], context="input")
every = pytest.mark.parametrize("name", CONFIGS)


def built(name: str, space: Space | None = None):
    """A model with perturbed weights, float64."""
    torch.manual_seed(0)
    model = CONFIGS[name].build(space or small_data.sentences(4)[0]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def every_sentence(most: int = 5, size: int = 3) -> list[tuple[int, ...]]:
    """All that end within `most` symbols, and all that do not."""
    full = [(*body, 3) for n in range(most) for body in itertools.product(range(size), repeat=n)]
    return full + list(itertools.product(range(size), repeat=most))


def padded(rows: list[tuple[int, ...]], most: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.full((len(rows), most), 9)
    for place, row in enumerate(rows):
        x[place, : len(row)] = torch.tensor(row)
    return x, torch.tensor([len(row) for row in rows])


def given(source: list[int], n: int) -> dict[str, Batch]:
    return {"source": Batch(torch.tensor([source] * n), length=torch.full((n,), len(source)))}


@every
def test_it_sums_to_one_over_all_sentences(name):
    model, (x, length) = built(name), padded(every_sentence())
    log_p = model.likelihood(Batch(x, given([2, 0, 1], len(x)), length=length)).value
    assert abs(log_p.exp().sum().item() - 1) < 1e-10


@every
def test_padding_and_batching_change_nothing(name):
    model, (_, batch) = built(name), small_data.sentences(30, seed=1)
    together = model.conditionals(batch)
    for row in range(0, 30, 7):
        alone, size, own = batch[row : row + 1], int(batch.length[row]), batch.given["source"]
        short = {"source": Batch(own.x[row : row + 1, : own.length[row]])}
        one = model.conditionals(Batch(alone.x[:, :size], short))
        torch.testing.assert_close(together[row, :size], one[0], rtol=0, atol=1e-12)
        assert (together[row, size:] == 0).all()
    turned = {"source": Batch(own.x.clamp(max=2).flip(0), length=own.length.flip(0))}
    other = Batch(batch.x, turned, length=batch.length)
    assert (model.conditionals(other) - together).abs().max() > 1e-3  # it reads the source


@every
def test_steps_give_what_is_scored(name):
    """The log-probability of a sentence is what drawing it step by step used."""
    model, (_, batch) = built(name), small_data.sentences(6, seed=2)
    source = batch.given["source"]
    whole = model.conditionals(batch)
    with torch.no_grad():
        speaker = model.step_decoder(model.encode_source(source), 6, 5)
        symbol, own = None, []
        for step in range(5):
            log_p = speaker.next_logits(symbol).log_softmax(-1)
            symbol = batch.x[:, step].clamp(max=3)
            own.append(log_p.gather(1, symbol[:, None])[:, 0])
    exist = torch.arange(5) < batch.length[:, None]
    torch.testing.assert_close(torch.stack(own, 1) * exist, whole, rtol=0, atol=1e-12)


@every
def test_it_samples_what_it_scores(name):
    model, (x, length) = built(name), padded(every_sentence())
    condition = given([1, 2], 1)
    log_p = model.likelihood(Batch(x, given([1, 2], len(x)), length=length)).value
    entropy = -(log_p.exp() * log_p).sum().item()
    samples = model.sample(4000, condition, generator=make_generator(0))
    assert torch.equal(samples, model.sample(4000, condition, generator=make_generator(0)))
    *_, last = model.stream(4000, condition, generator=make_generator(0))
    assert torch.equal(samples, last)
    own = model.likelihood(Batch(samples, given([1, 2], 4000))).value
    assert abs(own.mean().item() + entropy) < 5 * own.std().item() / 4000**0.5


@every
def test_a_wide_beam_finds_the_most_probable_sentence(name):
    model, rows = built(name), every_sentence()
    x, length = padded(rows)
    sources = [[0], [2, 1, 1], [1, 0, 2, 2]]
    for penalty in (0.0, 1.0):
        best = []
        for source in sources:
            log_p = model.likelihood(Batch(x, given(source, len(x)), length=length)).value
            best.append(rows[int((log_p / length**penalty).argmax())])
        long = torch.tensor([len(source) for source in sources])
        codes = torch.tensor([source + [0] * (4 - len(source)) for source in sources])
        options = model.SamplingConfig(beams=600, penalty=penalty)
        found = model.mode({"source": Batch(codes, length=long)}, options)
        for row, truth in zip(found.tolist(), best, strict=True):
            assert tuple(row[: len(truth)]) == truth
            assert set(row[len(truth) :]) <= {3}


@every
def test_a_beam_of_one_is_greedy(name):
    model, (_, batch) = built(name), small_data.sentences(20, seed=3)
    beam = model.mode(batch.given, model.SamplingConfig(beams=1))
    greedy = model.sample(
        20, batch.given, model.SamplingConfig(top_k=1), generator=make_generator(0)
    )
    assert torch.equal(beam, greedy)


@every
def test_attention_is_a_distribution_over_the_source(name):
    model, (_, batch) = built(name), small_data.sentences(9, seed=4)
    if name == "none":
        with pytest.raises(UsageError, match="attention=none"):
            model.attention(batch)
        return
    weights = model.attention(batch)
    torch.testing.assert_close(weights.sum(2), torch.ones_like(weights[..., 0]))
    source = batch.given["source"]
    beyond = torch.arange(4) >= source.length[:, None]
    assert (weights.mT[beyond] == 0).all()
    assert (weights >= 0).all()


@every
def test_a_short_fit_improves_and_resumes(name, tmp_path: Path):
    space, batch = small_data.sentences()
    rows, valid = small_data.Rows(batch[:500]), small_data.Rows(batch[500:])
    owner = type(CONFIGS[name].build(space))
    train_config = replace(
        owner.defaults(space).train, batch_size=32, warmup=10, lr=1e-2, schedule="constant"
    )

    def trainer() -> Trainer:
        torch.manual_seed(0)
        return Trainer(
            replace(CONFIGS[name], scheduled_sampling=0.2).build(space), rows, train_config, seed=1
        )

    whole = assert_unbroken(trainer, tmp_path)
    scorer = HeldOutScorer(whole.model, valid)
    before = evaluate_ema(whole, scorer)
    for _ in fit(whole, Budget(steps=60), scorer):
        pass
    assert evaluate_ema(whole, scorer).value > before.value + 0.3


@pytest.mark.parametrize("owner", [Transformer, Seq2Seq])
@pytest.mark.parametrize("kind", ["series", "image", "sound", "label"])
def test_it_reads_sounds_and_images_too(owner, kind):
    space, batch = small_data.sentences(8)
    torch.manual_seed(1)
    source, own = {
        "series": (
            Space(kind="real", shape=(6, 3), varies=True, name="source"),
            Batch(torch.randn(8, 6, 3), length=torch.tensor([6, 3, 4, 6, 1, 2, 5, 6])),
        ),
        "image": (
            Space(kind="real", shape=(1, 9, 9), name="source"),
            Batch(torch.randn(8, 1, 9, 9)),
        ),
        "sound": (
            Space(kind="levels", size=256, shape=(90,), varies=True, rate=1000, name="source"),
            Batch(torch.randint(256, (8, 90)).float(), length=torch.arange(20, 100, 10)),
        ),
        "label": (Space(kind="label", size=4, name="source"), Batch(torch.arange(8) % 4)),
    }[kind]
    space = replace(space, given={"source": source})
    model = owner.smallest_config(space).build(space).eval()
    rows = Batch(batch.x, {"source": own}, length=batch.length)
    together = model.likelihood(rows).value
    assert together.isfinite().all()
    assert (
        model.likelihood(replace(rows, given={"source": own[torch.arange(8).flip(0)]})).value
        - together
    ).abs().max() > 0
    assert model.mode(rows.given).shape == (8, 5)


def test_smoothing_trains_towards_a_flatter_distribution_and_scores_are_not_smoothed():
    space, batch = small_data.sentences(40)
    sharp, soft = (
        replace(CONFIGS["bilinear"], label_smoothing=e).build(space).eval() for e in (0, 0.3)
    )
    soft.load_state_dict(sharp.state_dict())
    torch.testing.assert_close(sharp.likelihood(batch).value, soft.likelihood(batch).value)
    exist = sharp.rows(batch)[1]
    logs = sharp.parameters_of_conditionals(batch).log_softmax(-1).mean(-1)
    nats = -sharp.likelihood(batch).value
    wanted = (0.7 * nats - 0.3 * (logs * exist).sum(1)) / soft.average
    torch.testing.assert_close(soft.loss(batch)["nll"], wanted)
    torch.testing.assert_close(sharp.loss(batch)["nll"], nats / sharp.average)


def test_a_sentence_without_a_source_is_refused():
    space, batch = small_data.sentences(4)
    assert "--given" in str(Transformer.unsupported_reason(replace(space, given={})))
    with pytest.raises(DataError, match="'source'"):
        built("dot").sample(3)
    with pytest.raises(UsageError, match=r"net\.width=7"):
        Seq2Seq.Config(net=LSTM.Config(width=7)).build(space)
    assert math.isfinite(built("dot").likelihood(batch).value.sum().item())


@pytest.mark.parametrize("name", ["sample", "sample at the input"])
def test_sampled_attention_has_the_gradient_of_the_expected_cost(name):
    """Against all choices of source states of a sentence, weighed by their probability."""
    space, batch = small_data.sentences(4)
    model = built(name, space).train()
    (source,) = batch.given.values()
    place = int((source.length * (batch.length > 2)).argmax())  # a long source, and two symbols
    row = batch[place : place + 1]
    x, exist = model.rows(row)
    x, exist = x[:, :2], exist[:, :2]
    memory = model.encode_source(model.source_of(row))
    count = memory.states.shape[1]
    real = [k for k in range(count) if memory.mask is None or memory.mask[0, 0, k] == 0]
    weights = list(model.score.parameters())
    total = torch.zeros(())
    for taken in itertools.product(real, repeat=2):
        asked = iter(taken)

        def choose(memory, h, asked=asked):
            scores = model.score(h, memory.states)
            scores = scores if memory.mask is None else scores + memory.mask
            chosen = torch.tensor([next(asked) for _ in range(h.shape[1])])
            hot = torch.nn.functional.one_hot(chosen, count).to(scores)[None]
            return hot, (scores.log_softmax(-1).masked_fill(hot < 0.5, 0.0)).sum(-1)

        model.attend, usual = choose, model.attend
        cost, log_q = model.costs(memory, model.inputs(x), x, exist)
        model.attend = usual
        total = total + log_q.sum().exp() * cost.sum()
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(total, weights)])
    copies = row[torch.zeros(4000, dtype=torch.long)]
    torch.manual_seed(1)
    source = model.source_of(copies)
    many, xs, exists = model.encode_source(source), x.repeat(4000, 1), exist.repeat(4000, 1)
    pairs = [model.costs(many, model.inputs(xs), xs, exists) for _ in range(2)]
    cost, log_q = (torch.stack(part) for part in zip(*pairs, strict=True))
    cost = cost + model.score_gradient(cost, log_q)
    found = torch.cat(
        [g.flatten() for g in torch.autograd.grad(cost.mean(0).sum() / 4000, weights)]
    )
    assert float((found - exact).norm() / exact.norm()) < 0.15


@pytest.mark.parametrize("choice", ["argmax", "sample", "gumbel"])
def test_each_choice_of_hard_attention_moves_the_score(choice):
    space, batch = small_data.sentences(4)
    config = replace(Seq2Seq.smallest_config(space), hard=True, hard_choice=choice)
    torch.manual_seed(0)
    model = config.build(space)
    model.initialise_from_data(batch)
    model.loss(batch)["nll"].mean().backward()
    assert all(bool(p.grad.abs().sum() > 0) for p in model.score.parameters())
