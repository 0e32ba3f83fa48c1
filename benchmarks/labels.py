"""Few labels: a classifier on the codes of a VAE that saw every row, beside the same on pixels.

The VAE is fitted to all training rows without labels. Then, for each number of labels, the same
multilayer perceptron is fitted to that many labelled rows: once on their pixels, once on the means
of their codes (M1 of Kingma et al. 2014). Printed is the accuracy of both on the test rows.

    MONGE_DATA=path python -m benchmarks.labels                         # three minutes
    MONGE_DATA=path python -m benchmarks.labels --labels 1000 --budget 4m
    python -m benchmarks.labels --data digits --encoder vae-digits      # a run that is there
"""

from __future__ import annotations

import argparse
import tempfile

import monge


def accuracy(data: str, folder: str, budget: str, *words: str) -> tuple[float, float]:
    """Of a classifier on test rows, with its standard error."""
    run = monge.fit("predict.mlp", data, *words, budget=budget, out=folder)
    found = run.evaluate()["accuracy"]
    return found.value, found.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist+binarise")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 300, 1000, 3000])
    parser.add_argument("--model", default="vae", help="what makes the codes")
    parser.add_argument("--encoder", help="a run that makes them, instead of a fit")
    parser.add_argument("--budget", default="60s", help="of the fit that makes codes")
    parser.add_argument("--each", default="12s", help="of each classifier at most")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        codes = words.encoder or str(
            monge.fit(words.model, words.data, budget=words.budget, out=f"{place}/codes").folder
        )
        print(f"{'labels':>8}{'pixels':>10}{'±':>8}{'codes':>10}{'±':>8}")
        for count in words.labels:
            labels = f"data.labels={count}"
            pixels = accuracy(words.data, f"{place}/pixels-{count}", words.each, labels)
            latent = accuracy(
                words.data, f"{place}/latent-{count}", words.each, labels, f"encoder={codes}"
            )
            print(
                f"{count:8}{pixels[0]:10.4f}{pixels[1]:8.4f}{latent[0]:10.4f}{latent[1]:8.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
