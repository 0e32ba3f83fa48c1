"""Every model that decodes, predicts or scores exactly is exported, on all data it takes."""

import candidates
import pytest
import torch

from monge import registry
from monge.core.errors import UsageError
from monge.core.positional import example_inputs
from monge.run import export
from monge.train.trainer import Trainer

ABLE = {ability.ability for ability in export.FUNCTIONS.values()}
NAMES = [entry.name for entry in registry.entries() if ABLE & set(entry.abilities)]
IN_ONNX = {"latent.vae", "predict.mlp", "autoregressive.made", "flow.coupling", "adversarial.gan"}
"""Models that are also written as ONNX and compared in onnxruntime."""


def initialised(name, kind, given):
    case = candidates.subject(name, kind, given)
    trainer = Trainer(case.build(), case.train, case.train_config, seed=1)
    trainer.initialise()
    return trainer.model.eval()


def noisy(model):
    """Whether a likelihood draws noise."""
    module = export.Scoring(model)
    spaces = {"x": model.space, **model.space.given}
    rows = module.batch(example_inputs(spaces, export.number_like(model)))
    return model.likelihood(rows).kind != "exact"


def exported(model, name, folder):
    """What was exported; a likelihood that draws noise is refused."""
    done = []
    for what, ability in export.FUNCTIONS.items():
        if not isinstance(model, ability):
            continue
        if what == "score" and noisy(model):
            with pytest.raises(UsageError, match=r"bound|estimate"):
                export.function_of(model, what, name)
            continue
        module, inputs, axes = export.function_of(model, what, name)
        with export.without_remarks():
            program = export.traced(module, inputs, axes, what, name)  # compares the outputs
            if name in IN_ONNX:
                out = folder / f"{what}.onnx"
                export.save(program, module, inputs, list(axes), out, what, name)
        done.append(what)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_exported_for_any_number_of_rows(name, tmp_path):
    pytest.importorskip("onnxruntime")
    for kind, given in candidates.supported(name):
        exported(initialised(name, kind, given), name, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "given"),
    [("predict.mlp", "label", "label"), ("autoregressive.made", "columns", "")],
)
def test_reads_of_constants_do_not_hinder_an_export(name, kind, given, tmp_path):
    found = exported(initialised(name, kind, given), "", tmp_path)
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
    from monge.core.batch import Batch

    with export.symbolic_lengths():
        assert len(Batch(torch.zeros(4, 2))) == 4
    assert "len" not in vars(export)
