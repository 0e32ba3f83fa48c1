"""Export the network step of a model for other programs (torch.export or ONNX)

The suffix of -o decides: .pt2 is read by torch.export.load, .onnx by any ONNX runtime.
"""

from __future__ import annotations

from pathlib import Path

import click

from ._output import Console, Output, common


@click.command("export")
@click.argument("run")
@click.option(
    "-o",
    "--out",
    type=Output(".pt2", ".onnx"),
    required=True,
    help="File: .pt2, or .onnx with the extra monge[onnx].",
)
@common
def command(console: Console, run: str, out: Path) -> None:
    """Write the step of RUN's model, and print its inputs.

    For a model with a decoder the step is (z, *given) -> x, in data units; for diffusion it is
    (z, t, s, noise, *given) -> (z at s < t, x): z and noise are (rows, D), t and s (rows,),
    conditions come in the order of the run, a text followed by its length. This loop computes the
    same samples as `monge sample RUN sampler=ddim steps=50`:

    \b
      step = torch.export.load("net.pt2").module()
      g = torch.Generator().manual_seed(0)
      z = torch.randn(n, D, generator=g)
      for t, s in itertools.pairwise(torch.linspace(1, 0, 51)):
          z, _ = step(z, t.expand(n), s.expand(n), 0 * z)
      _, x = step(z, torch.zeros(n), torch.zeros(n), torch.randn(n, D, generator=g))
    """
    from ..run import run as runs

    result = runs.load(run).export(out)
    lines = [
        f"  {name}: {' x '.join(map(str, shape))}" for name, shape in result["inputs"].items()
    ]
    console.result({"run": run, **result}, "\n".join([result["file"], *lines]))
