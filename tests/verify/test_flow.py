"""The identities of invertible maps hold, and each fails on what was spoiled on purpose."""

from dataclasses import replace

import pytest
import torch

from monge import registry
from monge.core.abilities import Likelihood
from monge.core.batch import Batch
from monge.models.flow import superres
from monge.nn.autoregressive.masked_mlp import MaskedMLP
from monge.prob.bijections import autoregressive
from monge.prob.bijections.base import Compose
from monge.prob.bijections.coupling import CouplingBijection
from monge.prob.bijections.elementwise import ActNorm, Standardise
from monge.prob.bijections.linear import LULinear
from monge.prob.bijections.univariate import AffineMap
from monge.verify import _helpers as jacobian
from monge.verify import _random_flows, flow, subjects
from monge.verify.framework import examine, hold, identities

OURS = [each for each in identities() if each.listing.group == "flow"]
REAL, LEVELS = subjects.SPACES[4], subjects.SPACES[1]


def failed(start, subject=None):
    """The names of those that begin so and fail."""
    found = [each for each in OURS if each.listing.name.startswith(start)]
    assert found
    rows = [
        (each.listing.name, row)
        for each in found
        for row in (hold(each, [subject], every=True) if subject else [examine(each)])
    ]
    return {name for name, row in rows if row.passed is False}


def tiny(name, **fields):
    return subjects.subject(
        name, replace(registry.find(name).smallest_config(REAL), **fields), REAL
    )


def test_all_are_there():
    ids = {each.listing.id for each in OURS}
    assert ids == {"X64", "X75", "X76", "X77", "X78", "X80", "X81", "X114", "X118"}


def test_an_enlargement_that_is_not_settled_fails_x114(monkeypatch):
    space = replace(
        LEVELS,
        shape=(1, 8, 8),
        size=16,
        given={"source": replace(LEVELS, shape=(1, 4, 4), size=16)},
    )
    torch.manual_seed(0)
    model = superres.Superres.smallest_config(space).build(space).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x = torch.randint(0, 16, (8, 1, 8, 8)).double()
    batch = Batch(x, {"source": Batch(model.shrink(x).round())})
    subject = subjects.Subject("superres", model, batch)
    assert not failed("x114_small", subject)
    monkeypatch.setattr(superres, "match_block_sums", lambda x, *limits: x)
    assert failed("x114_small", subject)
    assert failed("x114_any")


@pytest.mark.parametrize("name", ["cflow", "attribute"])
def test_flows_that_read_vectors_hold_too(name):
    given = replace(REAL, shape=(3,), mean=(0.0,), scale=(1.0,), low=(-9.0,), high=(9.0,))
    space = replace(REAL, given={"source": given})
    subject = subjects.subject(name, registry.find(name).smallest_config(space), space)
    for start in ("x75", "x76", "x78"):
        assert not failed(start, subject)


@pytest.mark.parametrize("kind", ["additive", "affine", "spline"])
def test_every_kind_of_map_holds(kind):
    for name in ("coupling", "maf", "iaf"):
        assert not failed("x75", tiny(name, kind=kind)) | failed("x78", tiny(name, kind=kind))


def small(name, **fields):
    """On pictures of levels, whose score is a bound; without the logit, which random weights
    drive to where its inverse is lost."""
    space = replace(LEVELS, shape=(1, 4, 4))
    config = replace(registry.find(name).smallest_config(space), margin=0.0, **fields)
    return subjects.subject(name, config, space)


@pytest.mark.parametrize("noise", ["uniform", "learned"])
def test_pictures_hold_layer_by_layer(noise):
    subject = small("glow", noise=noise)
    for start in ("x75", "x77_couplings", "x78", "x81_volumes"):
        assert not failed(start, subject)


def test_one_row_has_the_jacobian_of_all(monkeypatch):
    monkeypatch.setattr(flow, "LARGEST", 4)
    monkeypatch.setattr(jacobian, "TOGETHER", 5)
    subject = small("glow")
    assert not failed("x75", subject)
    right = subject.model.pull
    subject.model.pull = lambda y, given=None: (right(y, given)[0], right(y, given)[1] + 0.1)
    assert "x75_log_determinant_is_the_jacobians" in failed("x75", subject)


def test_layers_of_a_model_that_are_spoiled_fail(monkeypatch):
    subject = small("glow")
    monkeypatch.setattr(LULinear, "log_det", lambda self, x: self.log_scale.sum().expand(len(x)))
    assert failed("x81_volumes", subject)
    monkeypatch.undo()
    right = CouplingBijection.join
    monkeypatch.setattr(
        CouplingBijection,
        "join",
        lambda self, stays, moved: right(self, stays + 0.1 * moved.mean(), moved),
    )
    assert failed("x77_couplings", subject)


def test_a_base_counted_twice_in_a_bound_fails_x78(monkeypatch):
    subject = small("glow")
    right = type(subject.model).log_weight
    monkeypatch.setattr(
        type(subject.model),
        "log_weight",
        lambda self, batch, uniform: right(self, batch, uniform) - 1.0,
    )
    assert failed("x78", subject)


def test_a_continuous_flow_of_many_entries_is_estimated_the_same_both_ways():
    space = replace(LEVELS, shape=(1, 6, 6))
    subject = subjects.subject("cnf", registry.find("cnf").smallest_config(space), space)
    assert subject.model.estimates
    assert not failed("x75", subject)
    rows = [
        row
        for each in OURS
        if each.listing.name.startswith(("x75_log", "x78"))
        for row in hold(each, [subject], every=True)
    ]
    assert all("estimate" in row.skipped for row in rows)


def test_a_forgotten_log_determinant_fails_x75_and_x76():
    subject = tiny("coupling")
    (layer,) = (part for part in subject.model.modules() if isinstance(part, Standardise))
    layer.volume += 0.1
    assert failed("x75", subject) == {"x75_log_determinant_is_the_jacobians"}
    assert failed("x76", subject)


def test_an_inverse_with_another_scale_fails_x75(monkeypatch):
    right = AffineMap.inverse
    monkeypatch.setattr(
        AffineMap, "inverse", lambda self, params, x: right(self, 1.01 * params, x)
    )
    assert failed("x75", tiny("coupling", kind="affine")) >= {"x75_codes_come_back"}


def test_a_base_counted_twice_fails_x78():
    subject = tiny("coupling")
    model, right = subject.model, subject.model.likelihood

    def twice(batch, options=None, generator=None):
        return Likelihood(
            right(batch).value + _random_flows.log_base(model.encode(batch)), "exact"
        )

    model.likelihood = twice
    assert failed("x78", subject)


def test_log_determinants_that_are_not_summed_fail_x64(monkeypatch):
    def last(self, z, context=None):
        for part in self.each():
            z, log_det = part(z, context)
        return z, log_det

    monkeypatch.setattr(Compose, "forward", last)
    assert failed("x64")


def test_a_coupling_that_reads_what_moves_fails_x77(monkeypatch):
    """The first line of a coupling as it is sometimes written: h(x^A; beta(x^A))."""
    right = CouplingBijection.params
    monkeypatch.setattr(CouplingBijection, "parts", lambda self, x: (x[:, :2], x[:, 2:]))
    monkeypatch.setattr(
        CouplingBijection,
        "join",
        lambda self, stays, moved: torch.cat([stays + 0.1 * moved[:, :2], moved], 1),
    )
    assert right is CouplingBijection.params
    assert failed("x77")


def test_a_network_that_sees_its_own_entry_fails_x80(monkeypatch):
    right = MaskedMLP.forward
    monkeypatch.setattr(
        MaskedMLP,
        "forward",
        lambda self, x, *rest, **more: (
            right(self, x, *rest, **more) + 0.1 * x.sum(1, keepdim=True)
        ),
    )
    assert failed("x80") >= {"x80_entry_by_entry_is_exact"}


def test_a_gradient_that_stops_at_the_root_fails_x80(monkeypatch):
    monkeypatch.setattr(
        autoregressive._ImplicitInverse,
        "backward",
        staticmethod(lambda ctx, gradient: (gradient / ctx.saved_tensors[0], None, None)),
    )
    assert failed("x80") == {"x80_gradient_of_the_root_is_exact"}


def test_volumes_of_one_place_alone_fail_x81(monkeypatch):
    monkeypatch.setattr(LULinear, "log_det", lambda self, x: self.log_scale.sum().expand(len(x)))
    assert failed("x81")
    monkeypatch.undo()
    right = ActNorm.forward
    monkeypatch.setattr(
        ActNorm,
        "forward",
        lambda self, z, context=None: (right(self, z)[0], self.log_scale.sum().expand(len(z))),
    )
    assert failed("x81")
