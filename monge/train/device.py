"""Device, precision and threads of a computation; none of them is part of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.errors import UsageError


@dataclass(frozen=True)
class ComputeConfig:
    """Where a model computes and in which precision."""

    device: str = "auto"  # auto, cpu, cuda, mps
    precision: str = "auto"  # of losses: fp32, bf16, or auto: that of the run, fp32 for a new run
    threads: int = 0  # 0: torch's default
    compiled: bool = False

    def torch_device(self) -> torch.device:
        """The torch device; also sets the number of threads."""
        if self.threads:
            torch.set_num_threads(self.threads)
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        available = {
            "cpu": True,
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        }
        if not available.get(name.partition(":")[0], False):
            raise UsageError(f"device {name!r} is not available on this machine; use --device cpu")
        return torch.device(name)
