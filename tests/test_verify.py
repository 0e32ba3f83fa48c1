"""The identities hold on the models, and each fails on a model that was broken on purpose."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.cli.main import attempt
from monge.core.abilities import Likelihood
from monge.core.batch import as_batch
from monge.models.adversarial._lipschitz import Clipping
from monge.nn.autoregressive.masked_mlp import MaskedLinear
from monge.solve.quadrature import integral
from monge.verify import framework, subjects
from monge.verify import framework as identity
from monge.verify.errata.uncomputable import PROSE
from monge.verify.framework import Residual, SkipIdentity, examine, hold, identities, listed

BINARY, LEVELS, LABEL, COUNTS, REAL, COLUMNS, BINARY_GIVEN, REAL_GIVEN = subjects.SPACES


def tiny(name, space, **fields):
    """A fresh subject that a test may break."""
    return subjects.subject(
        name, replace(registry.find(name).smallest_config(space), **fields), space
    )


def outcome(prefix, subject):
    """Results by name of the identities of the subject whose name has this prefix."""
    rows = {
        each.listing.name: row
        for each in identities()
        if each.needs and each.listing.name.startswith(prefix)
        for row in hold(each, [subject], every=True)
    }
    assert rows
    assert not [row.error for row in rows.values() if row.error]
    return rows


def failed(rows):
    return {name for name, row in rows.items() if row.passed is False}


SLOW = {("independent", (2,)), ("chow_liu", (2,))}
"""Step functions of two reals or counts take long to integrate."""
DIFFUSION = {
    "X91",
    "X92",
    "X93",
    "X94",
    "X95",
    "X96",
    "X97",
    "X100",
    "X102",
    "X103",
    "X104",
    "X105",
    "X106",
    "X107",
    "X114",
}
"""Identities of diffusion models."""
ADMITTED = {
    "made": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "pixelcnn": {"X22", "X50", "X52", "X55", "X56", "X57", "X114"},
    "pixelrnn": {"X22", "X50", "X52", "X55", "X56", "X57", "X114"},
    "wavenet": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "gpt": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "deep_nade": {"X22", "X50", "X52", "X54", "X56", "X57", "X114"},
    "vae": {"X50", "X57", "X58", "X59", "X60", "X114", "X142", "X143"},
    "vqvae": {"X124"},
    "d3pm": {"X50", "X57", "X114", "X127"},
    "rbm": {"X50", "X57", "X114", "X125"},
    "ebm": {"X125"},
    "linear_ar": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "wgan": {"X72", "X88"},
    "gan": {"X82", "X86"},
    "dcgan": {"X82", "X86"},
    "coupling": {"X50", "X57", "X75", "X76", "X77", "X78", "X81", "X114"},
    "maf": {"X50", "X57", "X75", "X76", "X78", "X81", "X114"},
    "glow": {"X50", "X57", "X75", "X76", "X77", "X78", "X81", "X114"},
    "iaf": {"X50", "X57", "X75", "X76", "X78", "X81", "X114"},
    "cnf": {"X50", "X57", "X75", "X76", "X78", "X81", "X114"},
    "residual": {"X50", "X57", "X75", "X76", "X78", "X81"},
    "attribute": {"X75", "X77", "X78", "X81", "X114"},
    "superres": {"X75", "X77", "X78", "X81", "X114"},
    "cflow": {"X50", "X57", "X75", "X76", "X77", "X78", "X81", "X114", "X118"},
    "ddpm": DIFFUSION,
    "vdm": DIFFUSION,
    "score_sde": DIFFUSION,
    "consistency": {"X128"},
    "pix2pix": {"X82", "X86"},
    "seq2seq": {"X22", "X50", "X56", "X57"},
    "transformer": {"X22", "X50", "X56", "X57"},
    "rnn": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "ssm": {"X22", "X50", "X52", "X56", "X57", "X114"},
    "fvsbn": {"X22", "X50", "X52", "X53", "X56", "X57", "X114"},
    "perceptron": {"X50", "X57"},
    "logistic": {"X50", "X57"},
    "predict.mlp": {"X50", "X57"},
    "cnn": {"X50", "X57"},
    "resnet": {"X50", "X57"},
    "semi": {"X50", "X57"},
    "m2": {"X50", "X57"},
    "predict.recurrent": {"X50", "X57"},
    "noisy_classifier": {"X50", "X57"},
}
ELSEWHERE = {
    "nade",
    "count_table",
    "independent",
    "gaussian",
    "mixture",
    "chow_liu",
    "hvae",
    "mhvae",
    "vrnn",
    "stcn",
}
"""Models checked in their own tests."""
ALONE = {
    "bayes",
    "cyclegan",
    "ae",
    "contrastive",
    "byol",
    "mae",
    "entropic_map",
    "neural_map",
    "sinkhorn_generator",
    "latent_diffusion",
    "distilled",
    "direct_forecast",
    "recursive_forecast",
}
"""Models to which no identity applies; their parts are checked separately."""


LONG = {"maf", "iaf", "cnf", "glow", "residual", "vdm", "score_sde"}
"""Models that are examined for seconds, each beside a quicker one that has the same identities."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in ADMITTED],
)
def test_every_identity_holds_on_the_first_small_space_it_examines(name):
    """`monge verify --all`, which CI runs too, checks every small space."""
    rows = [
        row
        for each in identities()
        if each.needs and each.listing.group != "any_model"
        for row in hold(each, subjects.small(name), every=False)
    ]
    assert not [row for row in rows if row.passed is False]
    assert {row.id for row in rows if row.passed} == ADMITTED[name]


def test_no_model_is_forgotten():
    known = {name.rpartition(".")[2] for name in ADMITTED} | ELSEWHERE | ALONE
    assert known == {entry.name.rpartition(".")[2] for entry in registry.entries()}
    admitted = {
        row.member.partition(",")[0]
        for each in identities()
        if each.needs and each.listing.group != "any_model"
        for entry in registry.entries()
        if entry.name.rpartition(".")[2] in ALONE
        for row in hold(each, subjects.small(entry.name), every=True)
        if row.passed is not None
    }
    assert not admitted


@pytest.mark.parametrize("name", ["independent", "gaussian", "mixture", "chow_liu"])
def test_baselines_are_normalised_and_sample_their_own_density(name):
    taken = [
        space
        for space in (BINARY, LEVELS, COUNTS, REAL, REAL_GIVEN)
        if subjects.takes(registry.find(name), space) and (name, space.shape) not in SLOW
    ]
    rows = [row for space in taken for row in outcome("x5", tiny(name, space)).values()]
    assert not [row for row in rows if row.passed is False]
    assert {row.id for row in rows if row.passed} == {"X50", "X57"}


@pytest.mark.parametrize("space", [BINARY, REAL_GIVEN], ids=subjects.describe_space)
def test_several_orders_and_masks_hold_too(space):
    subject = tiny("made", space, orders=2, masks=2, order="random")
    assert len(subject.model.orders) == 4
    assert not failed(outcome("x", subject))


def test_listing_imports_no_torch_and_matches_the_functions():
    code = (
        "import sys, json; from monge.verify.framework import listed; "
        "print(json.dumps([vars(each) for each in listed()])); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    found = [vars(each.listing) | {"examines": [*each.listing.examines]} for each in identities()]
    assert printed == found
    assert {each["id"] for each in printed} >= set.union(*ADMITTED.values())
    assert all(
        0 < len(each["statement"]) <= (72 if each["id"][0] == "X" else 92) for each in printed
    )


CITATION = r"[^\d;]*[A-Z][^\d;]+ (?:19|20)\d\d, [^;]*[A-Za-z]{3}[^;]*"
"""Author(s), year, title, and optionally a place in the work."""
PRIVATE = r"\bnotes?\b|\blines?\b|\b\d{3}:\d|\[|\]"
"""References that only their author could look up."""


@pytest.mark.parametrize(
    "source",
    [
        "",
        "002:57-61",
        "the course, eq. 3",
        "Kingma & Welling, Auto-Encoding Variational Bayes",
        "Kingma & Welling 2014",
        "Lin 1991, Divergence Measures; 003:12",
    ],
)
def test_the_pattern_of_sources_rejects_private_references(source):
    assert not public(source)


def public(source):
    return all(re.fullmatch(CITATION, each) for each in source.split("; ")) and not re.search(
        PRIVATE, source
    )


def test_every_identity_cites_an_author_and_a_year():
    sources = {each.name: each.source for each in listed()}
    sources |= {name: source for name, (source, _, _) in PROSE.items()}
    assert not {name: source for name, source in sources.items() if not public(source)}
    texts = {path: path.read_text() for path in framework.FOLDER.rglob("*.py")}
    assert not [
        path for path, text in texts.items() if re.search(r"\bthe notes?\b|\[\d{3}:\d", text)
    ]


def test_a_source_is_the_last_paragraph_of_a_docstring(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "FOLDER", tmp_path)
    path = tmp_path / "some.py"
    path.write_text('''
def x1_with():
    """A = B.

    More of it.

    Source: Lin 1991, Divergence Measures
    Based on the Shannon Entropy, eq. 2."""


def x2_without():
    """A = C."""
''')
    assert [(each.id, each.statement, each.source) for each in framework.read(path)] == [
        ("X1", "A = B", "Lin 1991, Divergence Measures Based on the Shannon Entropy, eq. 2"),
        ("X2", "A = C", ""),
    ]


def test_verbose_shows_the_source(capsys):
    source = next(each.source for each in listed() if each.id == "X54")
    assert attempt(["verify", "X54"]) == 0
    assert source not in capsys.readouterr().out
    assert attempt(["verify", "X54", "-v"]) == 0
    assert source in capsys.readouterr().out


def test_a_mask_with_ge_where_gt_belongs_fails_x52(monkeypatch):
    right = MaskedLinear.__init__

    def lenient(self, inputs, outputs, strict=False, bias=True):
        right(self, inputs, outputs, False, bias)

    monkeypatch.setattr(MaskedLinear, "__init__", lenient)
    subject = tiny("made", BINARY)
    assert len(failed(outcome("x52", subject))) == 2
    assert failed(outcome("x22", subject))
    assert failed(outcome("x50", subject))


def test_beta_reported_as_a_bound_fails_x59():
    subject = tiny("vae", BINARY, beta=4.0)
    model = subject.model
    assert not failed(outcome("x59", subject))

    def penalised(batch, options=None, generator=None):
        return Likelihood(-sum(model.loss(as_batch(batch)).values()), "bound")

    model.likelihood = penalised
    assert failed(outcome("x59", subject)) == {"x59_score_is_the_bound"}


def test_a_sampler_at_another_temperature_fails_x57():
    for name, space in (("made", BINARY), ("made", REAL), ("vae", BINARY)):
        subject, hot = tiny(name, space), tiny(name, space)
        with torch.no_grad():
            last = hot.model.net.out if name == "made" else hot.model.nets.decoder.out
            last.weight.mul_(1.3)
        subject.model.sample = hot.model.sample
        assert failed(outcome("x57", subject)), name


@pytest.mark.parametrize("space", [BINARY, COUNTS, REAL, COLUMNS], ids=subjects.describe_space)
def test_an_unnormalised_model_fails_x50(space):
    subject = tiny("made", space)
    right = subject.model.likelihood
    for change in (lambda value: value + 1e-3, lambda value: value * math.nan):
        subject.model.likelihood = lambda batch: Likelihood(change(right(batch).value), "exact")  # noqa: B023
        assert failed(outcome("x50", subject))


def test_a_likelihood_that_forgets_an_entry_fails_x56():
    subject = tiny("made", BINARY)
    subject.model.likelihood = lambda batch: Likelihood(
        subject.model.conditionals(batch)[:, 1:].sum(1), "exact"
    )
    assert failed(outcome("x56", subject))


def test_a_wrong_kl_fails_x58_and_x59():
    subject = tiny("vae", BINARY)
    kl = subject.model.analytic_kl
    subject.model.analytic_kl = lambda batch: 1.2 * kl(batch)
    assert failed(outcome("x58", subject))
    assert failed(outcome("x59", subject)) == {
        "x59_kl_term_is_the_divergence_from_the_prior",
        "x59_both_estimators_are_unbiased",
    }


def test_a_score_that_ignores_its_samples_fails_x60():
    subject = tiny("vae", BINARY)
    right = subject.model.likelihood

    def stubborn(batch, options=None, generator=None):
        return right(batch, subject.model.LikelihoodConfig(samples=1), generator)

    subject.model.likelihood = stubborn
    assert failed(outcome("x60", subject)) == {"x60_score_is_the_importance_weighted_bound"}
    subject.model.likelihood = lambda batch, options=None, generator=None: Likelihood(
        right(batch, options, generator).value + 2, "bound"
    )
    assert "x60_bound_stays_below_the_evidence" in failed(outcome("x60", subject))


def test_a_critic_that_is_steeper_than_its_layers_fails_x88():
    assert not failed(outcome("x88", tiny("wgan", REAL, constraint=Clipping.Config())))
    subject = tiny("wgan", REAL)
    criticise = subject.model.criticise
    subject.model.criticise = lambda batch: 100 * criticise(batch)
    assert failed(outcome("x88", subject))


def identity_of(call):
    return replace(identities()[0], call=call, rows=False, needs=None)


def test_an_error_fails_and_a_skip_has_a_reason():
    def broken():
        raise ZeroDivisionError("no\nluck")

    def skipped():
        raise SkipIdentity("too large")

    row = examine(identity_of(broken))
    assert row.passed is False
    assert row.error == "ZeroDivisionError: no luck"
    row = examine(identity_of(skipped))
    assert (row.passed, row.skipped, row.residual) == (None, "too large", None)
    assert examine(identity_of(lambda: Residual(math.nan, 1.0))).passed is False
    assert examine(identity_of(lambda: Residual(math.inf, math.inf))).passed is False
    assert examine(identity_of(lambda: Residual(1.0, 1.0))).passed is True


def test_integrals_of_known_value():
    step = integral(lambda x: (x.abs() < 1 / 3).double(), 1, 1e-9)
    ridge = integral(
        lambda x: (-x.square().sum(1) / 2 - 500 * (x[:, :1] - x[:, 1:])[:, 0] ** 2).exp()[:, None],
        2,
        1e-7,
    )
    assert float(step[0]) == pytest.approx(2 / 3, abs=1e-8)
    assert float(ridge[0]) == pytest.approx(2 * math.pi / math.sqrt(2001), abs=1e-6)
    assert math.isnan(integral(lambda x: x * math.nan, 1, 1e-9)[0])


def verify_json(capsys, *arguments):
    code = attempt(["verify", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_selects_and_counts(capsys):
    code, value = verify_json(capsys, "X52", "X22", "made")
    keys = {
        "id",
        "member",
        "statement",
        "source",
        "residual",
        "tolerance",
        "passed",
        "skipped",
        "wrong",
    }
    assert code == 0
    assert all(keys <= set(row) for row in value["rows"])
    assert {row["id"] for row in value["rows"]} == {"X52", "X22"}
    assert {row["member"].partition(",")[0] for row in value["rows"]} == {"made"}
    code, value = verify_json(capsys, "represent")
    assert [row["id"] for row in value["rows"]] == ["X113", "X113"]
    assert attempt(["verify", "X54"]) == 0
    assert re.findall(r"\d+", capsys.readouterr().out.splitlines()[-1]) == ["2", "0", "0"]


def test_verify_refuses_unknown_names(capsys):
    assert attempt(["verify", "mde"]) == 2
    assert "made" in capsys.readouterr().err
    assert attempt(["verify", "X88", "made"]) == 2


def test_a_failure_is_an_exit_code(capsys, monkeypatch):
    def wrong(*arguments):
        raise ArithmeticError("it does not add up")

    monkeypatch.setattr(identity, "arguments", wrong)
    assert attempt(["verify", "X54"]) == 1
    assert "ArithmeticError: it does not add up" in capsys.readouterr().out


def test_a_run_is_checked_with_its_own_weights(capsys):
    import monge

    run = monge.fit("made", "moons", "width=16", budget="20steps")
    code, value = verify_json(capsys, str(run.folder))
    assert code == 0
    assert {row["member"] for row in value["rows"]} == {str(run.folder)}
    passed = {row["id"] for row in value["rows"] if row["passed"]}
    assert passed == ADMITTED["made"] | {"X119", "X120", "X121", "X123", "X150"}
    assert all(row["examines"] == ["models.autoregressive.made.MADE"] for row in value["rows"])


def test_identities_have_groups():
    assert {each.group for each in listed()} >= {
        "adversarial",
        "autoregressive",
        "latent",
        "autoregressive_nets",
    }
