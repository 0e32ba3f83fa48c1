# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A forecaster with calibrated intervals
# Two years of daily sales with a weekly and a yearly cycle. An interval of 80 % should hold 80 %
# of what comes: count.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import monge

rng = np.random.default_rng(0)
days = np.arange(730)
sold = 100 + 15 * np.sin(2 * np.pi * days / 7) + 25 * np.sin(2 * np.pi * days / 365)
sold = sold + rng.normal(0, 6, 730)
frame = pd.DataFrame({"day": pd.date_range("2022-01-01", periods=730), "sold": sold.round(1)})
frame.to_csv("sales.csv", index=False)

# %%
run = monge.fit("direct_forecast", "sales.csv", budget="20s", progress=False)
metrics = run.evaluate()
for name, metric in metrics.items():
    if "coverage" in name or "mse" in name:
        print(f"{name}: {metric.value:.2f}")

# %%
future = run.forecast(28, interval=0.8)
paths = run.forecast(28, paths=True, n=200)
print(future.head())

# %%
figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
axes.plot(range(-60, 0), sold[-60:], color="black")
axes.fill_between(range(28), future["sold_low"], future["sold_high"], alpha=0.3, linewidth=0)
axes.plot(range(28), future["sold"])
axes.set(xlabel="days from today", ylabel="sold")
figure.savefig("forecast.png", dpi=120)
