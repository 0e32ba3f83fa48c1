"""Export the network of a model to torch.export or ONNX, to run without Monge."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.abilities import Ability, CanDecode, CanExport, HasLikelihood, HasMean
from ..core.batch import Batch
from ..core.errors import UsageError
from ..core.files import replacing
from ..core.model import Model
from ..core.space import Space
from .storage import check_output_path

if TYPE_CHECKING:
    from .run import Run


SUFFIXES = (".pt2", ".onnx")
FUNCTIONS: dict[str, type[Ability]] = {
    "step": CanExport,
    "decode": CanDecode,
    "predict": HasMean,
    "score": HasLikelihood,
}
"""What can be exported, the first that a model has by default."""


class Conditioned(nn.Module):
    """A method of a model as a module: its last inputs are the conditions, in order."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.names = model, tuple(model.space.given)

    def given(self, inputs: Sequence[Tensor]) -> dict[str, Batch]:
        return {name: Batch(x) for name, x in zip(self.names, inputs, strict=True)}


class Decoding(Conditioned):
    """Decoder of latent codes: (z, *given) to the event."""

    def forward(self, z: Tensor, *given: Tensor) -> Tensor:
        return cast(CanDecode, self.model).decode(z, self.given(given))


class Predicting(Conditioned):
    """(*given) to E[x | given], in the units of the data; of a label its probabilities."""

    def forward(self, *given: Tensor) -> Tensor:
        return cast(HasMean, self.model).mean(self.given(given))


class Scoring(Conditioned):
    """(x, *given) to log p(x | given) in nats, (rows,)."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.options = cast(HasLikelihood, model).LikelihoodConfig()

    def forward(self, x: Tensor, *given: Tensor) -> Tensor:
        batch = Batch(x, given=self.given(given))
        return cast(HasLikelihood, self.model).likelihood(batch, self.options).value


class Positional(nn.Module):
    """A module with positional inputs only, so that all are exported alike."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def export(run: Run, out: Path, what: str | None = None) -> dict[str, Any]:
    """Write a function of a run's model; returns which, and its inputs with shapes and free axes.
    What is written gives the outputs of the model for another number of rows, or nothing is."""
    if out.suffix not in SUFFIXES:
        raise UsageError(
            f"cannot export to {out.suffix or 'a file without a suffix'}; use "
            f"{' or '.join(SUFFIXES)}"
        )
    check_output_path(out)
    if out.suffix == ".onnx":
        check_onnx(out)
    what, (module, inputs, axes) = function_of(run, what)
    free = {name: torch.export.Dim(name) for each in axes.values() for name in each.values()}
    shapes = tuple({axis: free[name] for axis, name in each.items()} for each in axes.values())
    out.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        program = traced(run, what, Positional(module).eval(), inputs, shapes)
        with replacing(out) as fresh:
            save(program, list(axes), fresh)
    inputs_description = {
        name: [axes[name].get(axis, size) for axis, size in enumerate(x.shape)]
        for name, x in zip(axes, inputs, strict=True)
    }
    return {"file": str(out), "function": what, "inputs": inputs_description}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the remarks of the tracer, which print whole graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def traced(
    run: Run, what: str, module: nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[Any, ...]
) -> torch.export.ExportedProgram:
    """The program of a module, by the tracer that takes it; its outputs are those of the module
    for other numbers of rows."""
    reasons = []
    inferred = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in shapes)
    for strict, axes in ((True, shapes), (True, inferred), (False, inferred)):
        try:
            program = torch.export.export(module, inputs, dynamic_shapes=(axes,), strict=strict)
            check_equal(program.module(), module, inputs)
        except Exception as error:
            reasons.append(str(error).strip().partition("\n")[0] or type(error).__name__)
        else:
            return program
    raise UsageError(
        f"{run.metadata['model']} cannot be exported to {what} on such data: expected a network "
        f"that torch.export traces, found one that it does not ({reasons[0].rstrip('.')}); use "
        "`monge serve`, or a model such as latent.vae"
    )


def check_equal(found: nn.Module, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise an error if two modules differ on one row, or on more than the example has."""
    for rows in (tuple(x[:1] for x in inputs), tuple(torch.cat([x, x]) for x in inputs)):
        with fork_rng():
            expected = module(*rows)
        with fork_rng():
            outputs = found(*rows)
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@contextmanager
def fork_rng() -> Iterator[None]:
    """torch's generator at a fixed seed, and afterwards as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


Exported = tuple[nn.Module, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]


def function_of(run: Run, what: str | None = None) -> tuple[str, Exported]:
    """The exported function, example inputs and free axes: by default the model's own step, else
    its decoder, its prediction or its log-likelihood."""
    able = [name for name, ability in FUNCTIONS.items() if isinstance(run.model, ability)]
    if what is None and not able:
        run.require(CanExport)
    what = what or able[0]
    model: Any = run.require(FUNCTIONS[what])
    if what == "step":
        return what, model.step()
    given = dict(model.space.given)
    if varying := next((part for part in (model.space, *given.values()) if part.varies), None):
        raise UsageError(
            f"expected rows of one length to export {what}, found {varying}; use `monge serve`"
        )
    spaces = {
        "decode": {"z": getattr(model, "latent", None), **given},
        "predict": given,
        "score": {"x": model.space, **given},
    }[what]
    inputs = tuple(example(part, model) for part in spaces.values())
    module = {"decode": Decoding, "predict": Predicting, "score": Scoring}[what](model).eval()
    if what == "score":
        batch = Batch(inputs[0], given=cast(Scoring, module).given(inputs[1:]))
        if (kind := model.likelihood(batch).kind) != "exact":
            raise UsageError(
                f"expected an exact log-likelihood to export, found {kind} of "
                f"{run.metadata['model']}, which draws noise; use `monge score` or `monge serve`"
            )
    return what, (module, inputs, {name: {0: "rows"} for name in spaces})


def example(space: Space, model: Model) -> Tensor:
    """Two rows of the type that the model reads, at the mean of the training rows or at 0."""
    like = next(
        (t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()), None
    )
    like = torch.zeros(()) if like is None else like
    if space.kind in ("label", "tokens"):
        return torch.zeros(2, *space.shape, dtype=torch.int64, device=like.device)
    x = torch.zeros(2, *space.shape, dtype=like.dtype, device=like.device)
    return x + space.spread("mean").to(x) if space.kind == "real" else x


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
        torch.export.save(program, out)
        return
    torch.onnx.export(
        program, f=str(out), input_names=names, dynamo=True, verbose=False, external_data=False
    )
