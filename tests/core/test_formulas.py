"""Formulas of docstrings as text."""

import inspect

import pytest

from monge import registry
from monge.core.formulas import as_text


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"$p(x \mid c) = \prod_t p(x_t \mid x_{<t})$, t", "p(x | c) = ∏_t p(x_t | x_(<t)), t"),
        (r"$\frac1K \sum_k \sqrt{d}$", "1/K ∑_k √d"),
        (r"$\tfrac{a+b}{2}\, \mathrm{softmax}(\hat x)$", "(a+b)/2 softmax(x\u0302)"),
        (r"$\beta^{(i)}_0 \le \log \|v\|$", "β^(i)_0 ≤ log ‖v‖"),
        ("costs $3 a day", "costs $3 a day"),
    ],
)
def test_tex_is_text(tex, text):
    assert as_text(tex) == text


def test_no_model_is_described_in_tex():
    for entry in registry.entries():
        text = as_text(inspect.cleandoc(registry.find(entry.name).__doc__ or ""))
        assert not {"\\", "$"} & {*text}, entry.name
