"""The losses of models, and their gradients, on a device that computes nothing: torch only follows
shapes, types and devices, and raises where a tensor of the processor meets one of the device.

    python fake_accelerator.py SUBJECT...

prints a line of JSON: for each subject "same device", or the branch that it cannot follow.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

sys.path.insert(0, str(Path(__file__).parents[1]))
import worker_pair

DEVICE = "pretended"
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException)
"""What torch raises where a value decides what is computed next."""


def moved(tensor: Tensor) -> Tensor:
    kind = torch.float32 if tensor.is_floating_point() else tensor.dtype
    return torch.empty(tensor.shape, dtype=kind, device=DEVICE)


def outcome(subject: str) -> str:
    made = worker_pair.trainer(subject, shards=1)
    made.initialise()
    batch = made.rows.batch(made.index(0), train=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in made.model.modules():
            for name, param in module._parameters.items():
                if param is not None:
                    value = torch.nn.Parameter(moved(param), param.requires_grad)
                    module._parameters[name] = value
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = moved(buffer)
        batch = batch.map(moved)
        try:
            for update in made.model.updates():
                if update.params:
                    losses = update.loss(batch)
                    total = torch.stack([term.mean() for term in losses.values()]).sum()
                    assert total.device.type == DEVICE
                    total.backward(inputs=list(update.params))
        except UNKNOWN as error:
            return f"branches on values ({error})"
        except (NotImplementedError, AssertionError) as error:
            if DEVICE in str(error):  # an operator or autocast that no such device has
                return f"not there ({str(error).splitlines()[0]})"
            raise
    return "same device"


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(rename=DEVICE)
    print(json.dumps({subject: outcome(subject) for subject in sys.argv[1:]}), flush=True)
    os._exit(0)  # torch ends the process with an error where such a device is registered
