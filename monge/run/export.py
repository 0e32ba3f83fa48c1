"""Export a function of a model to torch.export or ONNX, to run without Monge."""

from __future__ import annotations

import builtins
import importlib.util
import io
import itertools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.abilities import Ability, CanDecode, CanExport, HasLikelihood, HasMean
from ..core.batch import Batch
from ..core.errors import DataError, UsageError
from ..core.files import replacing
from ..core.model import Model, exporting
from ..core.positional import batches, example_inputs, input_names
from .constant_reads import record, replayed
from .storage import check_output_path

if TYPE_CHECKING:
    from .run import Run


SUFFIXES = (".pt2", ".onnx")
OPSET = 18
"""The version of ONNX operators that is written."""
TOLERANCE = 1e-5
"""Largest difference of exported outputs from the model's, absolute or relative."""
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
        self.model = model

    def given(self, inputs: Sequence[Tensor]) -> dict[str, Batch]:
        return batches(self.model.space.given, inputs)


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

    def batch(self, inputs: Sequence[Tensor]) -> Batch:
        space = self.model.space
        own = len(input_names({"x": space}))
        x = batches({"x": space}, inputs[:own])["x"]
        return Batch(x.x, given=self.given(inputs[own:]), length=x.length)

    def forward(self, *inputs: Tensor) -> Tensor:
        batch = self.batch(inputs)
        return cast(HasLikelihood, self.model).likelihood(batch, self.options).value


class Positional(nn.Module):
    """A module with positional inputs only, so that all are exported alike; while it is traced,
    it reads the constants that it read before."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.reads: list[Any] = []

    def forward(self, *inputs: Tensor) -> Any:
        if not torch.compiler.is_exporting():
            return self.module(*inputs)
        with replayed(self.reads):
            return self.module(*inputs)


def export(run: Run, out: Path, what: str | None = None) -> dict[str, Any]:
    """Write a function of a run's model; returns which, and its inputs with shapes and free axes.
    What is written gives the outputs of the model for other numbers of rows, or nothing is."""
    if out.suffix not in SUFFIXES:
        raise UsageError(
            f"cannot export to {out.suffix or 'a file without a suffix'}; use "
            f"{' or '.join(SUFFIXES)}"
        )
    check_output_path(out)
    if out.suffix == ".onnx":
        check_onnx(out)
    able = [each for each, ability in FUNCTIONS.items() if isinstance(run.model, ability)]
    what = what or next(iter(able), "step")
    run.require(FUNCTIONS[what])
    name = run.metadata["model"]
    module, inputs, axes = function_of(run.model, what, name)
    out.parent.mkdir(parents=True, exist_ok=True)
    with without_remarks():
        program = traced(module, inputs, axes, what, name)
        with replacing(out) as fresh:
            described = save(program, module, inputs, axes, fresh, what, name)
    inputs_description = {
        name: [axes[name].get(axis, size) for axis, size in enumerate(x.shape)]
        for name, x in zip(axes, inputs, strict=True)
    }
    return {"file": str(out), "function": what, "inputs": inputs_description, **described}


@contextmanager
def without_remarks() -> Iterator[None]:
    """Without gradients, and without the remarks of the tracer, which print whole graphs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


Exported = tuple[Positional, tuple[Tensor, ...], Mapping[str, Mapping[int, str]]]
Call = Callable[..., Any]


def traced(
    module: Positional,
    inputs: tuple[Tensor, ...],
    axes: Mapping[str, Mapping[int, str]],
    what: str,
    name: str,
) -> torch.export.ExportedProgram:
    """The program of a module; its outputs are those of the module for other numbers of rows."""
    free = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in axes.values())
    module(*inputs)  # so that what is computed once is there
    try:
        with exporting(), symbolic_lengths():
            module.reads = record(module, *inputs)
            program = torch.export.export(module, inputs, dynamic_shapes=(free,), strict=False)
        check_rows(program)
        check_equal(program.module(), module, inputs)
    except Exception as error:
        raise refusal(name, what, "torch.export traces", error) from error
    return program


def check_rows(program: torch.export.ExportedProgram) -> None:
    """Raise an error if a program takes only so many rows, such as those of one piece."""
    most = [each.upper for each in program.range_constraints.values() if each.upper.is_Integer]
    if most:
        raise ValueError(f"it takes at most {min(most)} rows")


@contextmanager
def symbolic_lengths() -> Iterator[None]:
    """With a `len` that leaves the number of rows free: the one of Python gives the number that
    the example happens to have, which the tracer would take for a constant."""

    def rows_of(value: Any) -> Any:
        value = getattr(value, "x", value)  # rows of a batch
        return value.shape[0] if isinstance(value, Tensor) and value.ndim else builtins.len(value)

    package = __name__.partition(".")[0]
    modules = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] == package]
    try:
        for module in modules:
            vars(module)["len"] = rows_of
        yield
    finally:
        for module in modules:
            vars(module).pop("len", None)


def refusal(name: str, what: str, wanted: str, error: Exception) -> UsageError:
    first: BaseException = error
    while first.__cause__ is not None:  # what torch says last is only that it failed
        first = first.__cause__
    reason = str(first).strip().partition("\n")[0] or type(first).__name__
    if "data-dependent" in reason:
        reason = "its steps depend on the values of a row"
    return UsageError(
        f"{name} cannot be exported to {what} on such data: expected a network that {wanted} "
        f"exactly, found one that it does not ({reason.rstrip('.')}); use `monge serve`"
    )


def check_equal(found: Call, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise an error if two functions differ on one row, or on more than the example has."""
    for rows in (tuple(x[:1] for x in inputs), tuple(torch.cat([x, x.flip(0)]) for x in inputs)):
        with fork_rng():
            expected = module(*rows)
        with fork_rng():
            outputs = found(*rows)
        torch.testing.assert_close(
            outputs, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        )


@contextmanager
def fork_rng() -> Iterator[None]:
    """torch's generator at a fixed seed, and afterwards as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def function_of(model: Any, what: str, name: str) -> Exported:
    """The exported function of a model that has it, example inputs and free axes."""
    if what == "step":
        module, inputs, axes = model.step()
        return Positional(module).eval(), inputs, axes
    own = {"decode": {"z": getattr(model, "latent", None)}, "score": {"x": model.space}}
    spaces = {**own.get(what, {}), **model.space.given}
    inputs = example_inputs(spaces, number_like(model))
    module = {"decode": Decoding, "predict": Predicting, "score": Scoring}[what](model).eval()
    if what == "score":
        try:
            kind = model.likelihood(cast(Scoring, module).batch(inputs)).kind
        except DataError as error:
            raise UsageError(
                f"expected a log-likelihood of any rows to export, found that of {name}, which "
                f"refuses some ({error}); use `monge score` or `monge serve`"
            ) from error
        if kind != "exact":
            raise UsageError(
                f"expected an exact log-likelihood to export, found {kind} of {name}, which "
                "draws noise; use `monge score` or `monge serve`"
            )
    return Positional(module).eval(), inputs, {each: {0: "rows"} for each in input_names(spaces)}


def number_like(model: Model) -> Tensor:
    """A tensor of the type of the numbers that a model reads."""
    held = (t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point())
    return next(held, torch.zeros(()))


def check_onnx(out: Path) -> None:
    missing = [
        package
        for package in ("onnx", "onnxruntime", "onnxscript")
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        raise UsageError(
            f"{out.name} needs packages that are not installed ({', '.join(missing)}); install "
            "monge[onnx], or write .pt2"
        )


def save(
    program: torch.export.ExportedProgram,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    axes: Mapping[str, Mapping[int, str]],
    out: Path,
    what: str,
    name: str,
) -> dict[str, Any]:
    """Write a program; returns the version of the operators of an ONNX file, which is written only
    if onnxruntime gives the outputs of the module."""
    if out.suffix == ".pt2":
        content = io.BytesIO()  # a full disk would end the process if torch wrote the file
        torch.export.save(program, content)
        out.write_bytes(content.getbuffer())
        return {}
    try:
        write_onnx(program.run_decompositions(IN_OTHER_OPERATORS), list(axes), out)
        name_axes(out, axes)
        check_equal(in_onnxruntime(out), module, inputs)
    except OSError:
        raise
    except Exception as error:
        raise refusal(name, what, "ONNX expresses", error) from error
    return {"opset": OPSET}


def write_onnx(program: torch.export.ExportedProgram, names: list[str], out: Path) -> None:
    """Write a program in the operators of ONNX, as it is where they cannot be simplified."""
    from onnx_ir.passes import PassError

    def write(optimize: bool) -> None:
        torch.onnx.export(
            program,
            f=str(out),
            input_names=names,
            opset_version=OPSET,
            dynamo=True,
            optimize=optimize,
            verbose=False,
            external_data=False,
        )

    try:
        write(True)
    except PassError:
        write(False)


def name_axes(file: Path, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Give the free axes of an ONNX file their names instead of those of the tracer."""
    import onnx

    model = onnx.load(str(file))
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    shapes = {each.name: each.type.tensor_type.shape.dim for each in values}
    names = {
        shapes[value][axis].dim_param: name
        for value, free in axes.items()
        if value in shapes  # an input that is not read is not in the file
        for axis, name in free.items()
    }
    for dim in (dim for shape in shapes.values() for dim in shape if dim.dim_param):
        dim.dim_param = re.sub(r"\w+", lambda match: names.get(match[0], match[0]), dim.dim_param)
    onnx.save(model, str(file))


def search_sorted(
    ascending: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """torch.searchsorted by comparison with every entry; like there, NaN comes last."""
    if sorter is not None:
        ascending = ascending.gather(-1, sorter)
    entries = ascending.unsqueeze(-2) if ascending.ndim > 1 else ascending  # (..., 1, K)
    x = values.unsqueeze(-1)
    after = entries > x if right or side == "right" else entries >= x
    return (~after).sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def solve_triangular(
    factor: Tensor,
    right: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """torch.linalg.solve_triangular by halves of the rows."""
    if not left:
        turned = solve_triangular(
            factor.mT, right.mT, upper=not upper, unitriangular=unitriangular
        )
        return turned.mT
    n = factor.shape[-1]
    stacked = torch.broadcast_shapes(factor.shape[:-2], right.shape[:-2])
    right = right.expand(*stacked, *right.shape[-2:])
    if n == 1:
        return right if unitriangular else right / factor
    halves = [slice(0, n // 2), slice(n // 2, n)]
    one, two = reversed(halves) if upper else halves  # the half that is solved first
    both = [factor[..., part, part] for part in (one, two)]
    known = solve_triangular(both[0], right[..., one, :], upper=upper, unitriangular=unitriangular)
    rest = right[..., two, :] - factor[..., two, one] @ known
    other = solve_triangular(both[1], rest, upper=upper, unitriangular=unitriangular)
    return torch.cat([other, known] if upper else [known, other], -2)


def cholesky_factor(matrix: Tensor, *, upper: bool = False) -> Tensor:
    """torch.linalg.cholesky by halves of the rows; a matrix that is not positive definite has a
    factor with NaN."""
    if upper:
        return cholesky_factor(matrix.mT).mT
    n = matrix.shape[-1]
    if n == 1:
        return matrix.sqrt()
    first = cholesky_factor(matrix[..., : n // 2, : n // 2])
    below = solve_triangular(first, matrix[..., n // 2 :, : n // 2].mT, upper=False).mT
    last = cholesky_factor(matrix[..., n // 2 :, n // 2 :] - below @ below.mT)
    above = torch.cat([first, torch.zeros_like(below.mT)], -1)
    return torch.cat([above, torch.cat([below, last], -1)], -2)


def running_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """torch.cumprod by one product for each entry."""
    parts = list(x.to(dtype or x.dtype).unbind(dim))
    return torch.stack(list(itertools.accumulate(parts, torch.mul)), dim)


IN_OTHER_OPERATORS: dict[Any, Call] = {
    torch.ops.aten.cumprod.default: running_product,
    torch.ops.aten.linalg_cholesky.default: cholesky_factor,
    torch.ops.aten.searchsorted.Tensor: search_sorted,
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
}
"""Operators that ONNX has not, by those that it has."""


def in_onnxruntime(file: Path) -> Call:
    """A function of the outputs of an ONNX file, as torch's tensors."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def outputs(*rows: Tensor) -> Any:
        fed = {n: x.cpu().contiguous().numpy() for n, x in zip(names, rows, strict=True)}
        found = [torch.from_numpy(y) for y in session.run(None, fed)]
        return found[0] if len(found) == 1 else tuple(found)

    return outputs
