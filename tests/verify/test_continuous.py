"""The identities of continuous flows, which hold (`test_examines.py`), fail on what was spoiled on
purpose."""

from dataclasses import replace

import torch

from monge.models.flow import _velocity
from monge.solve import adjoint, ode
from monge.verify import continuous_flow
from monge.verify import continuous_flow as continuous
from monge.verify.framework import examine, identities

OURS = {
    each.listing.name: each for each in identities() if each.listing.group == "continuous_flow"
}


def fails(name):
    return examine(OURS[name]).passed is False


def test_a_trace_that_forgets_the_frame_fails(monkeypatch):
    right = _velocity.Velocity.traced

    def forgetful(self, x, t, context):
        v, trace = right(self, x, t, context)
        late, inside = self.frame(t.reshape(-1, 1))
        return v, trace - 2 * (late * inside.square())[:, 0]

    monkeypatch.setattr(_velocity.Velocity, "traced", forgetful)
    assert fails("x79_written_trace_is_the_jacobians")
    # The whole of it is the volume of N(0, I) moved to itself, which nothing is left of.
    assert not fails("x79_trace_is_the_log_determinant")


def test_wrong_slopes_fail(monkeypatch):
    right = _velocity.ACTIVATION_DERIVATIVES["tanh"]
    monkeypatch.setitem(
        _velocity.ACTIVATION_DERIVATIVES, "tanh", lambda z: (right(z)[0], 1.001 * right(z)[1])
    )
    assert fails("x79_written_trace_is_the_jacobians")
    assert fails("x79_trace_is_the_log_determinant")


def test_probes_of_another_variance_fail(monkeypatch):
    right = continuous_flow.sample_probes
    monkeypatch.setattr(continuous, "sample_probes", lambda *args: 1.1 * right(*args))
    assert fails("x79_hutchinson_is_unbiased")


def test_an_adjoint_of_the_wrong_sign_fails(monkeypatch):
    right = adjoint.backwards

    def careless(f, params, size):
        def together(t, state):
            found = right(f, params, size)(t, state)
            return (*found[:size], *(-part for part in found[size:]))

        return together

    monkeypatch.setattr(adjoint, "backwards", careless)
    assert fails("x79_adjoint_is_back_propagation")


def test_a_table_with_one_wrong_number_loses_its_order(monkeypatch):
    table = replace(ode.TABLEAUX["rk4"], weights=(1 / 4, 1 / 4, 1 / 4, 1 / 4))
    monkeypatch.setitem(ode.TABLEAUX, "rk4", table)
    assert fails("x79_methods_have_their_order")


def test_a_flow_that_ignores_its_direction_fails(monkeypatch):
    made = continuous_flow.ContinuousBijection
    right = made.solve

    def one_way(self, x, context, times, solver, probes=None, adjoint=False):
        return right(self, x, context, (0.0, 1.0), solver, probes, adjoint)

    monkeypatch.setattr(made, "solve", one_way)
    assert fails("x79_flow_is_undone_by_going_back")
    assert torch.is_grad_enabled()
