"""The identities of attention and of recurrent networks hold, and fail where they should."""

import math

import torch

from monge.nn import recurrent
from monge.nn.attention import position
from monge.nn.attention import softmax as attention
from monge.verify.framework import examine, identities

OWN = [each for each in identities() if each.listing.group in ("attention", "sequences")]


def row(name):
    return examine(next(each for each in OWN if each.listing.name.startswith(name)))


def test_all_are_there():
    ids = (*range(31, 41), 110, 111, 112, 117)
    assert {each.listing.id for each in OWN} == {f"X{number}" for number in ids}


def test_a_product_mask_fails_x32(monkeypatch):
    """With factors 1 and minus infinity, negative scores of the future become plus infinity."""

    def product(q, k, v, mask=None, causal=False, dropout=0.0):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        late = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return torch.where(late, scores * -math.inf, scores).softmax(-1) @ v

    monkeypatch.setattr(attention, "attend", product)
    assert not row("x32_the_mask").passed


def test_resets_that_are_exchanged_fail_x39(monkeypatch):
    def exchanged(x, h, w, u, b, other):
        return recurrent.reset_before(torch.nn.functional.linear(x, w, b), h, u, other)

    monkeypatch.setattr(torch, "gru_cell", exchanged)
    assert not row("x39_reset_after").passed


def test_a_bias_that_knows_places_fails_x36(monkeypatch):
    def absolute(self, queries, keys):
        return torch.randn(self.heads, queries, keys, dtype=torch.float64)

    monkeypatch.setattr(position.RelativeBias, "forward", absolute)
    assert not row("x36_relative").passed


def test_a_chunk_that_leaks_fails_x34(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "tril", lambda self: self)
    assert not row("x34_causal").passed
