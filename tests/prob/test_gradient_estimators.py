"""Score-function and pathwise gradients against those of sums and of closed forms."""

import pytest
import torch
from torch.distributions import Bernoulli, Categorical

from monge.core.errors import UsageError
from monge.prob.gradient_estimators import leave_one_out, pathwise, score_function


@pytest.mark.parametrize("baseline", [0.0, 2.5])
def test_the_expected_score_function_gradient_is_exact(baseline):
    """Over all values of z; f depends on the parameter itself too."""
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True)
    q, z = Categorical(logits=logits), torch.arange(4)

    def f(z):
        return (z.double() - logits[0]) ** 2

    (true,) = torch.autograd.grad((q.probs * f(z)).sum(), logits, retain_graph=True)
    weights = q.probs.detach()
    value = score_function(f(z), q.log_prob(z), baseline)
    torch.testing.assert_close(value, f(z))
    (found,) = torch.autograd.grad((weights * value).sum(), logits, retain_graph=True)
    torch.testing.assert_close(found, true)
    (exchanged,) = torch.autograd.grad((weights * f(z)).sum(), logits)
    assert float((exchanged - true).abs().max()) > 1e-2


def test_the_baseline_of_the_others_lowers_the_variance_and_keeps_the_mean():
    torch.manual_seed(0)
    logit = torch.full((20_000,), 0.3, dtype=torch.float64, requires_grad=True)
    q = Bernoulli(logits=logit)
    z = q.sample((4,))  # (S, rows)
    f = 10 + z
    grads = []
    for baseline in (0.0, leave_one_out(f)):
        total = score_function(f, q.log_prob(z), baseline).mean(0).sum()
        grads.append(torch.autograd.grad(total, logit, retain_graph=True)[0])
    true = torch.sigmoid(torch.tensor(0.3)) * (1 - torch.sigmoid(torch.tensor(0.3)))
    for grad in grads:
        assert abs(float(grad.mean() - true)) < 5 * float(grad.std()) / 20_000**0.5
    assert float(grads[1].var()) < 0.05 * float(grads[0].var())
    with pytest.raises(UsageError, match=r"\b1\b"):
        leave_one_out(f[:1])


def test_a_path_carries_the_gradient_of_mean_and_scale():
    mean, scale = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    noise = torch.tensor([1.0, -3.0])
    z = pathwise(mean, scale, noise)
    torch.testing.assert_close(z.detach(), torch.tensor([2.5, -5.5]))
    z.sum().backward()
    assert mean.grad == 2
    assert scale.grad == -2
