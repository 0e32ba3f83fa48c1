"""The classifier of noisy data, and its run as the guide of another run."""

import pytest
import torch

import monge
from monge.cli.main import attempt
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.space import Space
from monge.models.diffusion.noisy_classifier import NoisyClassifier
from monge.run.run import parse_condition

LINE = Space(kind="real", shape=(1,), name="x", mean=(0.0,), scale=(1.0,), rows=1000)
LABEL = Space(kind="label", size=2, name="label", rows=1000, given={"x": LINE})


def test_noise_makes_it_unsure_as_bayes_rule_requires():
    """Two normals at -1 and 1: p(1 | z) = sigmoid(2 alpha z / (alpha^2 s^2 + sigma^2))."""
    torch.manual_seed(0)
    model = NoisyClassifier.Config(widths=(1,), width=32, dropout=0.0, low=-4.0, high=4.0).build(
        LABEL
    )
    y = torch.arange(512) % 2
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(250):
        x = (2.0 * y - 1)[:, None] + 0.5 * torch.randn(512, 1)
        loss = model.loss(Batch(y, {"x": Batch(x)}))["nll"].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    z = torch.linspace(-1.5, 1.5, 31)[:, None]
    for log_snr in (-3.0, 0.0, 3.0):
        alpha, sigma = torch.tensor([log_snr, -log_snr]).sigmoid().sqrt()
        truth = torch.sigmoid(2 * alpha * z[:, 0] / (0.25 * alpha**2 + sigma**2))
        with torch.no_grad():
            found = model.log_prob_noisy(z, torch.full((31,), log_snr), torch.ones(31)).exp()
        assert (found - truth).abs().max() < 0.12


def test_what_it_cannot_classify_is_refused():
    with pytest.raises(UsageError, match="low=3 and high=2"):
        NoisyClassifier.Config(low=3.0, high=2.0)
    refused = NoisyClassifier.unsupported_reason(Space(kind="label", size=2, given={"a": LABEL}))
    assert "real, binary, levels" in refused
    assert NoisyClassifier.unsupported_reason(Space(kind="label", size=2)).endswith(
        "--target and --given"
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A model of digits without conditions, and a classifier of noisy digits."""
    place = tmp_path_factory.mktemp("runs")
    diffusion_run = monge.fit(
        "ddpm",
        "digits",
        "net=mlp",
        "width=32",
        "depth=1",
        budget="4steps",
        out=place / "diffusion",
    )
    classifier = monge.fit(
        "diffusion.noisy_classifier",
        "digits",
        "widths=4",
        "width=16",
        budget="4steps",
        out=place / "classifier",
    )
    return diffusion_run, classifier


def test_a_run_guides_another(runs, tmp_path):
    diffusion_run, classifier = runs
    guide = f"guide={classifier.folder}"
    given = {"label": parse_condition(diffusion_run, "label", "7", (guide,))}
    assert given["label"].x.tolist() == [7]
    guided = diffusion_run.sample_tensor(3, given, guide, "gamma=50", "steps=4")
    assert guided.shape == (3, 1, 8, 8)
    assert not torch.equal(guided, diffusion_run.sample_tensor(3, None, "steps=4"))
    out = tmp_path / "guided.png"
    assert (
        attempt(
            [
                "sample",
                str(diffusion_run.folder),
                guide,
                "--given",
                "label=7",
                "-n",
                "2",
                "steps=3",
                "-o",
                str(out),
            ]
        )
        == 0
    )
    assert out.exists()


def test_a_guide_that_does_not_fit_is_refused(runs, tmp_path):
    diffusion_run, classifier = runs
    with pytest.raises(DataError, match="'label'"):
        diffusion_run.sample_tensor(2, None, f"guide={classifier.folder}", "steps=2")
    with pytest.raises(UsageError, match=r"guide=.*diffusion\.noisy_classifier"):
        diffusion_run.sample_tensor(2, None, f"guide={diffusion_run.folder}", "steps=2")
    moons = monge.fit(
        "ddpm", "moons", "net=mlp", "width=8", "depth=1", budget="2steps", out=tmp_path / "moons"
    )
    with pytest.raises(DataError, match="17 levels of shape 1x8x8"):
        moons.sample_tensor(
            2, {"label": Batch(torch.tensor([1]))}, f"guide={classifier.folder}", "steps=2"
        )
    narrow = monge.fit(
        "diffusion.noisy_classifier",
        "digits",
        "widths=4",
        "width=16",
        "low=-4",
        budget="2steps",
        out=tmp_path / "narrow",
    )
    with pytest.raises(UsageError, match=r"-4 to 14\b.*guide=.*-9 to 7\.8"):
        diffusion_run.sample_tensor(
            2, {"label": Batch(torch.tensor([1]))}, f"guide={narrow.folder}", "steps=2"
        )
    with pytest.raises(DataError, match="'label'"):
        parse_condition(diffusion_run, "label", "7", ())
