"""The trace of a Jacobian: exact, and in the mean with the variance that theory gives."""

import pytest
import torch

from monge.solve.jacobian_trace import exact_trace, hutchinson_trace, mean_and_error, sample_probes

MATRIX = torch.tensor([[1.0, 2.0, 0.5], [-1.0, 3.0, 0.0], [0.3, 4.0, -2.0]], dtype=torch.float64)


def curved(x):
    return torch.tanh(x @ MATRIX.T) * x.sum(1, keepdim=True)


def point(n=6):
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_exact_trace_is_that_of_the_jacobian():
    x = point()
    value, trace = exact_trace(curved, x)
    full = torch.func.vmap(torch.func.jacrev(lambda row: curved(row[None])[0]))(x)
    torch.testing.assert_close(trace, full.diagonal(dim1=1, dim2=2).sum(1))
    torch.testing.assert_close(value, curved(x))


@pytest.mark.parametrize("kind", ["rademacher", "gaussian"])
def test_hutchinson_is_unbiased_with_the_variance_of_theory(kind):
    """Var = 2 sum S_ij^2, the diagonal left out for signs; S the symmetric part."""
    probes = sample_probes(torch.arange(1), 200_000, (3,), 0, kind)
    _, found = hutchinson_trace(lambda x: x @ MATRIX.T, point(1), probes[:, :1])
    assert found.shape == (1, 1)
    each = torch.einsum("bki,ij,bkj->bk", probes, MATRIX, probes)
    torch.testing.assert_close(found, each[:, :1])
    mean, error = mean_and_error(each)
    assert abs(mean - MATRIX.trace()) < 5 * error
    half = (MATRIX + MATRIX.T) / 2
    left = half.square().sum() - (half.diagonal().square().sum() if kind == "rademacher" else 0)
    assert each.var().item() == pytest.approx(2 * left.item(), rel=0.05)


def test_signs_know_the_trace_of_a_diagonal_field():
    x = point()
    _, trace = exact_trace(torch.sin, x)
    _, found = hutchinson_trace(torch.sin, x, sample_probes(torch.arange(6), 3, (3,)))
    torch.testing.assert_close(found, trace[:, None].expand(6, 3))


def test_probes_belong_to_rows():
    all_rows, some = (
        sample_probes(rows, 4, (2, 2), 7) for rows in (torch.arange(9), torch.tensor([5, 2]))
    )
    assert torch.equal(all_rows[[5, 2]], some)
    assert set(all_rows.unique().tolist()) == {-1.0, 1.0}


def test_both_are_differentiable_only_where_gradients_are():
    x = point().requires_grad_()
    probes = sample_probes(torch.arange(6), 2, (3,))
    for trace in (
        lambda y: exact_trace(curved, y)[1],
        lambda y: hutchinson_trace(curved, y, probes)[1],
    ):
        assert torch.autograd.gradcheck(trace, (x,))
        with torch.no_grad():
            assert not trace(x).requires_grad


def test_a_constant_field_has_no_trace():
    assert torch.equal(exact_trace(torch.zeros_like, point())[1], torch.zeros(6).double())


def test_one_probe_gives_no_error():
    assert mean_and_error(torch.zeros(3, 1))[1] is None
