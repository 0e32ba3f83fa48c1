"""Every public name has a docstring of its own with an example, and the examples run."""

import doctest
import inspect

import pytest

import monge

WITHOUT = {"__version__", "Losses", "open"}
"""A string, the name of a type, and a function whose example is on its page of the site."""

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
