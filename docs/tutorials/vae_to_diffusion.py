# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # From VAE to diffusion on digits
# Three models of the same handwritten digits (8 x 8 pixels): one that knows nothing of shapes, one
# that decodes a code at once, and one that starts from noise and removes it step by step. The last
# is told the label of each digit, so that it can be asked for one later.

# %%
import matplotlib.pyplot as plt
import numpy as np

import monge

pixels = monge.fit("independent", "digits", progress=False)
vae = monge.fit("vae", "digits", budget="800steps", progress=False)
diffusion = monge.fit("ddpm", "digits", given=["label"], budget="900steps", progress=False)

# %% [markdown]
# ## What a pixel costs
# Log-likelihoods of the same test digits in bits per pixel, lower is better: a code for digits
# that uses the model would need so many. Where it is a bound, the truth is at least as good. To
# know the label is worth 0.05 bits a pixel at most, as there are ten: log2(10) / 64.

# %%
runs = {"every pixel by itself": pixels, "VAE": vae, "diffusion, given the label": diffusion}
for name, run in runs.items():
    found = run.log_likelihood()
    print(f"{name:28} {found.bits_per_dim:.2f} bits a pixel ({found.kind})")

# %% [markdown]
# ## What they make
# Above, real digits. All are drawn smoothly, since 8 x 8 squares are hard to read.


# %%
def show(rows, file):
    """Rows of pictures with what each row is."""
    figure, axes = plt.subplots(len(rows), 1, figsize=(8, 0.85 * len(rows)), layout="constrained")
    for line, (title, images) in zip(axes, rows.items()):
        images = np.pad(np.reshape(images, (-1, 8, 8)), ((0, 0), (1, 1), (1, 1)))
        line.imshow(np.hstack(images), cmap="gray", interpolation="lanczos", vmin=0, vmax=16)
        line.set_title(title, loc="left", fontsize=9, pad=2)
        line.axis("off")
    figure.savefig(file, dpi=110)


real = monge.open("digits").view().split("test").whole().x.numpy()
labels = {"label": [k % 10 for k in range(14)]}
made = {"every pixel by itself": pixels.sample(14, seed=0), "VAE": vae.sample(14, seed=0)}
made["diffusion, given the labels 0 to 9 and on"] = diffusion.sample(14, labels, seed=0)
show({"real digits": real[:14], **made}, "families.png")

# %% [markdown]
# ## Between two digits
# The code of a VAE changes smoothly: on the line from the code of one picture to that of another,
# every point decodes to a picture. A mixture of the pixels of both is two digits at once instead.

# %%
weights = np.linspace(0, 1, 14, dtype="float32")[:, None]
one, two = vae.encode()[[0, 10]]
first, second = real[[0, 10]].reshape(2, 64)
paths = {
    "codes between those of two test digits": vae.decode(one + (two - one) * weights),
    "pixels between those of the same": first + (second - first) * weights,
}
show(paths, "between.png")

# %% [markdown]
# ## Told what to make
# `gamma` is how strongly a diffusion model is guided by what it is told: 1 samples from the model,
# and 3 gives typical threes and fewer kinds of them, no longer by the model's distribution. The
# solver `dpm` needs ten steps where the walk back through the noise takes many more.

# %%
asked = {
    f"threes, gamma={gamma}": diffusion.sample(
        14, {"label": 3}, gamma=gamma, sampler="dpm", steps=10, seed=0
    )
    for gamma in (1, 3)
}
show(asked, "asked.png")
