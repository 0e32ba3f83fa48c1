"""Cost of a model: parameters, training time, sampling speed and memory."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import torch

from ..core.metric import Metric
from ..core.model import Model, device_of

MEGABYTE = 1e6


def cost(
    model: Model, speed: float | None = None, seconds: float | None = None
) -> dict[str, Metric]:
    """Parameters, seconds of training, samples per second, and peak memory of this process or of
    the model's device, as far as they are known."""
    count = sum(p.numel() for p in model.parameters())
    found = {"parameters": Metric(count, "exact", 0.0, "numbers")}
    if seconds is not None:
        found["train_seconds"] = Metric(seconds, "exact", 0.0, "s")
    if speed is not None:
        found["samples_per_second"] = Metric(speed, "estimate", 0.0, "1/s")
    if (taken := memory(device_of(model))) is not None:
        found["peak_memory"] = Metric(taken / MEGABYTE, "exact", 0.0, "MB")
    return found


def memory(device: torch.device) -> float | None:
    """Peak bytes so far; None if the system does not report it."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if find_spec("resource") is None:
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else 1024 * most)  # kilobytes elsewhere
