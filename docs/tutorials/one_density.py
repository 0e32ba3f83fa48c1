# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # One density, five families
# The checkerboard has a known density, log 2^-5 on its dark squares, so that every model can be
# compared with the truth.

# %%
import matplotlib.pyplot as plt

import monge

NAMES = [
    "autoregressive.made",
    "flow.coupling",
    "latent.vae",
    "diffusion.ddpm",
    "adversarial.wgan",
]
runs = {name: monge.fit(name, "checkerboard", budget="15s", progress=False) for name in NAMES}

# %%
for name, run in runs.items():
    metrics = run.evaluate()
    score = metrics.get("log_likelihood")
    nats = f"{score.value:6.2f} nats ({score.kind})" if score else "no likelihood"
    print(f"{name:22} {nats:24} energy distance {metrics['energy_distance'].value:.4f}")

# %%
figure, axes = plt.subplots(1, len(runs), figsize=(12, 2.6), sharex=True, sharey=True)
for place, (name, run) in zip(axes, runs.items()):
    x = run.sample(2000, seed=0)
    place.plot(x[:, 0], x[:, 1], ",", color="black")
    place.set_title(name, fontsize=8)
figure.savefig("checkerboard.png", dpi=120)
