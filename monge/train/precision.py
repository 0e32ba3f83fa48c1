"""Whether a device can compute in bfloat16.

On some processors a product of bfloat16 matrices is an illegal instruction, which ends the process
without a word, so a child process tries it first.
"""

from __future__ import annotations

import functools
import subprocess
import sys

import torch

from ..core.errors import UsageError

TRIAL = """
import torch
x = torch.ones(2, 16, 16, 16, requires_grad=True)
w = torch.ones(16, 16, 3, 3, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    y = torch.nn.functional.conv2d(x, w) @ torch.ones(14, 32)
y.float().sum().backward()
"""
"""A convolution and a matrix product with their gradients."""


def check_bf16(device: torch.device) -> None:
    """Raise UsageError if the device cannot compute in bfloat16."""
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported()
    elif device.type == "mps":
        able = torch.backends.mps.is_macos_or_newer(14, 0)
    else:
        able = processor_has_bf16()
    if not able:
        raise UsageError(
            f"expected a device that computes in bf16, found {device.type}, which does not; "
            "leave --precision out"
        )


@functools.cache
def processor_has_bf16() -> bool:
    """Whether a child process survives products of bfloat16 matrices."""
    command = [sys.executable, "-P", "-c", TRIAL]
    return subprocess.run(command, capture_output=True).returncode == 0
