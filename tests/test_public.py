"""The public interface: what `monge` lists is there, and is enough to write a model."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import monge
from monge.core import abilities

MODEL = '''"""Independent Gaussian columns, written with public names alone"""

from typing import Annotated

import torch

from monge import Batch, CanSample, HasLikelihood, Likelihood, Losses, Model, Range, Space


class Columns(Model, CanSample, HasLikelihood):
    """$x_d ~ N(m_d, s_d^2)$."""

    events = {"real"}

    class Config(Model.Config):
        tag = "model/columns-of-a-test"
        scale: Annotated[float, Range(0, open=True)] = 1.0
        """Initial standard deviation."""

    def __init__(self, config, space: Space):
        super().__init__(config, space)
        self.mean = torch.nn.Parameter(torch.zeros(space.dims))
        self.log_scale = torch.nn.Parameter(torch.full((space.dims,), config.scale).log())

    @property
    def normal(self):
        return torch.distributions.Normal(self.mean, self.log_scale.exp())

    def loss(self, batch: Batch) -> Losses:
        return {"nll": -self.normal.log_prob(batch.x.flatten(1)).sum(1).mean()}

    def likelihood(self, batch, options=None, generator=None) -> Likelihood:
        x = batch.x if isinstance(batch, Batch) else batch
        return Likelihood(self.normal.log_prob(x.flatten(1)).sum(1), "exact")

    @torch.no_grad()
    def sample(self, n, given=None, options=None, generator=None):
        noise = torch.randn(n, self.space.dims, generator=generator)
        return (self.mean + self.log_scale.exp() * noise).reshape(n, *self.space.shape)

    @classmethod
    def smallest_config(cls, space: Space):
        return cls.Config()
'''


def test_every_listed_name_is_there_and_every_ability_is_listed():
    listed = set(monge.__all__)
    assert len(listed) == len(monge.__all__)
    assert all(getattr(monge, name) is not None for name in listed)
    assert listed - {"__version__"} == set(monge.MODULE_OF)
    known = {
        name
        for name, each in vars(abilities).items()
        if isinstance(each, type) and issubclass(each, abilities.Ability)
    }
    assert known <= listed


def test_listing_the_interface_imports_no_torch():
    code = "import sys, monge; dir(monge); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_types_are_shipped():
    assert (Path(monge.__file__).parent / "py.typed").is_file()


def test_a_model_of_public_names_fits_samples_and_scores(tmp_path):
    path = tmp_path / "columns.py"
    path.write_text(MODEL)
    rows = np.random.default_rng(0).normal(3, 2, (200, 2))
    run = monge.fit(str(path), rows, "train.lr=0.1", budget="150steps", out=tmp_path / "run")
    assert np.asarray(run.sample(7)).shape == (7, 2)
    likelihoods = run.log_likelihood(rows)
    assert likelihoods.kind == "exact"
    exact = -np.log(2 * np.sqrt(2 * np.pi)) - ((rows - 3) / 2) ** 2 / 2
    assert abs(likelihoods.value.mean() - exact.sum(1).mean()) < 0.5
