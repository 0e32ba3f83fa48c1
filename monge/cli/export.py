"""Export a model for other programs: torch.export, ONNX or a Hugging Face folder

The suffix of -o decides: .pt2 is read by torch.export.load, .onnx by any ONNX runtime.
"""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import UsageError
from ._output import Console, Output, common


@click.command("export")
@click.argument("run")
@click.option(
    "-o",
    "--out",
    type=Output(".pt2", ".onnx"),
    help="File: .pt2, or .onnx with the extra monge[onnx].",
)
@click.option(
    "--what",
    type=click.Choice(["step", "decode", "predict", "score"]),
    help="Function to write; by default the first of these that the model has.",
)
@click.option(
    "--to",
    type=(click.Choice(["hf"]), click.Path(path_type=Path)),
    metavar="hf DIR",
    help="Write a folder for the Hugging Face hub instead: weights, settings and a card; "
    "`monge.load(DIR)` reads it.",
)
@common
def command(
    console: Console, run: str, out: Path | None, what: str | None, to: tuple[str, Path] | None
) -> None:
    """Write a function of RUN's model, and print its inputs, for any number of rows. A file is
    kept if its outputs are the model's to 1e-5, also on other numbers of rows; .onnx has opset 18.

    decode is (z, *given) -> x, in data units; predict is (*given) -> the mean, or probabilities;
    score is (x, *given) -> log p in nats, if it is exact. For diffusion, step is
    (z, t, s, noise, *given) -> (z at s < t, x): z and noise are (rows, D), t and s (rows,),
    conditions come in the order of the run, a text followed by its length; with clusters=K a
    uniform number per row (rows,), drawn before z, stands for them. This loop computes the same
    samples as `monge sample RUN sampler=ddim steps=50`:

    \b
      step = torch.export.load("net.pt2").module()
      g = torch.Generator().manual_seed(0)
      z = torch.randn(n, D, generator=g)
      for t, s in itertools.pairwise(torch.linspace(1, 0, 51)):
          z, _ = step(z, t.expand(n), s.expand(n), 0 * z)
      _, x = step(z, torch.zeros(n), torch.zeros(n), torch.randn(n, D, generator=g))
    """
    from ..run import run as runs

    if (out is None) == (to is None) or (to and what):
        raise UsageError("expected -o FILE, or --to hf DIR alone; give one of them")
    if to is not None:
        from ..run.hub import export_to_hub

        folder = export_to_hub(runs.load(run), to[1])
        console.result({"run": run, **folder}, f"{folder['folder']}: {', '.join(folder['files'])}")
        return
    assert out is not None
    result = runs.load(run).export(out, what)
    lines = [
        f"  {name}: {' x '.join(map(str, shape))}" for name, shape in result["inputs"].items()
    ]
    head = f"{result['file']}: {result['function']}"
    if "opset" in result:
        head += f", opset {result['opset']}"
    console.result({"run": run, **result}, "\n".join([head, *lines]))
