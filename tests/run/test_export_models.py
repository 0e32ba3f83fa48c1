"""Every model that decodes, predicts or scores exactly is exported, on all data it takes."""

import importlib.util
import math
from contextlib import nullcontext

import candidates
import pytest
import small_data
import torch

from monge import registry
from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.positional import example_inputs
from monge.core.rng import make_generator
from monge.models.flow._base import Flow
from monge.models.flow.residual import ResidualFlow
from monge.run import export
from monge.train.trainer import Trainer

ABLE = {ability.ability for ability in export.FUNCTIONS.values()}
ABILITIES = {entry.name: set(entry.abilities) for entry in registry.entries()}
NAMES = [name for name, abilities in ABILITIES.items() if ABLE & abilities]

NOT_TRACED = {("flow.residual", "decode"), ("flow.superres", "decode")}
"""Decoders that repeat a step as often as the values need: no program of fixed steps has them."""


def initialised(name, kind, given):
    case = candidates.subject(name, kind, given)
    trainer = Trainer(case.build(), case.train, case.train_config, seed=1)
    trainer.initialise()
    return trainer.model.eval()


def models_of(name):
    """A model of each kind of data that it takes; of sentences if it takes no other."""
    pairs = candidates.supported(name)
    yield from ((pair, initialised(name, *pair)) for pair in pairs)
    if not pairs:
        space, _ = small_data.sentences(4)
        yield "sentences", registry.find(name).smallest_config(space).build(space).eval()


def noisy(model):
    """Whether a likelihood draws noise, or refuses rows that do not belong together."""
    module = export.Scoring(model)
    spaces = {"x": model.space, **model.space.given}
    rows = module.batch(example_inputs(spaces, export.number_like(model)))
    try:
        return model.likelihood(rows).kind != "exact"
    except DataError:
        return True


def beyond_onnx(model, what):
    """What only torch.export writes, since ONNX or onnxruntime lack the operators: decoders of
    tables in flows (error functions in double precision, quantiles) and log-determinants of
    residual maps (singular values)."""
    decodes_table = what == "decode" and isinstance(model, Flow) and bool(model.space.columns)
    return decodes_table or (what == "score" and isinstance(model, ResidualFlow))


def free_axes(file):
    """The names of the axes of an ONNX file whose size is free."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    shapes = [each.shape for each in (*session.get_inputs(), *session.get_outputs())]
    return {size for shape in shapes for size in shape if isinstance(size, str)}


def exported(model, name, onnx=None):
    """What was exported, also to ONNX if a folder is given: both compare the outputs for one row
    and for more than the example has. A likelihood that draws noise is refused."""
    done = []
    for what, ability in export.FUNCTIONS.items():
        if not isinstance(model, ability):
            continue
        if what == "score" and noisy(model):
            with pytest.raises(UsageError, match=r"bound|estimate|refuses"):
                export.function_of(model, what, name)
            continue
        module, inputs, axes = export.function_of(model, what, name)
        if (name, what) in NOT_TRACED:
            with export.without_remarks(), pytest.raises(UsageError):
                export.traced(module, inputs, axes, what, name)
            continue
        with export.without_remarks():
            program = export.traced(module, inputs, axes, what, name)
            if onnx:
                out = onnx / f"{what}.onnx"
                with pytest.raises(UsageError) if beyond_onnx(model, what) else nullcontext():
                    export.save(program, module, inputs, axes, out, what, name)
                    assert free_axes(out) == {"rows"}
        done.append(what)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_exported_for_any_number_of_rows(name, tmp_path):
    """On all data that it takes; without onnxruntime by torch.export alone."""
    onnx = tmp_path if importlib.util.find_spec("onnxruntime") else None
    found = {case: exported(model, name, onnx) for case, model in models_of(name)}
    assert found
    wanted = {what for what, able in export.FUNCTIONS.items() if able.ability in ABILITIES[name]}
    wanted -= {what for each, what in NOT_TRACED if each == name}
    assert all(set(done) >= wanted - {"score"} for done in found.values())
    assert any(found.values()) or wanted <= {"score"}


def test_a_search_in_a_sorted_row_is_written_in_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    model = initialised("adversarial.gan", "columns", "")
    assert exported(model, "adversarial.gan", tmp_path) == ["decode"]


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
@pytest.mark.parametrize("options", [{}, {"right": True}, {"side": "right"}, {"out_int32": True}])
def test_a_search_by_comparison_finds_the_places_of_torch(shape, options):
    generator = make_generator(0)
    ordered = torch.randint(9, shape, generator=generator).float().sort(-1)[0]
    values = torch.randint(-1, 10, (3, 7), generator=generator).float()  # with ties
    values[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    found = export.search_sorted(ordered, values, **options)
    expected = torch.searchsorted(ordered, values, **options)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    order = torch.randperm(shape[-1], generator=generator).expand(shape)
    mixed = torch.empty_like(ordered).scatter_(-1, order, ordered)
    assert torch.equal(export.search_sorted(mixed, values, sorter=order, **options), expected)


def test_a_program_of_limited_rows_is_refused(monkeypatch):
    """Rows that are computed in pieces make a program that takes one piece."""
    model = initialised("autoregressive.made", "real", "")
    own = type(model).likelihood

    def in_pieces(self, batch, *more):
        found = [own(self, Batch(x), *more) for x in batch.x.split(100)]
        return type(found[0])(torch.cat([each.value for each in found]), found[0].kind)

    monkeypatch.setattr(type(model), "likelihood", in_pieces)
    module, inputs, axes = export.function_of(model, "score", "made")
    with export.without_remarks(), pytest.raises(UsageError, match=r"made.*score.*100"):
        export.traced(module, inputs, axes, "score", "made")


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_running_product_is_that_of_torch(dim, dtype):
    x = torch.randn(3, 4, 5, generator=make_generator(0))
    expected = torch.cumprod(x, dim, dtype=dtype)
    torch.testing.assert_close(export.running_product(x, dim, dtype=dtype), expected)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("stacked", [(), (4,)])
def test_a_system_solved_by_halves_is_solved(upper, left, unitriangular, stacked):
    factor = torch.randn(*stacked, 5, 5, generator=make_generator(0), dtype=torch.float64)
    factor = factor / 4 + 2 * torch.eye(5, dtype=torch.float64)  # both triangles have entries
    right = torch.randn(5, 5, generator=make_generator(1), dtype=torch.float64)
    options = dict(upper=upper, left=left, unitriangular=unitriangular)
    expected = torch.linalg.solve_triangular(factor, right.expand_as(factor), **options)
    torch.testing.assert_close(export.solve_triangular(factor, right, **options), expected)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("stacked", [(), (4,)])
def test_a_matrix_factored_by_halves_is_factored(n, upper, stacked):
    root = torch.randn(*stacked, n, n, generator=make_generator(0), dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(n, dtype=torch.float64)
    half = matrix.triu() if upper else matrix.tril()  # the other triangle is not read
    expected = torch.linalg.cholesky(matrix, upper=upper)
    torch.testing.assert_close(export.cholesky_factor(half, upper=upper), expected)
    assert export.cholesky_factor(-matrix).isnan().any()


@pytest.mark.slow
def test_a_refusal_names_the_operator_that_onnx_has_not(monkeypatch, tmp_path):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "IN_OTHER_OPERATORS", {})
    with pytest.raises(UsageError, match=r"gan.*decode.*searchsorted"):
        exported(initialised("adversarial.gan", "columns", ""), "gan", tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [("predict.mlp", "label", "label"), ("autoregressive.made", "columns", "")],
)
def test_reads_of_constants_do_not_hinder_an_export(name, kind, given):
    found = exported(initialised(name, kind, given), "")
    assert found == (["predict", "score"] if name == "predict.mlp" else ["score"])


def test_a_branch_on_values_is_refused(monkeypatch):
    """An answer is replayed only if no input has entered it."""
    model = initialised("autoregressive.made", "real", "")
    own = type(model).likelihood

    def branching(self, batch, *more):
        found = own(self, batch, *more)
        return type(found)(found.value * (2 if bool(batch.x.sum() > 0) else 1), found.kind)

    monkeypatch.setattr(type(model), "likelihood", branching)
    module, inputs, axes = export.function_of(model, "score", "made")
    with export.without_remarks(), pytest.raises(UsageError, match=r"made.*score"):
        export.traced(module, inputs, axes, "score", "made")


def test_the_number_of_rows_stays_free_while_tracing():
    with export.symbolic_lengths():
        assert len(Batch(torch.zeros(4, 2))) == 4
    assert "len" not in vars(export)
