"""Export the network of a model to torch.export or ONNX, to run without Monge."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.abilities import CanDecode, CanExport
from ..core.batch import Batch
from ..core.errors import UsageError
from ..core.files import replacing
from ..core.model import Model
from ..core.space import Space
from .storage import check_output_path

if TYPE_CHECKING:
    from .run import Run


SUFFIXES = (".pt2", ".onnx")


class Decoding(nn.Module):
    """Decoder of latent codes: (z, *given) to the event."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.names = model, tuple(model.space.given)

    def forward(self, z: Tensor, *given: Tensor) -> Tensor:
        parts = {name: Batch(x) for name, x in zip(self.names, given, strict=True)}
        return cast(CanDecode, self.model).decode(z, parts)


class Positional(nn.Module):
    """A module with positional inputs only, so that all are exported alike."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def export(run: Run, out: Path) -> dict[str, Any]:
    """Write the network of a run's model; returns its inputs, with shapes and free axes."""
    if out.suffix not in SUFFIXES:
        raise UsageError(
            f"cannot export to {out.suffix or 'a file without a suffix'}; use "
            f"{' or '.join(SUFFIXES)}"
        )
    check_output_path(out)
    if out.suffix == ".onnx":
        check_onnx(out)
    module, inputs, axes = step_of(run)
    free = {name: torch.export.Dim(name) for each in axes.values() for name in each.values()}
    shapes = tuple({axis: free[name] for axis, name in each.items()} for each in axes.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Positional(module).eval(), inputs, dynamic_shapes=(shapes,), strict=True
        )
        with replacing(out) as fresh:
            save(program, list(axes), fresh)
    inputs_description = {
        name: [axes[name].get(axis, size) for axis, size in enumerate(x.shape)]
        for name, x in zip(axes, inputs, strict=True)
    }
    return {"file": str(out), "inputs": inputs_description}


def step_of(run: Run) -> tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]:
    """The exported module, example inputs and free axes: the model's own step, or its decoder."""
    model = run.model
    if isinstance(model, CanExport) or not isinstance(model, CanDecode):
        return run.require(CanExport).step()
    given = model.space.given
    spaces = {"z": model.latent, **given}
    return (
        Decoding(model),
        tuple(example(part, model) for part in spaces.values()),
        {name: {0: "rows"} for name in spaces},
    )


def example(space: Space, model: Model) -> Tensor:
    """Two rows of zeros of the type that the model reads."""
    like = next(p for p in model.parameters())
    whole = space.kind in ("label", "tokens")
    return torch.zeros(
        2, *space.shape, dtype=torch.int64 if whole else like.dtype, device=like.device
    )


def check_onnx(out: Path) -> None:
    try:
        import onnxscript  # noqa: F401 - what torch.onnx writes with
    except ImportError as error:
        raise UsageError(
            f"{out.name} needs onnx and onnxscript, which are not installed; install "
            "monge[onnx], or write .pt2"
        ) from error


def save(program: torch.export.ExportedProgram, names: list[str], out: Path) -> None:
    if out.suffix == ".pt2":
        content = io.BytesIO()  # a full disk would end the process if torch wrote the file
        torch.export.save(program, content)
        out.write_bytes(content.getbuffer())
        return
    torch.onnx.export(
        program, f=str(out), input_names=names, dynamo=True, verbose=False, external_data=False
    )
