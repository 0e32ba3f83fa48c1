"""vrnn and stcn: bounds, codes and steps agree with the exact model, and forecasts follow it."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import small_data
import torch
from PIL import Image

import monge
from monge import registry
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.core.train_config import TrainConfig
from monge.data import loading as data
from monge.models.latent._particle_filter import systematic_resample
from monge.models.latent._sequential import ANNEALED_STEPS
from monge.models.latent.stcn import LadderStack
from monge.nn.dilated import DilatedStack
from monge.train.trainer import Trainer

NAMES = ("latent.vrnn", "latent.stcn")
both = pytest.mark.parametrize("name", NAMES)
framed = pytest.mark.parametrize("frame", [1, 2])


def built(name, space, *settings, seed=0):
    """A small model in float64 whose weights are far from their symmetric start."""
    torch.manual_seed(seed)
    model = registry.find(name).smallest_config(space).override(*settings).build(space).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
        for part in model.posteriors:  # near the prior, so that no weight is far from the others
            part.net.out.weight.mul_(0.1)
            part.net.out.bias.mul_(0.1)
    return model.eval().requires_grad_(False)


def bits(steps=4):
    space = Space(kind="binary", shape=(steps,), size=2, mean=(0.5,), scale=(0.5,), rows=100)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=steps)), dtype=torch.float64)
    return space, every


@both
@framed
def test_importance_samples_recover_probabilities_that_sum_to_one(name, frame):
    space, every = bits(3)
    model = built(name, space, f"frame={frame}")
    for options in ("filter=true", "filter=false"):
        asked = model.LikelihoodConfig().override("samples=1000", options)
        found = model.likelihood(Batch(every), asked)
        assert found.kind == "bound"
        assert abs(found.value.exp().sum() - 1) < 5 * float(found.stderr.max())
        assert found.stderr.max() < 0.1
    many = Batch(every.repeat(200, 1), row=torch.arange(200 * len(every)))
    one = model.likelihood(many, model.LikelihoodConfig().override("samples=1")).value
    assert one.mean() < found.value.mean()


@both
def test_annealing_finds_the_evidence_that_few_whole_sequences_miss(name):
    """By chains of all codes of a row, which reach what thousands of importance samples find; rows
    do not depend on those beside them, nor on padding."""
    space, every = bits(3)
    model = built(name, space, seed=3)
    with torch.no_grad():
        for part in model.posteriors:  # far from the prior, as an encoder that has learned little
            part.net.out.bias.add_(1.5)
    batch = Batch(every.repeat(4, 1), row=torch.arange(4 * len(every)))

    def score(rows, *options):
        asked = model.LikelihoodConfig().override(*options)
        return model.likelihood(rows, asked, make_generator(1))

    truth = score(batch[: len(every)], "samples=2000").value.repeat(4)
    few = score(batch, "samples=8", "filter=false").value
    ais = ("method=ais", "samples=8", "temperatures=20", "leaps=1")
    found = score(batch, *ais)
    assert found.kind == "bound"
    assert "20" in found.description
    assert (found.value - truth).abs().mean() < (few - truth).abs().mean() / 2
    some = slice(5, 9)
    torch.testing.assert_close(score(batch[some], *ais).value, found.value[some])


@both
@framed
def test_samples_follow_the_distribution_that_is_scored(name, frame):
    space, every = bits(3)
    model = built(name, space, f"frame={frame}")
    p = model.likelihood(
        Batch(every), model.LikelihoodConfig().override("samples=2000")
    ).value.exp()
    x = model.sample(4000, generator=make_generator(1))
    share = (x[:, None] == every).all(2).double().mean(0)
    error = (p * (1 - p) / 4000).sqrt()
    assert ((share - p).abs() < 5 * error + 0.01).all()


@both
@framed
def test_a_forecast_is_sampled_given_what_was_seen(name, frame):
    """P(last | first three) by the ratio of likelihoods, and by how often it is sampled. In frames
    of two the third is the first of an incomplete one."""
    space, every = bits()
    model = built(name, space, f"frame={frame}", seed=3)
    log_p = model.likelihood(Batch(every), model.LikelihoodConfig().override("samples=2000")).value
    seen = torch.tensor([True, True, True, False])
    for start in (0, 6, 10):  # rows of which the last two differ in their last bit alone
        pair = log_p[start : start + 2].softmax(0)
        rows = Batch(every[start].repeat(2000, 1), observed=seen.repeat(2000, 1))
        x = model.complete(rows, model.SamplingConfig(particles=32), make_generator(start))
        assert torch.equal(x[:, :3], rows.x[:, :3])
        assert abs(x[:, 3].mean() - pair[1]) < 5 * 0.5 / 2000**0.5 + 0.01


def test_codes_are_carried_on_by_vrnn_alone():
    """The summary of the past hears of other codes of the first step in vrnn, not in stcn."""
    space, every = bits()
    for name, carried in zip(NAMES, (True, False), strict=True):
        model, batch = built(name, space), Batch(every)
        z = torch.randn(
            1, len(every), *model.latent.shape, dtype=torch.float64, generator=make_generator(0)
        )
        other = z.clone()
        other[:, :, 0] += 1
        (one, _), (two, _) = (
            model.infer_steps(model.to_frames(batch), None, c) for c in (z, other)
        )
        assert torch.equal(one.mean[:, :, 1:], two.mean[:, :, 1:]) != carried
        assert model.carries_codes == carried


@both
@framed
def test_rates_of_steps_add_up_to_the_divergence(name, frame):
    """X62 by samples: the mean of log q - log p over q is that of the sum of closed forms."""
    space, batch = small_data.sequence("channels", 6)
    batch = replace(batch.double(), row=torch.arange(6))
    model = built(name, space, f"frame={frame}")
    frames = -(-batch.x.shape[1] // frame)
    noise = torch.randn(
        1000, 6, frames, model.latent.shape[1], dtype=torch.float64, generator=make_generator(2)
    )
    z = model.infer(batch, noise)
    ratio = model.log_posterior(batch, z) - model.log_prior(batch, z)
    kls = model.level_kls(batch, z)
    assert (kls >= 0).all()
    gap = ratio - kls.sum(-1)
    assert (gap.mean(0).abs() < 5 * gap.std(0) / 1000**0.5 + 1e-9).all()
    assert kls.sum() > 0
    beyond = frame * torch.arange(frames) >= batch.length[:, None]
    ladder = kls.shape[-1] // frames
    assert not kls.unflatten(-1, (-1, ladder))[:, beyond].any()


@both
@framed
def test_a_row_given_step_by_step_is_heard_at_its_own_frame(name, frame):
    space = Space(
        kind="real",
        shape=(5,),
        rows=100,
        given={"drive": Space(kind="real", shape=(5, 1), rows=100, name="drive")},
    )
    model = built(name, space, f"frame={frame}")
    x = torch.randn(2, 5, dtype=torch.float64, generator=make_generator(0))
    drive = torch.zeros(2, 5, 1, dtype=torch.float64)
    late = drive.clone()
    late[:, 3] = 2.0
    one, two = (
        model.sample(2, {"drive": Batch(c)}, generator=make_generator(1)) for c in (drive, late)
    )
    first = 3 // frame * frame  # the step at which the frame of the fourth begins
    assert torch.equal(one[:, :first], two[:, :first])
    assert not torch.equal(one[:, first:], two[:, first:])
    slow = model.sample(
        2, {"drive": Batch(late)}, model.SamplingConfig(cached=False), make_generator(1)
    )
    torch.testing.assert_close(two, slow)
    assert model.likelihood(Batch(x, {"drive": Batch(late)})).value.isfinite().all()


@both
def test_weighing_step_by_step_is_tighter_on_long_rows(name):
    space = replace(bits(1)[0], shape=(40,))
    model = built(name, space, "frame=1")
    x = torch.bernoulli(
        torch.full((30, 40), 0.5, dtype=torch.float64), generator=make_generator(0)
    )
    with torch.no_grad():
        for part in model.posteriors:
            part.net.out.bias += 0.5  # far enough from what it should be to matter
    one, whole, step = (
        model.likelihood(Batch(x), model.LikelihoodConfig().override(*settings)).value
        for settings in (["samples=1"], ["samples=16", "filter=false"], ["samples=16"])
    )
    assert one.mean() < whole.mean() < step.mean()
    many = model.likelihood(Batch(x), model.LikelihoodConfig().override("samples=1000")).value
    assert (many - step).mean() < 0.2 * (step - whole).mean()


def test_particles_are_resampled_by_their_shares():
    share = torch.tensor([[0.5, 0.0], [0.25, 0.0], [0.25, 1.0], [0.0, 0.0]]).double()
    uniform = torch.tensor([0.3, 0.3]).double()
    chosen = systematic_resample(share, uniform, torch.tensor([False, False]))
    assert chosen[:, 0].tolist() == [0, 0, 1, 2]
    assert chosen[:, 1].tolist() == [2, 2, 2, 2]
    one = systematic_resample(
        share, torch.tensor([0.6, 0.3]).double(), torch.tensor([True, False])
    )
    assert one[:, 0].tolist() == [1, 1, 1, 1]


def test_strokes_are_plotted_as_paths_and_forecast_by_a_named_method(tmp_path, capsys):
    run = monge.fit(
        "stcn",
        "strokes",
        "data.rows=80",
        "width=4",
        "layers=2",
        "step_net.width=8",
        "latent=2",
        budget="2steps",
        out=tmp_path / "run",
    )
    out = tmp_path / "strokes.png"
    assert attempt(["sample", str(run.folder), "-n", "5", "-o", str(out)]) == 0
    with Image.open(out) as image:
        assert min(image.size) > 100
    hidden = np.ones((32, 2), bool)
    hidden[:10] = False
    np.save(tmp_path / "later.npy", hidden)
    capsys.readouterr()
    assert (
        attempt(
            [
                "complete",
                str(run.folder),
                "--hide",
                str(tmp_path / "later.npy"),
                "-o",
                str(tmp_path / "x.npz"),
                "--json",
            ]
        )
        == 0
    )
    assert "exact" in json.loads(capsys.readouterr().out)["method"]


def test_a_ladder_is_read_from_the_top():
    torch.manual_seed(0)
    net = LadderStack(DilatedStack.Config(width=2, layers=5)).double()
    assert net.sizes(2) == [4, 6]
    out = torch.arange(10.0).reshape(1, 1, 10)
    top, low = net.split(out, 2)
    assert top.flatten().tolist() == [6.0, 7.0, 8.0, 9.0]
    assert low.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    x = torch.randn(2, 40, 2, dtype=torch.float64, generator=make_generator(0))
    x.requires_grad_()
    top, low = net.split(net(x)[:, -1], 2)
    reaches = [
        int((torch.autograd.grad(part.sum(), x, retain_graph=True)[0] != 0).any(2).any(0).sum())
        for part in (low, top)
    ]
    assert reaches == [8, 32]


@both
def test_unused_codes_and_narrow_scales_are_found(name):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, 1, generator=g).cumsum(1)
    space = Space(kind="real", shape=(6, 1), rows=300, scale=(2.0,))
    owner = registry.find(name)
    torch.manual_seed(0)
    model = owner.smallest_config(space).override("latent=4").build(space)
    with torch.no_grad():
        for part in model.posteriors:
            part.net.out.weight.zero_()
    found = {finding.name: finding for finding in model.diagnose(Batch(x))}
    assert "0 of" in found["posterior collapse"].sentence
    with torch.no_grad():
        for part in model.posteriors:
            part.net.out.bias.fill_(1.0)
        model.decoder.out.weight.zero_()
        model.decoder.out.bias[-model.config.components :] = -20.0
    found = [finding.name for finding in model.diagnose(Batch(x))]
    assert found == ["degenerate scale"]


@pytest.mark.slow
@both
def test_codes_hold_what_the_channels_of_a_step_share(name):
    """A coin decides both channels, which are independent given codes: log 2 nats per step."""
    coin = torch.randint(0, 2, (1500, 2, 1), generator=make_generator(0)) * 2.0 - 1
    x = coin + 0.2 * torch.randn(1500, 2, 2, generator=make_generator(1))
    torch.manual_seed(0)
    space, owner = Space(kind="real", shape=(2, 2), rows=1000), registry.find(name)
    model = owner.smallest_config(space).override("step_net.width=32").build(space)
    trainer = Trainer(
        model,
        small_data.Rows(Batch(x[:1000])),
        TrainConfig(lr=8e-3, grad_clip=1.0, batch_size=100),
    )
    for _ in range(250):
        trainer.train_step(1.0)
    with torch.no_grad():
        found = (
            model.eval()
            .likelihood(Batch(x[1000:]), model.LikelihoodConfig(samples=16))
            .value.mean()
        )
    noise = 2 * math.log(2 * math.pi * math.e * 0.2**2)  # entropy of the four numbers of a row
    assert -3 * math.log(2) - noise < found < -2 * math.log(2) - noise + 0.2


@both
def test_entries_beyond_a_row_are_neither_read_nor_paid_for(name):
    """The end of a row within a frame: other padding changes nothing, and a row that is cut has
    the probability that its continuations sum to."""
    space, every = bits(3)
    space = replace(space, shape=(3, 1), varies=True)
    model = built(name, space, "frame=2")
    many = model.LikelihoodConfig().override("samples=2000")

    def score(rows, steps):
        length = torch.full((len(rows),), steps)
        same = torch.zeros(len(rows), dtype=torch.long)  # the noise of every row
        batch = Batch(rows[..., None], length=length, row=same)
        return model.likelihood(batch, many).value

    short = score(every, 1)
    assert torch.equal(short[every[:, 0] == 0].unique(), short[:1])
    whole = score(every, 3).exp()
    for first in (0, 1):
        own = every[:, 0] == first
        assert abs(whole[own].sum() - short[own][0].exp()) < 0.03


def test_what_cannot_be_is_refused():
    space, _ = bits()
    with pytest.raises(UsageError, match="frame=5"):
        built("vrnn", space, "frame=5")
    with pytest.raises(UsageError, match="latent=40"):
        built("vrnn", space, "latent=40")
    with pytest.raises(UsageError, match=r"latent_levels=3.*layers=2"):
        built("stcn", space, "latent_levels=3", "layers=2")
    model = built("vrnn", space)
    with pytest.raises(UsageError, match="samples=0"):
        model.LikelihoodConfig().override("samples=0")
    with pytest.raises(UsageError, match="steps=9"):
        model.sample(2, options=model.SamplingConfig(steps=9))
    pairs, whole = replace(space, shape=(4, 2)), torch.zeros(1, 4, 2)
    half = torch.ones(1, 4, 2, dtype=torch.bool)
    half[:, 2:, 0] = False
    with pytest.raises(DataError, match=r"vrnn.*row 0\b"):
        built("vrnn", pairs).complete(Batch(whole, observed=half))


def regressed(train, test, order):
    """Mean log-likelihood of rows (T, C) under a least-squares Gaussian autoregression; the first
    steps, which have a shorter past, have regressions of their own."""
    total = np.zeros(len(test))
    for lag in range(order + 1):

        def design(rows, lag=lag):
            pasts = [
                (i, np.append(r[s - lag : s], 1.0), r[s])
                for i, r in enumerate(rows)
                for s in ([lag] if lag < order else range(order, len(r)))
                if s < len(r)
            ]
            who, x, y = zip(*pasts, strict=True)
            return np.array(who), np.array(x), np.array(y)

        _, x, y = design(train)
        weights = np.linalg.lstsq(x, y, rcond=None)[0]
        rest = y - x @ weights
        cover = rest.T @ rest / len(rest)
        who, x, y = design(test)
        gap = y - x @ weights
        square = (gap @ np.linalg.inv(cover) * gap).sum(1)
        np.add.at(total, who, -0.5 * (square + np.linalg.slogdet(2 * np.pi * cover)[1]))
    return total.mean()


@pytest.mark.slow
@both
@pytest.mark.parametrize("name_of_data", ["sines", "strokes"])
def test_bounds_beat_a_gaussian_autoregression(name, name_of_data):
    view = data.open(name_of_data).view()
    owner, rows = registry.find(name), view.split("train")
    defaults = owner.defaults(view.space)
    torch.manual_seed(0)
    trainer = Trainer(defaults.config.build(view.space), rows, defaults.train, seed=0)
    for _ in range(2 * ANNEALED_STEPS):
        trainer.train_step(1.0)
    model = trainer.model.eval()
    trainer.ema.put(trainer.ema.weights)
    with torch.no_grad():
        found = model.likelihood(view.split("test").whole()).value.double().mean()

    def steps(split):
        batch = view.split(split).whole()
        x = batch.x.reshape(*batch.x.shape[:2], -1).double().numpy()
        ends = [x.shape[1]] * len(x) if batch.length is None else batch.length.tolist()
        return [row[:end] for row, end in zip(x, ends, strict=True)]

    assert float(found) > regressed(steps("train"), steps("test"), 16)
