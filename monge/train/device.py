"""Where and how arithmetic is done: device, precision, threads. No part of the law."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.errors import UsageError


@dataclass(frozen=True)
class ComputeConfig:
    device: str = "auto"  # auto, cpu, cuda, mps
    precision: str = "auto"  # of losses: fp32, bf16, or auto: that of the run, fp32 of a new one
    threads: int = 0  # 0 leaves torch's own number
    compiled: bool = False

    def torch_device(self) -> torch.device:
        """The device, once torch is told how many threads it has."""
        if self.threads:
            torch.set_num_threads(self.threads)
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        here = {
            "cpu": True,
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        }
        if not here.get(name.partition(":")[0], False):
            raise UsageError(f"there is no device {name!r} here; use --device cpu")
        return torch.device(name)
