# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A messy table, end to end
# Describe it, fit it, fill in what is missing, sample new rows, and look at both.

# %%
import numpy as np
import pandas as pd

import monge

rng = np.random.default_rng(0)
n = 800
size = rng.gamma(4, 20, n)
city = rng.choice(["Graz", "Linz", "Wien"], n, p=[0.3, 0.2, 0.5])
price = size * np.where(city == "Wien", 19, 12) + rng.normal(0, 80, n)
homes = pd.DataFrame(
    {
        "id": np.arange(n),
        "size": size.round(1),
        "city": city,
        "price": price.round(-1),
        "balcony": rng.random(n) < 0.4,
        "built": pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 26000, n), "D"),
    }
)
homes.loc[rng.random(n) < 0.15, "price"] = np.nan
homes.loc[rng.random(n) < 0.10, "city"] = None

# %%
description = monge.describe(homes)
print(description.frame)
print(description.recommended[0])

# %%
run = monge.fit("made", homes, budget="20s", name="homes", progress=False)
print(run.log_likelihood().mean)

# %% [markdown]
# Empty prices, filled in by their mean; ten samples of each say how sure that is.

# %%
full = run.complete(homes, by="mean")
draws = run.complete(homes, draws=10)["price"].to_numpy().reshape(-1, n)
hidden = homes["price"].isna().to_numpy()
print(f"spread of a price that was empty: {draws.std(0)[hidden].mean():.0f}")

# %%
new = run.sample(n, seed=0)

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(9, 4))
for axes, frame, title in ((left, homes, "real"), (right, new, "sampled")):
    for name, part in frame.groupby("city"):
        axes.plot(part["size"], part["price"], ".", ms=3, label=name)
    axes.set(title=title, xlabel="size")
left.set_ylabel("price")
left.legend()
figure.savefig("homes.png", dpi=120)

# %%
print(monge.write_report(run))
