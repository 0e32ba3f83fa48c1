# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # One density, five families
# Eight Gaussians on a circle: a density that is known, so that every model can be compared with
# the truth, and with holes between its modes, which smooth networks find hard. Five models, one of
# each family, with ten to twenty seconds of one core each.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import monge

VARIANCE = 1 / 8  # of each Gaussian
MODELS = {
    "autoregressive.made": ("600steps", "one coordinate, then the other"),
    "flow.coupling": ("400steps", "an invertible map of noise"),
    "latent.vae": ("800steps", "a decoder of codes"),
    "diffusion.ddpm": ("800steps", "noise, removed step by step"),
    "adversarial.wgan": ("250steps", "a generator against a critic"),
}
runs = {
    name: monge.fit(name, "eight_gaussians", budget=budget, progress=False)
    for name, (budget, _) in MODELS.items()
}


def squares(x):
    """Squared distances of rows (N, 2) from the eight modes, in standard deviations."""
    angles = 2 * np.pi * np.arange(8) / 8
    modes = np.sqrt(8) * np.stack([np.cos(angles), np.sin(angles)], 1)
    return ((x[:, None] - modes) ** 2).sum(-1) / VARIANCE


def truth(x):
    """log p of rows (N, 2)."""
    return logsumexp(-squares(x) / 2, axis=1) - np.log(8 * 2 * np.pi * VARIANCE)


# %% [markdown]
# ## Compare with the truth
# The mean over test rows of log p less the log-likelihood of the model is the Kullback-Leibler
# divergence from the truth to the model, at least 0 but for the noise of the rows; where the
# likelihood is a bound it is at most that. A GAN has no likelihood and is judged by samples alone:
# how many lie within two standard deviations of a mode, which 86.5 % of a Gaussian do, and whether
# some mode has much less than its eighth.

# %%
rows = monge.open("eight_gaussians").view().split("test").whole().x.numpy()
for name, run in runs.items():
    line = f"{name:20}"
    if isinstance(run.model, monge.HasLikelihood):
        found = run.log_likelihood()
        away = truth(rows) - found.value
        error = away.std() / len(away) ** 0.5
        line += f" KL {away.mean():6.3f} ± {error:.3f} nats ({found.kind})"
    away = squares(run.sample(20_000, seed=1))
    near, share = (away.min(1) < 4).mean(), np.bincount(away.argmin(1), minlength=8) / len(away)
    print(f"{line:52} {near:.1%} near a mode, the rarest has {share.min():.1%}")

# %% [markdown]
# ## Look at it
# Above, 50 000 samples of each; below, the density that the model states at each point, where it
# has one. What lies between the modes is what differs. A generator maps a connected region of
# noise, and leaves bridges from mode to mode that are narrower than the data; a flow does so too,
# but pays for every bridge in likelihood and makes it thin. After few steps the autoregressive
# model has not separated all modes, and the VAE blurs them into a ring: each of its codes gives a
# Gaussian, and it does not tell enough of them apart.

# %%
POINTS, REACH = 80, 4.2
ticks = np.linspace(-REACH, REACH, POINTS, dtype="float32")
grid = np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)
HIGHEST = 0.16  # the density at a mode
SHOWN = {"origin": "lower", "vmin": 0, "vmax": HIGHEST, "cmap": "magma"}


def draw(axes, x):
    reach = [(-REACH, REACH)] * 2
    axes.hist2d(*x.T, bins=POINTS, range=reach, density=True, vmax=HIGHEST, cmap="magma")


figure, panels = plt.subplots(
    2, 1 + len(runs), figsize=(12, 4.4), layout="constrained", subplot_kw={"aspect": "equal"}
)
for axes in panels.flat:
    axes.set(xticks=[], yticks=[])
train = monge.open("eight_gaussians").view().split("train").whole().x.numpy()
draw(panels[0, 0], train)
panels[0, 0].set(title="data", ylabel="samples")
panels[1, 0].imshow(np.exp(truth(grid)).reshape(POINTS, POINTS), **SHOWN)
panels[1, 0].set(ylabel="density")
for (above, below), (name, run) in zip(panels.T[1:], runs.items()):
    draw(above, run.sample(50_000, seed=0))
    above.set_title(f"{name.partition('.')[2]}\n{MODELS[name][1]}", fontsize=8)
    if isinstance(run.model, monge.HasLikelihood):
        density = np.exp(run.log_likelihood(grid).value)
        below.imshow(density.reshape(POINTS, POINTS), **SHOWN)
    else:
        below.axis("off")
figure.savefig("eight_gaussians.png", dpi=110)
