# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A translator
# Numbers in words from German, which says "zwei hundert drei und sechzig", two hundred three and
# sixty, to English. The rule is simple, and few examples should do: the model sees one number in
# seven, and must translate the others.

# %%
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np

import monge

ONES = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
UNITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
DECADES = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

numbers = [(h, t, o) for h in range(9) for t in range(8) for o in range(9)]
german = [f"{ONES[h]} hundert {ONES[o]} und {TENS[t]}" for h, t, o in numbers]
english = [f"{UNITS[h]} hundred {DECADES[t]} {UNITS[o]}" for h, t, o in numbers]
hidden = np.random.default_rng(0).random(len(numbers)) < 6 / 7
pairs = tuple([text for text, h in zip(texts, hidden) if not h] for texts in (german, english))
print(f"{len(pairs[0])} pairs to learn from, such as {pairs[0][0]!r}, {pairs[1][0]!r}")

# %% [markdown]
# ## Fit a transformer
# Tokens are words here; by default they are characters. Some of the pairs are held out by `fit`
# itself, to stop when it no longer gets better.

# %%
run = monge.fit("transformer", pairs, data={"tokens": "words"}, budget="800steps", progress=False)
history = run.history.dropna(subset=["held_out"])
print(history[["step", "held_out"]].tail(3).to_string(index=False))

# %% [markdown]
# ## Translate what it never saw
# `translate` searches for the most probable sentence with several beams.

# %%
found = run.translate(german)
right = np.array([text == wanted for text, wanted in zip(found, english)])
print(f"never seen: {right[hidden].sum()} of {hidden.sum()} right")
print(f"seen:       {right[~hidden].sum()} of {(~hidden).sum()} right")
for i in np.flatnonzero(hidden)[::110]:
    print(f"  {german[i]:36} {found[i]}")

# %% [markdown]
# Every square is a number: nine blocks for the hundreds, in each the tens down and the ones
# across. The dots are the examples; green squares are right, red ones are not.

# %%
figure, panels = plt.subplots(3, 3, figsize=(7.2, 6.8), layout="constrained")
for h, axes in enumerate(panels.flat):
    block = slice(72 * h, 72 * h + 72)
    axes.imshow(
        right[block].reshape(8, 9), cmap="RdYlGn", vmin=-0.3, vmax=1.3, interpolation="nearest"
    )
    rows, columns = np.nonzero(~hidden[block].reshape(8, 9))
    axes.plot(columns, rows, "o", ms=4, color="black")
    axes.set_title(f"{h + 1}21 to {h + 1}99", fontsize=9)
    axes.set_xticks(range(9), range(1, 10), fontsize=7)
    axes.set_yticks(range(8), range(20, 100, 10), fontsize=7)
    axes.set_xticks(np.arange(8) + 0.5, minor=True)
    axes.set_yticks(np.arange(7) + 0.5, minor=True)
    axes.grid(which="minor", color="white", lw=1)
    axes.tick_params(which="both", length=0)
figure.savefig("numbers.png", dpi=110)

# %% [markdown]
# ## Where it looks
# Ones and tens change places between the two languages, and the attention does as well: the row
# of each English word shows which German words it was made from. A run is a folder, so that the
# command line can ask the model that this script has fitted.

# %%
command = [sys.executable, "-m", "monge", "translate", str(run.folder)]
command += ["zwei hundert drei und sechzig", "--attention", "attention.png"]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
