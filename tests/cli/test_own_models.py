"""A mistake in a user's model file is said to be the user's: the file, the line and the cause."""

import pytest

from monge.cli.main import attempt

MODEL = '''"""A model of a user."""
import torch
from monge import CanSample, Model
class Mine(Model, CanSample):
    """Its distribution."""
    events = {"real"}
    class Config(Model.Config):
        width: int = 3
    def __init__(self, config, space):
        super().__init__(config, space)
        self.w = torch.nn.Parameter(torch.zeros(3))
    @classmethod
    def smallest_config(cls, space):
        return cls.Config()
    def loss(self, batch):
        LOSS
    def sample(self, n, given=None, options=None, generator=None):
        return torch.zeros(n, 4)
'''


@pytest.fixture
def fitting(tmp_path, monkeypatch, capsys):
    """What fitting a model file says."""
    monkeypatch.chdir(tmp_path)

    def fit(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        code = attempt(["fit", f"./{name}.py", "iris", "--budget", "1step", "--out", name])
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert code, said
        assert "internal error" not in said
        return said

    return fit


def test_a_mistake_of_syntax_has_its_line(fitting):
    assert "syntax.py, line 2" in fitting("syntax", '"""Mine."""\ndef f(:\n')


def test_an_error_has_its_line(fitting):
    said = fitting("raising", MODEL.replace("LOSS", 'raise KeyError("oops")'))
    assert "raising.py, line 16" in said
    assert "oops" in said


@pytest.mark.parametrize("returned", ["3", "self.w.sum()", '{"a": 1.0}', "None"])
def test_what_a_method_should_not_return_is_said_of_its_file(fitting, returned):
    assert "returning.py" in fitting("returning", MODEL.replace("LOSS", f"return {returned}"))


def test_a_model_without_a_loss_is_refused_by_name(fitting):
    said = fitting("lacking", MODEL.replace("def loss", "def lose").replace("LOSS", "pass"))
    assert "lacking.py" in said
    assert "loss" in said
