# ---
# jupyter:
#   jupytext: {formats: "py:percent"}
# ---
# %% [markdown]
# # A translator
# A tiny language: numbers in words, German to English. The model never sees a third of them.

# %%
import monge

ONES = ["", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
UNITS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
DECADES = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
numbers = [(t, o) for t in range(8) for o in range(1, 10)]
german = [f"{ONES[o]} und {TENS[t]}" for t, o in numbers]
english = [f"{DECADES[t]} {UNITS[o]}" for t, o in numbers]
seen = [i for i in range(len(numbers)) if i % 3]
pairs = ([german[i] for i in seen] * 20, [english[i] for i in seen] * 20)

# %%
run = monge.fit("transformer", pairs, data={"tokens": "words"}, budget="40s", progress=False)

# %%
hidden = [i for i in range(len(numbers)) if i % 3 == 0]
found = run.translate([german[i] for i in hidden])
right = sum(text == english[i] for text, i in zip(found, hidden))
print(f"{right} of {len(hidden)} numbers that were never seen are right")
for text, i in list(zip(found, hidden))[:5]:
    print(f"{german[i]:24} {text}")
