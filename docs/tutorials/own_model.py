# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # Write your own model
# A mixture of Gaussians with learned weights, in one file; then it is fitted, scored, compared and
# examined like every other.

# %%
from pathlib import Path

import monge

Path("blobs.py").write_text('''"""A mixture of Gaussians, fitted by gradients"""

from typing import Annotated

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from monge import Batch, CanSample, HasLikelihood, Likelihood, Model, Range


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
        return {"nll": -self.mixture.log_prob(batch.x.flatten(1)).mean()}

    def likelihood(self, batch, options=None, generator=None):
        x = batch.x if isinstance(batch, Batch) else batch
        return Likelihood(self.mixture.log_prob(x.flatten(1)), "exact")

    @torch.no_grad()
    def sample(self, n, given=None, options=None, generator=None):
        weights = self.logits.softmax(0)
        which = torch.multinomial(weights, n, True, generator=generator)
        noise = torch.randn(n, self.space.dims, generator=generator)
        x = self.means[which] + self.log_scales[which].exp() * noise
        return x.reshape(n, *self.space.shape)

    @classmethod
    def smallest_config(cls, space):
        return cls.Config(parts=2)
''')

# %%
run = monge.fit("blobs.py", "moons", "train.lr=0.05", parts=32, budget="15s", progress=False)
gaussian = monge.fit("gaussian", "moons", progress=False)
print("blobs   ", run.log_likelihood().mean.value)
print("gaussian", gaussian.log_likelihood().mean.value)

# %%
import matplotlib.pyplot as plt

x = run.sample(2000, seed=0)
plt.figure(figsize=(4, 3))
plt.plot(x[:, 0], x[:, 1], ",", color="black")
plt.savefig("blobs.png", dpi=120)
