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


def accuracy(data: str, folder: str, budget: str, *settings: str) -> tuple[float, float]:
    """Of a classifier on test rows, with its standard error."""
    run = monge.fit("predict.mlp", data, *settings, budget=budget, out=folder)
    found = run.evaluate()["accuracy"]
    return found.value, found.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="mnist+binarise")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 300, 1000, 3000])
    parser.add_argument("--model", default="vae", help="model that makes the codes")
    parser.add_argument("--encoder", help="existing run that makes them")
    parser.add_argument("--budget", default="60s", help="budget of that fit")
    parser.add_argument("--each", default="12s", help="budget of each classifier")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        codes = options.encoder or str(
            monge.fit(
                options.model, options.data, budget=options.budget, out=f"{folder}/codes"
            ).folder
        )
        print(f"{'labels':>8}{'pixels':>10}{'±':>8}{'codes':>10}{'±':>8}")
        for count in options.labels:
            labels = f"data.labels={count}"
            pixels = accuracy(options.data, f"{folder}/pixels-{count}", options.each, labels)
            latent = accuracy(
                options.data, f"{folder}/latent-{count}", options.each, labels, f"encoder={codes}"
            )
            print(
                f"{count:8}{pixels[0]:10.4f}{pixels[1]:8.4f}{latent[0]:10.4f}{latent[1]:8.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
