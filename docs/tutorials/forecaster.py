# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A forecaster with calibrated intervals
# Three years of daily sales with a weekly and a yearly cycle and noise that grows with the level.
# An interval of 80 % should hold 80 % of what comes. That can be counted, so let us count.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.dates import DateFormatter

import monge

rng = np.random.default_rng(0)
days = np.arange(1095)
level = 100 + 20 * np.sin(2 * np.pi * days / 7) + 35 * np.sin(2 * np.pi * days / 365)
sold = (level + rng.normal(0, 0.08 * level)).round(1)
sales = pd.DataFrame({"day": pd.date_range("2022-01-01", periods=1095), "sold": sold})
past, held = sales[:-112], sales[-112:]  # the last sixteen weeks are not shown to the model

# %% [markdown]
# A linear autoregression is fitted in closed form and is the baseline; `direct_forecast` is a
# network that models whole windows of days.

# %%
runs = {
    "linear_ar": monge.fit("linear_ar", past, progress=False),
    "direct_forecast": monge.fit("direct_forecast", past, budget="600steps", progress=False),
}
print(f"the network stopped getting better at step {runs['direct_forecast'].result['step']}")

# %% [markdown]
# ## Four weeks ahead
# A forecast is a thousand paths; the band is where the middle 80 % of them are on each day.

# %%
START, AHEAD = len(past), 28
figure, panels = plt.subplots(2, 1, figsize=(8.4, 5), sharex=True, layout="constrained")
for axes, (name, run) in zip(panels, runs.items()):
    future = run.forecast(AHEAD, interval=0.8, seed=0)
    after = sales["day"][START : START + AHEAD]
    axes.plot(sales["day"][START - 56 : START], sold[START - 56 : START], color="0.3", lw=1)
    axes.plot(after, sold[START : START + AHEAD], "o", ms=3.5, color="black", label="what came")
    axes.fill_between(
        after, future["sold_low"], future["sold_high"], alpha=0.3, lw=0, label="80 % interval"
    )
    axes.plot(after, future["sold"], label="median")
    axes.set(title=name, ylabel="sold")
panels[0].legend(frameon=False, ncols=3, loc="upper right", fontsize=8)
panels[1].xaxis.set_major_formatter(DateFormatter("%d %b"))
figure.savefig("forecast.png", dpi=110)

# %% [markdown]
# ## Count
# From every third day of the held-out weeks forecast 28 days, and count how many of the days that
# came lie inside intervals of 10 to 95 %. A calibrated forecaster is on the diagonal: below it,
# its intervals are too narrow, above it, too wide. The width says what calibration costs: an
# interval that always has 80 % could still be needlessly wide. Sixteen weeks are few, and
# forecasts from neighbouring days share most of what came, so that some points of difference are
# chance.

# %%
levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
origins = range(START, len(sales) - AHEAD + 1, 3)
figure, axes = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
axes.plot([0, 1], [0, 1], color="0.6", lw=1, label="calibrated")
for name, run in runs.items():
    inside, width = [], []
    for origin in origins:
        paths = run.forecast(AHEAD, sales[:origin], paths=True, n=400, seed=origin)
        paths = paths["sold"].to_numpy().reshape(400, AHEAD)
        low, high = (np.quantile(paths, 0.5 + s * levels / 2, axis=0) for s in (-1, 1))
        truth = sold[origin : origin + AHEAD]
        inside.append((low <= truth) & (truth <= high))
        width.append(high[7] - low[7])
    share = np.mean(inside, (0, 2))
    print(f"{name:16} {share[7]:.0%} inside 80 % intervals, {np.mean(width):.0f} wide on average")
    axes.plot(levels, share, "o-", ms=4, label=name)
axes.set(xlabel="interval", ylabel="share of days inside", xlim=(0, 1), ylim=(0, 1))
axes.legend(frameon=False)
figure.savefig("calibration.png", dpi=110)

# %% [markdown]
# ## Ask about several days at once
# Paths answer what no interval of a single day can: how large must a stock be to last four weeks
# with a probability of 90 %? One time in ten it does not. Adding up the upper ends of the daily
# intervals would give too much, because not all days are high at once.

# %%
paths = runs["direct_forecast"].forecast(AHEAD, paths=True, n=1000, seed=1)
sums = paths["sold"].to_numpy().reshape(1000, AHEAD).sum(1)
daily = runs["direct_forecast"].forecast(AHEAD, interval=0.8, seed=1)["sold_high"].sum()
print(f"a stock that lasts with 90 %: {np.quantile(sums, 0.9):.0f}; daily 90 % ends: {daily:.0f}")
print(f"sold in the four weeks that came: {sold[START : START + AHEAD].sum():.0f}")
