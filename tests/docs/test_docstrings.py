"""Every public name has a docstring of its own with an example, and the examples run."""

import doctest
import inspect
from types import FunctionType

import pytest

import monge

WITHOUT = {"__version__", "Losses"}
"""A string and the name of a type."""

LONG = {"compare"}
"""Examples that start processes."""
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
    for name in sorted(set(monge.__all__) - WITHOUT)
]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = getattr(monge, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert own, "no docstring of its own"
    examples = doctest.DocTestParser().get_doctest(inspect.cleandoc(own), {}, name, None, None)
    assert examples.examples, "no example"
    assert doctest.DocTestRunner(verbose=False).run(examples).failed == 0


def test_public_methods_have_docstrings():
    public = [getattr(monge, name) for name in monge.__all__]
    without = [
        f"{owner.__name__}.{name}"
        for owner in public
        if isinstance(owner, type)
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and isinstance(value, FunctionType | classmethod | staticmethod | property)
        and not inspect.getdoc(getattr(owner, name))
    ]
    assert not without
