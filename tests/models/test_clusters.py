"""Clusters of rows: drawn by their shares, scored as drawn, told to the network."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.diffusion._guidance import Guidance
from monge.models.diffusion.consistency import Consistency
from monge.models.diffusion.ddpm import DDPM
from monge.prob.noise_schedule import NoiseSchedule

SIDE = 8
SHARES = (0.75, 0.25)
"""Of rows that are mostly dark, and of rows that are mostly light."""


def rows_of(n, seed=0):
    """Rows of two kinds whose pixels are independent given the kind, and the kinds."""
    g = make_generator(seed)
    light = torch.rand(n, generator=g) < SHARES[1]
    p = torch.where(light[:, None], 0.9, 0.15)
    x = (torch.rand(n, SIDE, generator=g) < p).double()
    return Batch(x, row=torch.arange(n)), light


def build(*settings, rows=2000, given=None):
    space = Space(
        kind="binary",
        shape=(SIDE,),
        size=2,
        rows=rows,
        mean=(0.3,),
        scale=(0.45,),
        given=given or {},
    )
    torch.manual_seed(0)
    config = replace(DDPM.smallest_config(space), target="residual", clusters=2)
    model = config.override(*settings).build(space).double()
    batch, light = rows_of(rows)
    model.initialise_from_data(batch)
    return model.eval(), batch, light


def mixture(model, x):
    """log p(k) + sum_d log p(x_d | k) by counting, with k the nearest of two centres."""
    seen, _ = rows_of(2000)
    y, centres = model.to_units(Batch(x)), model.clusters.centres
    own, mine = (
        ((rows[:, None] - centres) ** 2).sum(2).argmin(1) for rows in (model.to_units(seen), y)
    )
    found = []
    for k, row in zip(mine.tolist(), x, strict=True):
        members = seen.x[own == k]
        # two rows of the frequencies of all pixels in those of a pixel, ten of those in a cluster
        overall = (seen.x.sum() + 1) / (seen.x.numel() + 2)
        pixel = (seen.x.sum(0) + 2 * overall) / (len(seen.x) + 2)
        light = (members.sum(0) + 10 * pixel) / (len(members) + 10)
        each = torch.where(row > 0, light, 1 - light).log().sum()
        found.append(math.log((len(members) + 1) / (len(seen.x) + 2)) + float(each))
    return torch.tensor(found).double()


def test_the_clusters_are_those_of_the_rows():
    model, batch, light = build()
    member = model.clusters.nearest(model.to_units(batch))
    agree = (member == light.long()).double().mean()
    assert max(agree, 1 - agree) > 0.97
    assert float(model.clusters.shares.sum()) == pytest.approx(1)
    assert sorted(model.clusters.shares.tolist()) == pytest.approx(sorted(SHARES), abs=0.03)


def test_a_new_model_scores_the_mixture_of_its_clusters():
    """At initialisation a residual network leaves pixels independent given the cluster."""
    model, _, _ = build()
    held_out, _ = rows_of(200, seed=1)
    with torch.no_grad():
        found = model.likelihood(held_out, model.LikelihoodConfig(samples=256))
        alone, _, _ = build("clusters=0")
        without = alone.likelihood(held_out)
    gap = found.value - mixture(model, held_out.x)
    error = float(found.stderr.square().mean() / len(gap)) ** 0.5
    assert abs(float(gap.mean())) < 4 * error
    assert float((found.value - without.value).mean()) > 0.5


def test_samples_have_the_shares_and_the_pixels_of_the_clusters():
    model, batch, _ = build()
    x = model.sample(4000, generator=make_generator(1))
    member = model.clusters.nearest(model.to_units(Batch(x)))
    rows = model.clusters.nearest(model.to_units(batch))
    assert float(member.double().mean()) == pytest.approx(float(rows.double().mean()), abs=0.03)
    for k in (0, 1):
        torch.testing.assert_close(
            x[member == k].mean(0), batch.x[rows == k].mean(0), rtol=0, atol=0.06
        )


def test_a_completion_has_the_cluster_of_what_is_seen():
    model, _, _ = build()
    x = torch.cat([torch.zeros(300, SIDE), torch.ones(300, SIDE)]).double()
    seen = torch.arange(SIDE).expand(600, -1) < 5
    filled = model.complete(Batch(x, observed=seen), generator=make_generator(0))
    assert torch.equal(filled[seen], x[seen])
    assert float(filled[:300, 5:].mean()) < 0.25
    assert float(filled[300:, 5:].mean()) > 0.8
    hidden = torch.zeros_like(seen)  # nothing is seen: the shares are left
    anew = model.complete(Batch(x, observed=hidden), generator=make_generator(0))
    assert 0.2 < float((anew.mean(1) > 0.5).double().mean()) < 0.35


def test_conditions_of_rows_hold_their_clusters_and_training_drops_some():
    model, batch, _ = build("drop=0.3")
    whole = model.row_conditions(batch)
    torch.manual_seed(0)
    kept = model.drop_conditions(batch)
    left = kept.cluster >= 0
    assert torch.equal(kept.cluster[left], whole.cluster[left])
    assert float(left.double().mean()) == pytest.approx(0.7, abs=0.04)
    assert not kept.vector[~left].any()
    assert torch.equal(kept.vector[left], whole.vector[left])
    z, t = 0.1 * model.to_units(batch), torch.full((len(batch),), 0.9).double()
    x0, without = (model.predict(z, t, each).x0 for each in (kept, None))
    torch.testing.assert_close(x0[~left], without[~left])
    assert ((x0 - without)[left].abs().amax(1) > 0.1).all()


def test_guidance_sharpens_the_cluster():
    model, _, _ = build()
    spread = []
    for gamma in (0.0, 1.0, 3.0):
        options = model.SamplingConfig(guidance=Guidance(gamma=gamma))
        x = model.sample(1000, options=options, generator=make_generator(0))
        spread.append(float(x.mean(1).std()))
    assert spread[0] < spread[1] < spread[2]


def test_an_exported_step_draws_the_cluster_from_a_uniform_number():
    model, _, _ = build()
    module, example, axes = model.step()
    assert [*axes] == ["z", "t", "s", "noise", "uniform"]
    assert len(example) == len(axes)
    g, n = make_generator(3), 50
    u = torch.rand(n, generator=g, dtype=torch.float64)
    z = torch.randn(n, SIDE, generator=g, dtype=torch.float64)
    for t, s in itertools.pairwise(torch.linspace(1, 0, 7).double()):
        z, _ = module(z, t.expand(n), s.expand(n), 0 * z, u)
    zero = torch.zeros(n).double()
    x = module(z, zero, zero, torch.randn(n, SIDE, generator=g, dtype=torch.float64), u)[1]
    options = model.SamplingConfig().override("sampler=ddim", "sampler.steps=6")
    assert torch.equal(x, model.sample(n, options=options, generator=make_generator(3)))


def test_a_student_draws_the_clusters_of_its_teacher():
    model, batch, _ = build()
    space = model.space
    student = Consistency(Consistency.Config(), space, {"teacher": model}).double().eval()
    torch.testing.assert_close(
        student.diffusion.clusters.centres, model.clusters.centres, rtol=0, atol=1e-6
    )
    x = student.sample(1000, generator=make_generator(0))
    light = (x.mean(1) > 0.5).double().mean()
    assert float(light) == pytest.approx(SHARES[1], abs=0.08)
    student.train()
    assert torch.isfinite(student.loss(batch)["consistency"]).all()


@pytest.mark.parametrize(
    ("settings", "rows", "given", "error"),
    [
        (("drop=0",), 100, None, UsageError),
        (("clusters=101",), 100, None, DataError),
        ((), 100, {"y": Space(kind="label", size=3, shape=(), name="y")}, UsageError),
    ],
)
def test_what_clusters_need(settings, rows, given, error):
    with pytest.raises(error):
        build(*settings, rows=rows, given=given)


def test_large_pictures_without_conditions_have_clusters_by_default():
    space = Space(
        kind="levels", shape=(1, 28, 28), size=256, rows=50_000, mean=(30.0,), scale=(80.0,)
    )
    assert DDPM.defaults(space).config.clusters > 1
    label = Space(kind="label", size=10, shape=(), name="label")
    for other in (replace(space, rows=300), replace(space, given={"label": label})):
        assert DDPM.defaults(other).config.clusters == 0
    assert isinstance(DDPM.defaults(space).config.schedule, NoiseSchedule.Config)
