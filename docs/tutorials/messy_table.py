# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A messy table, end to end
# Eight hundred flats: an id, numbers, names, a flag, dates. Some rents and cities were never
# typed in, and one rent was typed with a zero too many. We make the table here, so that we know
# what is missing and can check what a model says of it; a csv file of your own is read the same
# way.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import monge

rng = np.random.default_rng(0)
n = 800
city = rng.choice(["Graz", "Linz", "Wien"], n, p=[0.3, 0.2, 0.5])
size = rng.gamma(6, np.where(city == "Wien", 11, 15))
rent = 150 + size * np.where(city == "Wien", 17, 11) + rng.normal(0, 70, n)
flats = pd.DataFrame(
    {
        "id": np.arange(n),
        "size": size.round(1),
        "city": city,
        "rent": rent.round(),
        "balcony": rng.random(n) < size / 150,
        "built": pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 26000, n), "D"),
    }
)
flats.loc[7, "rent"] *= 10
flats.loc[rng.random(n) < 0.15, "rent"] = np.nan
flats.loc[rng.random(n) < 0.10, "city"] = None
print(flats.head(8).to_string())

# %% [markdown]
# ## Describe it
# How each column is read, what may go wrong with it, and the models to start with. The id is a
# key: it is not modelled, and samples get new ones.

# %%
description = monge.describe(flats)
print(description.frame.fillna("").to_string(index=False))
for recommended in description.recommended:
    print(f"{recommended.does}: {', '.join(recommended.models)}")

# %% [markdown]
# ## Find what is odd
# A tree of pairwise dependences is fitted in a moment. The rows that it finds least likely are
# worth a look: row 7 has the zero too many, the others are only rare. One such rent would stretch
# the scale of the whole column, so that we take it as unknown before we go on.

# %%
scores = monge.fit("chow_liu", flats, name="first", progress=False).score(flats)
print(flats.join(scores[["nats", "rank"]]).sort_values("rank").head(4).to_string())
flats.loc[7, "rent"] = np.nan

# %% [markdown]
# ## Fit it
# The tree again, as a baseline, and `made`, a network that learns the distribution of each column
# given others. Held-out log-likelihoods of the same rows compare them: one nat more means that a
# row is e times as probable.

# %%
tree = monge.fit("chow_liu", flats, name="flats-tree", progress=False)
run = monge.fit("made", flats, budget="1200steps", name="flats", progress=False)
for each in (tree, run):
    mean = each.log_likelihood().mean
    print(f"{each.metadata['model']:22} {mean.value:7.2f} ± {mean.stderr:.2f} nats ({mean.kind})")

# %% [markdown]
# ## Fill in what is missing
# Fifty completions of every row, each a sample given the cells that are there. Their mean is the
# best guess, and 80 % of the true rents should lie between their quantiles at 10 and 90 %. Where
# the city is missing too there are two answers, and the interval covers both.
# From so few rows in half a minute the intervals are wider than they need to be, and hold more
# than they promise.

# %%
hidden = flats["rent"].isna().to_numpy()
draws = run.complete(flats[hidden], draws=50, seed=0)["rent"].to_numpy().reshape(-1, 50)
low, guess, high = np.quantile(draws, 0.1, 1), draws.mean(1), np.quantile(draws, 0.9, 1)
inside = (low <= rent[hidden]) & (rent[hidden] <= high)
print(f"{hidden.sum()} empty rents, {inside.mean():.0%} of the true ones inside 80 % intervals")
print(f"error of the guess {np.abs(guess - rent[hidden]).mean():.0f}, of the mean rent", end=" ")
print(f"{np.abs(flats['rent'].mean() - rent[hidden]).mean():.0f}")

figure, axes = plt.subplots(figsize=(5.4, 4.6), layout="constrained")
unknown = flats["city"].isna().to_numpy()[hidden]
for part, label in ((~unknown, "city known"), (unknown, "city missing, too")):
    reach = [guess[part] - low[part], high[part] - guess[part]]
    axes.errorbar(rent[hidden][part], guess[part], reach, fmt="o", ms=3, lw=0.8, label=label)
axes.axline((1000, 1000), slope=1, color="0.6", lw=1, zorder=0)
axes.set(xlabel="true rent, which the model never saw", ylabel="filled in, with 80 % interval")
axes.legend(frameon=False)
figure.savefig("filled_in.png", dpi=110)

# %% [markdown]
# ## Sample new flats
# In the same form: ids that go on, names, dates, and empty cells as often as there are in the
# data.

# %%
new = run.sample(n, seed=0)
print(new.head(5).to_string())

figure, panels = plt.subplots(
    1, 2, sharex=True, sharey=True, figsize=(8.4, 3.8), layout="constrained"
)
for axes, frame, title in zip(panels, (flats, new), ("real", "sampled")):
    for name, part in frame.groupby("city"):
        axes.plot(part["size"], part["rent"], "o", ms=3, alpha=0.6, mew=0, label=name)
    axes.set(title=title, xlabel="size in m²")
panels[0].set_ylabel("rent")
panels[0].legend(frameon=False)
figure.savefig("flats.png", dpi=110)

# %% [markdown]
# ## Report
# One HTML page with every metric and figure, which needs no network: samples beside data column
# by column, what the samples give away of single rows, and how the fit went.

# %%
print(monge.write_report(run).name)
