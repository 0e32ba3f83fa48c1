"""What the README states is true: its Python runs, and models are as good as it says. Its commands
and links are examined with those of all pages, in tests/docs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_first_example_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(import monge\n.*?)```", TEXT, re.S)[1]
    names: dict = {}
    exec(example.replace('"30s"', '"20steps"'), names)
    assert names["images"].shape[0] == 64
    assert names["again"].folder == names["run"].folder
    assert "held_out" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "bits"),
    [
        ("independent", 2.43),
        ("chow_liu", 2.20),
        ("made", 1.90),
        ("vae", 1.95),
        ("pixelcnn", 1.85),
        ("pixelrnn", 1.85),
        ("gpt", 2.00),
    ],
)
def test_digits_are_learned_as_well_as_it_says(model, bits):
    """Within a minute on one thread, with default settings."""
    import monge

    assert monge.fit(model, "digits", budget="60s").log_likelihood().bits_per_dim < bits
