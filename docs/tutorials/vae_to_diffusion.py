# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # From VAE to diffusion on digits
# Four models of the same pictures with the same budget: what each gets right.

# %%
import matplotlib.pyplot as plt

import monge

BUDGET = "20s"
NAMES = ["baseline.independent", "latent.vae", "latent.hvae", "diffusion.ddpm"]
runs = {name: monge.fit(name, "digits", budget=BUDGET, progress=False) for name in NAMES}

# %% [markdown]
# All are log-likelihoods of the same rows in bits per dimension; those of latent-variable and
# diffusion models are bounds, so the truth is at least as good.

# %%
for name, run in runs.items():
    found = run.log_likelihood()
    print(f"{name:22} {found.bits_per_dim:.2f} bits/dim ({found.kind})")

# %%
figure, axes = plt.subplots(len(runs), 10, figsize=(8, 0.9 * len(runs)))
for line, (name, run) in zip(axes, runs.items()):
    for place, image in zip(line, run.sample(10, seed=0).reshape(-1, 8, 8)):
        place.imshow(image, cmap="gray")
        place.axis("off")
    line[0].set_title(name, loc="left", fontsize=8)
figure.savefig("families.png", dpi=120)

# %% [markdown]
# A code of the VAE changes smoothly; a diffusion model is told which digit to make.

# %%
codes = runs["latent.vae"].encode()
path = codes[:1] + (codes[1:2] - codes[:1]) * [[t / 9] for t in range(10)]
between = runs["latent.vae"].decode(path.astype("float32"))
labelled = monge.fit("ddpm", "digits", given=["label"], budget=BUDGET, progress=False)
threes = labelled.sample(10, {"label": 3}, gamma=3, sampler="dpm", steps=10, seed=0)
print(between.shape, threes.shape)
