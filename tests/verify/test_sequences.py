"""The identities of sequences hold, and each sees what was spoiled on purpose."""

import pytest
import torch

from monge.data.codecs.tokens import Text
from monge.nn.attention.scores import BilinearScore
from monge.nn.recurrent import RecurrentNet
from monge.verify import sequences
from monge.verify import sequences as sequence

NAMES = ("x110_scores_and_context", "x111_tokens_come_back", "x112_lengths_in_a_batch")


@pytest.mark.parametrize("name", NAMES)
def test_it_holds(name):
    with torch.no_grad():
        assert getattr(sequence, name)().passed


def test_another_matrix_is_seen(monkeypatch):
    plain = BilinearScore.forward
    monkeypatch.setattr(BilinearScore, "forward", lambda self, q, k: 1.1 * plain(self, q, k))
    with torch.no_grad():
        assert not sequences.x110_scores_are_their_formulas().passed


def test_a_codec_that_loses_something_is_seen(monkeypatch):
    monkeypatch.setattr(sequence, "STRINGS", 20)
    plain = Text.spell
    monkeypatch.setattr(Text, "spell", lambda self, row: plain(self, row).strip())
    assert not sequences.x111_tokens_come_back().passed


def test_padding_that_is_read_is_seen(monkeypatch):
    plain = RecurrentNet.forward
    monkeypatch.setattr(
        RecurrentNet, "forward", lambda self, x, length=None: plain(self, x.flip(1))
    )
    with torch.no_grad():
        assert not sequences.x112_lengths_in_a_batch().passed
