# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # Write your own model
# A mixture of Gaussians with learned weights, in one file. Three methods are all it takes: what
# to minimise, how probable a row is, and how to sample. Then the model is fitted, scored,
# compared and examined like every other.

# %%
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import monge

Path("blobs.py").write_text('''"""A mixture of Gaussians, fitted by gradients"""

from typing import Annotated

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from monge import CanSample, Defaults, HasLikelihood, Likelihood, Model, Range, TrainConfig


class Blobs(Model, CanSample, HasLikelihood):
    """p(x) = sum_k w_k N(x; m_k, s_k^2)."""

    events = {"real"}

    class Config(Model.Config):
        parts: Annotated[int, Range(1)] = 16
        """Components of the mixture."""

    def __init__(self, config, space):
        super().__init__(config, space)
        shape = (config.parts, space.dims)
        self.logits = torch.nn.Parameter(torch.zeros(config.parts))
        self.means = torch.nn.Parameter(torch.randn(shape))
        self.log_scales = torch.nn.Parameter(torch.zeros(shape))

    @property
    def mixture(self):
        parts = Independent(Normal(self.means, self.log_scales.exp()), 1)
        return MixtureSameFamily(Categorical(logits=self.logits), parts)

    def loss(self, batch):
        return {"nll": -self.mixture.log_prob(batch.x.flatten(1))}

    def likelihood(self, batch, options=None, generator=None):
        return Likelihood(self.mixture.log_prob(batch.x.flatten(1)), "exact")

    @torch.no_grad()
    def sample(self, n, given=None, options=None, generator=None):
        which = torch.multinomial(self.logits.softmax(0), n, True, generator=generator)
        noise = torch.randn(n, self.space.dims, generator=generator)
        x = self.means[which] + self.log_scales[which].exp() * noise
        return x.reshape(n, *self.space.shape)

    @classmethod
    def defaults(cls, space):
        return Defaults(cls.Config(), TrainConfig(lr=0.05))

    @classmethod
    def smallest_config(cls, space):
        return cls.Config(parts=2)
''')

# %% [markdown]
# ## Fit it
# `parts` is now a setting like those of every model, with its range checked. The command line
# takes the file as well: `monge fit ./blobs.py moons parts=8`.

# %%
runs = {
    parts: monge.fit(
        "blobs.py", "moons", parts=parts, budget="600steps", name=f"blobs-{parts}", progress=False
    )
    for parts in (2, 8, 32)
}
gaussian = monge.fit("gaussian", "moons", progress=False)
flow = monge.fit("coupling", "moons", budget="600steps", progress=False)

# %% [markdown]
# ## Compare it
# All on the same test rows, in nats of the same units.

# %%
named = {"gaussian": gaussian, **{f"blobs, {k} parts": run for k, run in runs.items()}}
for name, run in (named | {"coupling flow": flow}).items():
    mean = run.log_likelihood().mean
    print(f"{name:16} {mean.value:6.3f} ± {mean.stderr:.3f} nats ({mean.kind})")

# %% [markdown]
# The density of each model, and 500 samples of it.

# %%
across, up = np.linspace(-2, 3, 160, dtype="float32"), np.linspace(-1.5, 2, 120, dtype="float32")
grid = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
figure, panels = plt.subplots(
    1, 4, figsize=(11, 2.4), sharex=True, sharey=True, layout="constrained"
)
for axes, (name, run) in zip(panels, named.items()):
    density = np.exp(run.log_likelihood(grid).value).reshape(120, 160)
    axes.contourf(
        across, up, density, levels=np.linspace(0.03, 0.9, 12), cmap="Blues", extend="max"
    )
    axes.plot(*run.sample(500, seed=0).T, ".", ms=2, color="black", alpha=0.6)
    axes.set(title=name, xlim=(-2, 3), ylim=(-1.5, 2))
figure.savefig("blobs.png", dpi=110)

# %% [markdown]
# ## Examine it
# `monge verify` runs the identities of the theory that a model's abilities admit, with the
# weights of a run: that the density sums to one, that the sampler draws what it scores, and more.
# A run folder never runs code by itself, so that it must be told where the class is.

# %%
command = [sys.executable, "-m", "monge", "verify", str(runs[8].folder)]
done = subprocess.run(
    command, env=os.environ | {"MONGE_MODELS": "blobs.py"}, capture_output=True, text=True
)
print(done.stdout or done.stderr)
