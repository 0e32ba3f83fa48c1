"""Devices that are not here: which one is taken, and losses on one that computes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import worker_pair

from monge.core.batch import Batch
from monge.run import saved
from monge.run.saved import ComputeConfig

SCRIPT = Path(__file__).with_name("fake_accelerator.py")


def outcomes(*subjects: str) -> dict[str, str]:
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *subjects], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_losses_stay_on_their_device():
    names = ("autoregressive.made:binary:", "latent.vae:binary:", "adversarial.gan:real:")
    assert outcomes(*names) == dict.fromkeys(names, "same device")


@pytest.mark.slow
def test_losses_of_every_model_stay_on_their_device():
    found = outcomes(*worker_pair.subjects())
    print(json.dumps({name: why for name, why in found.items() if why != "same device"}, indent=1))
    assert sum(why == "same device" for why in found.values()) >= 30


@pytest.mark.parametrize(
    ("cuda", "mps", "double", "taken"),
    [
        (True, True, True, "cuda"),
        (False, True, True, "mps"),
        (False, True, False, "cpu"),
        (False, False, True, "cpu"),
    ],
)
def test_auto_takes_cuda_then_mps_then_the_processor(monkeypatch, cuda, mps, double, taken):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(saved, "has_double", lambda device: double)
    assert ComputeConfig().torch_device().type == taken


def test_a_device_is_asked_whether_it_has_double_precision():
    assert saved.has_double("cpu")
    if not torch.cuda.is_available():
        assert not saved.has_double("cuda")


def test_batches_for_cuda_are_pinned_and_copied_without_waiting(monkeypatch):
    sent = []

    def pin(tensor):
        sent.append(("pin", tuple(tensor.shape)))
        return tensor

    def to(tensor, device, non_blocking=False):
        sent.append((str(device), non_blocking))
        return tensor

    batch = Batch(torch.zeros(2, 3), {"a": Batch(torch.ones(2))})
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "pin_memory", pin)
        patch.setattr(torch.Tensor, "to", to)
        batch.sent_to(torch.device("cuda:0"))
    assert sorted(sent) == [("cuda:0", True)] * 2 + [("pin", (2,)), ("pin", (2, 3))]
    assert batch.sent_to(torch.device("meta")).x.device.type == "meta"
