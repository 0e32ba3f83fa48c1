"""Predictors of targets: what the contract test cannot check."""

import math

import numpy as np
import pytest
import small_data
import torch
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.latent.vae import VAE
from monge.models.predict.logistic import Logistic
from monge.models.predict.mlp import MLPPredictor
from monge.models.predict.perceptron import Perceptron
from monge.nn.mlp import MLP as Network
from monge.train.budget import Budget
from monge.train.loop import fit
from monge.train.trainer import Trainer

NET = Network.Config(width=16, depth=1)


def problem(x, y, kind="label"):
    """Space and rows of a target y (N,) or (N, D) given real inputs x (N, F)."""
    x, y = torch.as_tensor(x).double(), torch.as_tensor(y)
    given = small_data.fitted(Space(kind="real", shape=x.shape[1:], name="x"), x)
    space = (
        Space(kind="label", size=int(y.max()) + 1, name="y", rows=len(y))
        if kind == "label"
        else small_data.fitted(Space(kind=kind, shape=y.shape[1:], name="y"), y)
    )
    y = y.long() if kind == "label" else y.double()
    return small_data.replace(space, given={"x": given}), Batch(y, {"x": Batch(x)})


def noisy(n=200, kind="label", features=3):
    """A target that its inputs half explain."""
    x = torch.randn(n, features, dtype=torch.float64, generator=make_generator(0))
    score = x[:, 0] + 0.5 * torch.randn(n, dtype=torch.float64, generator=make_generator(1))
    return problem(
        x,
        {
            "label": (score > 0).long() + (score > 1).long(),
            "real": score,
            "binary": (score > 0).double(),
        }[kind],
        kind,
    )


def stirred(config, space, batch):
    """A model in float64 whose weights are anything but first."""
    torch.manual_seed(0)
    model = config.build(space).double()
    model.initialise_from_data(batch)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


def trained(model, batch, train_config, steps):
    trainer = Trainer(model.double(), small_data.Rows(batch), train_config)
    for _ in fit(trainer, Budget(steps=steps), None):
        pass
    return model.eval()


def test_one_scale_makes_squared_error_the_loss():
    """-log N(y; m, s^2) = (y - m)^2 / 2 s^2 + log s + log(2 pi) / 2, s the same for all rows."""
    space, batch = noisy(kind="real")
    model = stirred(MLPPredictor.Config(net=NET, spread="constant"), space, batch)
    mean, log_scale = model.params(batch.given, len(batch)).T
    assert log_scale.std() < 1e-12
    distribution = model.head.by_group[0]
    s = (
        distribution.split(torch.stack([mean, log_scale], 1)[:, None])[2][0, 0, 0]
        * distribution.scale[0]
    )
    gap = batch.x - model.mean(batch.given)
    by_hand = gap.square() / (2 * s**2) + s.log() + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(model.loss(batch)["nll"], by_hand)
    varied = stirred(MLPPredictor.Config(net=NET, spread="input"), space, batch)
    assert varied.params(batch.given, len(batch))[:, 1].std() > 1e-3


def test_a_mixture_has_a_mode_where_its_mean_has_nothing():
    x = torch.rand(400, 1, generator=make_generator(0))
    side = torch.where(torch.rand(400, generator=make_generator(1)) < 0.3, -1.0, 1.0)
    space, batch = problem(
        x, 5 * side + 0.1 * torch.randn(400, generator=make_generator(2)), "real"
    )
    config = MLPPredictor.Config(net=NET, spread="mixture", components=2)
    train_config = small_data.replace(MLPPredictor.defaults(space).train, lr=2e-2, ema_decay=0.0)
    model = trained(config.build(space), batch, train_config, 120)
    few = {"x": batch.given["x"][:20]}
    assert (model.mode(few) - 5).abs().max() < 0.5
    assert (model.mean(few) - 2).abs().max() < 1.5
    low = model.marginals(few).quantile(0.1)
    assert (low + 5).abs().max() < 1


@pytest.mark.parametrize(
    ("read", "kind", "share"),
    [
        (load_iris, "label", 1.0),
        (load_breast_cancer, "binary", 1.0),
        (load_breast_cancer, "label", 2.0),
    ],
)
def test_logistic_regression_reaches_the_optimum(read, kind, share):
    """Scikit-learn's, on the same standardised inputs. Two classes as names have two rows of
    weights where it has their difference w: |w|^2 / 4 is the least they can sum to."""
    x, y = read(return_X_y=True)
    space, batch = problem(x, y, kind)
    config = Logistic.Config(penalty=0.7)
    model = trained(config.build(space), batch, Logistic.defaults(space).train, 300)
    z = model.trunk(batch.given).numpy()
    reference = LogisticRegression(C=share / 0.7, tol=1e-10, max_iter=5000).fit(z, y)
    mean = model.mean(batch.given)
    ours = mean if kind == "label" else torch.stack([1 - mean, mean], 1)
    np.testing.assert_allclose(ours, reference.predict_proba(z), atol=3e-4)
    own = np.log(reference.predict_proba(z)[np.arange(len(y)), y]).mean()
    least = 0.7 / (2 * len(y)) * (reference.coef_**2).sum() / share - own
    with torch.no_grad():
        reached = sum(term.mean() for term in model.loss(batch).values()).item()
    assert reached == pytest.approx(least, abs=1e-8)


def separable(margin=0.3):
    x = torch.randn(300, 2, dtype=torch.float64, generator=make_generator(0))
    score = x @ torch.tensor([1.0, -2.0], dtype=torch.float64) / 5**0.5 + 0.2
    keep = score.abs() > margin
    return problem(x[keep], (score[keep] > 0).double(), "binary")


def test_a_perceptron_makes_no_more_mistakes_than_the_margin_allows():
    space, batch = separable()
    model = trained(Perceptron.Config().build(space), batch, Perceptron.defaults(space).train, 100)
    assert model.fewest_errors == 0
    assert torch.equal(model.mode(batch.given), batch.x)
    z = model.trunk(batch.given)
    z = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)  # what the algorithm reads
    best = LogisticRegression(C=1e6, fit_intercept=False, max_iter=10000).fit(z, batch.x).coef_[0]
    plane = torch.from_numpy(best / np.linalg.norm(best))
    margin = ((2 * batch.x - 1) * (z @ plane)).min()
    assert margin > 0
    assert 0 < model.mistakes <= (z.norm(dim=1).max() / margin) ** 2
    assert model.likelihood(batch).value.mean() > math.log(0.9)


def test_a_pass_of_the_perceptron_is_the_plain_loop():
    space, batch = separable(margin=0.0)
    model = Perceptron.Config().build(space).double()
    torch.manual_seed(3)
    model.loss(batch)
    torch.manual_seed(3)
    z = torch.cat([model.trunk(batch.given), torch.ones(len(batch), 1)], 1)
    w, mistakes = torch.zeros(z.shape[1], dtype=torch.float64), 0
    for row in torch.randperm(len(batch)):
        gap = batch.x[row] - float(z[row] @ w > 0)
        w, mistakes = w + gap * z[row], mistakes + int(gap != 0)
    torch.testing.assert_close(model.current[0], w)
    assert model.mistakes == mistakes


def test_names_are_two_sided_perceptrons():
    """Two names answer as one flag does: their weights are each other's negatives."""
    space, batch = separable()
    named = small_data.replace(space, kind="label", size=2, shape=())
    flag, name = (Perceptron.Config().build(one).double() for one in (space, named))
    torch.manual_seed(0)
    flag.loss(batch)
    torch.manual_seed(0)
    name.loss(small_data.replace(batch, x=batch.x.long()))
    torch.testing.assert_close(name.current[1], -name.current[0])
    torch.testing.assert_close(name.current[1], flag.current[0])
    with pytest.raises(UsageError, match=r"label_smoothing.*predict\.logistic"):
        Perceptron.Config(label_smoothing=0.1).build(space)


def test_passes_mean_over_networks_thinned_by_dropout():
    space, batch = noisy()
    model = stirred(MLPPredictor.Config(net=small_data.replace(NET, dropout=0.5)), space, batch)
    options = model.LikelihoodConfig(passes=20)
    found = model.likelihood(batch, options, make_generator(4))
    assert found.kind == "estimate"
    assert model.likelihood(batch).kind == "exact"
    each = [
        params.detach()
        for params in model.passes(batch.given, len(batch), options, make_generator(4))
    ]
    assert len({round(float(params.sum()), 9) for params in each}) == 20
    log_p = torch.stack(
        [model.head.log_prob(params, model.flat(batch.x))[:, 0] for params in each]
    )
    torch.testing.assert_close(found.value, log_p.exp().mean(0).log())
    torch.manual_seed(9)  # there is no other randomness
    torch.testing.assert_close(
        model.likelihood(batch[:7], options, make_generator(4)).value, found.value[:7]
    )
    many = model.likelihood(batch, model.LikelihoodConfig(passes=600), make_generator(5)).value
    assert ((many - found.value).abs() < 5 * found.stderr + 1e-6).double().mean() > 0.98


def test_samples_and_means_over_passes_are_of_one_distribution():
    space, batch = noisy()
    model = stirred(MLPPredictor.Config(net=small_data.replace(NET, dropout=0.5)), space, batch)
    options, one = model.SamplingConfig(passes=8), {"x": batch.given["x"][:1]}
    mean = model.mean(one, options)[0]
    torch.testing.assert_close(mean, model.marginals(one, options).probabilities[0][0])
    assert (mean - model.mean(one)[0]).abs().max() > 1e-3
    samples = torch.cat(
        [
            model.sample(500, one, model.SamplingConfig(passes=8), make_generator(seed))
            for seed in range(40)
        ]
    )
    wide = model.mean(one, model.SamplingConfig(passes=2000))[0]
    seen = torch.bincount(samples, minlength=3) / len(samples)
    assert (seen - wide).abs().max() < 0.05
    assert model.mode(one, options) == mean.argmax()


def test_smoothing_and_weights_change_the_loss_alone():
    space, batch = noisy()
    plain = stirred(MLPPredictor.Config(net=NET), space, batch)
    log_p = plain.params(batch.given, len(batch)).log_softmax(1)
    own = log_p.gather(1, batch.x[:, None])[:, 0]
    smooth = stirred(MLPPredictor.Config(net=NET, label_smoothing=0.2), space, batch)
    torch.testing.assert_close(smooth.loss(batch)["nll"], -(0.8 * own + 0.2 * log_p.mean(1)))
    torch.testing.assert_close(smooth.likelihood(batch).value, own)
    weighed = stirred(MLPPredictor.Config(net=NET, classes=(1, 2, 0)), space, batch)
    weight = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)[batch.x]
    torch.testing.assert_close(weighed.loss(batch)["nll"], -weight * own)
    with pytest.raises(UsageError, match=r"classes.*\b2\b.*\b3\b"):
        MLPPredictor.Config(classes=(1, 2)).build(space)


def test_several_targets_share_a_trunk_and_unseen_ones_have_no_part():
    space, batch = small_data.conditioned(*small_data.make("columns"))
    batch = batch.double()
    model = stirred(MLPPredictor.Config(net=NET, tasks=(1, 0.5, 2)), space, batch)
    terms = model.loss(batch)
    assert list(terms) == ["flag", "name", "number"]
    each = model.head.log_prob(model.params(batch.given, len(batch)), batch.x)
    torch.testing.assert_close(terms["number"], -2 * each[:, 2])
    seen = torch.ones_like(batch.x, dtype=torch.bool)
    seen[:, 1] = False
    hidden = small_data.replace(batch, observed=seen)
    assert (model.loss(hidden)["name"] == 0).all()
    torch.testing.assert_close(model.likelihood(hidden).value, each[:, 0] + each[:, 2])
    with pytest.raises(UsageError, match=r"tasks.*\b2\b.*\b3\b"):
        MLPPredictor.Config(tasks=(1, 1)).build(space)


def test_codes_of_an_encoder_are_read_instead_of_its_field():
    space, batch = noisy()
    field = space.given["x"]
    torch.manual_seed(0)
    encoder = VAE.smallest_config(field).build(field).double().requires_grad_(False)
    model = MLPPredictor.Config(net=NET).build(space, {"encoder": encoder}).double()
    model.initialise_from_data(batch)
    codes = encoder.encode(Batch(batch.given["x"].x))
    ready = model.trunk_inputs(batch.given, len(batch))["x"].x
    torch.testing.assert_close(ready, (codes - codes.mean()) / codes.std())
    assert model.trunk.flat.width == codes.shape[1]
    model.train()
    assert model.training
    assert not encoder.training
    assert not any(p.requires_grad for p in model.parts.parameters())
    other = VAE.smallest_config(small_data.make("binary")[0]).build(small_data.make("binary")[0])
    with pytest.raises(DataError, match=r"encoder.*shape 5.*\bx\b.*shape 3"):
        MLPPredictor.Config(net=NET).build(space, {"encoder": other})
    with pytest.raises(UsageError, match=r"encoder\b.*predict\.mlp.*latent\.vae"):
        MLPPredictor.Config(net=NET).build(space, {"encoder": model})


def test_a_trunk_starts_where_another_ended_and_the_head_is_new():
    space, batch = noisy()
    source = stirred(MLPPredictor.Config(net=NET), space, batch)
    other, _ = noisy(kind="real")
    model = MLPPredictor.Config(net=NET).build(other, {"start": source}).double()
    for ours, theirs in zip(model.trunk.parameters(), source.trunk.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert model.out.out_features == 2
    assert not len(model.parts)
    wide = MLPPredictor.Config(net=small_data.replace(NET, width=5))
    with pytest.raises(UsageError, match=r"start: predict\.mlp"):
        wide.build(space, {"start": source})


def test_nothing_to_predict_from_is_refused():
    assert "--target" in MLPPredictor.unsupported_reason(small_data.make("real")[0])


def test_digits_are_read():
    from monge.run import run

    fitted = run.fit("predict.mlp", "digits", budget="150steps")
    found = fitted.evaluate()
    assert found["accuracy"].value > 0.93
    assert "energy_distance" not in found


@pytest.mark.parametrize("kind", ["label", "real"])
def test_networks_side_by_side_are_averaged(kind):
    """Each is a predictor of its own, and log p is that of the mean of their densities."""
    space, batch = noisy(60, kind)
    whole = stirred(MLPPredictor.Config(net=NET, members=3), space, batch)
    params = whole.params(batch.given, 60)
    alone, log_p, means = MLPPredictor.Config(net=NET).build(space).double().eval(), [], []
    for k, own in enumerate(params):
        state = {
            name: value if name in ("scales.places",) or value.shape[:1] != (3,) else value[k].mT
            for name, value in whole.state_dict().items()
        }
        shapes = alone.state_dict()
        alone.load_state_dict({name: state[name].reshape(shapes[name].shape) for name in shapes})
        torch.testing.assert_close(alone.params(batch.given, 60), own)
        log_p.append(alone.likelihood(batch).value)
        means.append(alone.mean(batch.given))
    found = whole.likelihood(batch)
    assert found.kind == "exact"
    torch.testing.assert_close(found.value, torch.stack(log_p).logsumexp(0) - math.log(3))
    torch.testing.assert_close(whole.mean(batch.given), torch.stack(means).mean(0))
    torch.testing.assert_close(whole.loss(batch)["nll"], -torch.stack(log_p).mean(0))
    assert params.std(0).amin() > 1e-6
    passes = whole.passes(batch.given, 60, whole.SamplingConfig(passes=4))
    assert len(passes) == 12


def test_samples_come_from_every_network():
    space, batch = noisy(60, "real")
    model = MLPPredictor.Config(net=NET, members=3).build(space).eval()
    with torch.no_grad():
        model.out.bias[:, 0, 0] += torch.tensor([-50.0, 0.0, 50.0])
    x = model.sample(900, {"x": batch.given["x"][:1]}, generator=make_generator(0))
    for centre in (-50, 0, 50):
        share = ((x / space.scale[0] - centre).abs() < 20).double().mean().item()
        assert share == pytest.approx(1 / 3, abs=0.06)  # four standard errors


def test_small_tables_have_several_networks_by_default():
    few, many = (small_data.replace(noisy(60)[0], rows=rows) for rows in (500, 5000))
    assert MLPPredictor.defaults(few).config.members > 1
    assert MLPPredictor.defaults(many).config.members == 1
