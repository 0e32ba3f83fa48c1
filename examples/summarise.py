"""Summaries of short reports by a transformer, evaluated by ROUGE-L (K22).

Reports are made here: three sentences about a city, its weather and its traffic, in any order,
with filler around them. The summary keeps the city, the weather and the traffic.

    python -m examples.summarise [--budget 60s]
"""

from __future__ import annotations

import argparse
import random

import monge
from monge.evaluate.text import rouge
from monge.run.text import translate

CITIES = ("Bern", "Lyon", "Turin", "Graz", "Ghent", "Porto")
SKIES = {
    "rain": "it has been raining since the morning",
    "sun": "the sun is out and it is warm",
    "snow": "snow lies on the roofs",
    "fog": "nobody sees further than ten metres",
}
ROADS = {
    "jams": "cars stand still on every road",
    "calm": "the streets are almost empty",
    "works": "the bridge is being repaired",
}
FILLERS = ("as everyone knows", "according to our reporter", "to tell the truth", "once again")


def report(rng: random.Random) -> tuple[str, str]:
    """A report and its summary."""
    city, sky, road = rng.choice(CITIES), rng.choice([*SKIES]), rng.choice([*ROADS])
    parts = [
        f"we are in {city} today",
        f"{rng.choice(FILLERS)} {SKIES[sky]}",
        f"{ROADS[road]} {rng.choice(FILLERS)}",
    ]
    rng.shuffle(parts)
    return " . ".join(parts) + " .", f"{city} : {sky} , {road}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="60s")
    budget = parser.parse_args().budget
    rng = random.Random(0)
    pairs = [report(rng) for _ in range(2000)]
    held, known = pairs[:200], pairs[200:]
    run = monge.fit(
        "transformer",
        tuple(map(list, zip(*known, strict=True))),
        "data.tokens=words",
        "train.warmup=100",
        "train.schedule=constant",
        budget=budget,
    )
    found = translate(run, [text for text, _ in held])
    scores = rouge(found, [summary for _, summary in held])
    print(f"{held[0][0]}\n  -> {found[0]}   (truth: {held[0][1]})")
    for name, score in scores.items():
        print(f"{name} {score.value:.1f} ± {score.stderr:.1f} % on {len(held)} reports")


if __name__ == "__main__":
    main()
