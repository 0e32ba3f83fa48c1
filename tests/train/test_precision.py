"""bfloat16 is refused before the first step where a product of matrices would end the process."""

import pytest
import torch
from worker_pair import trainer

from monge.core.errors import UsageError
from monge.run.saved import ComputeConfig
from monge.train import precision
from monge.train.trainer import Trainer


@pytest.fixture
def tried(monkeypatch):
    """Try another program in place of the products."""

    def use(program):
        monkeypatch.setattr(precision, "TRIAL", program)
        precision.processor_has_bf16.cache_clear()

    yield use
    precision.processor_has_bf16.cache_clear()


@pytest.mark.parametrize(
    "program", ["import os, signal; os.kill(os.getpid(), signal.SIGILL)", "raise RuntimeError"]
)
def test_a_processor_that_cannot_is_refused_by_name(tried, program):
    tried(program)
    made = trainer("autoregressive.made:binary:")
    with pytest.raises(UsageError, match="cpu"):
        Trainer(made.model, made.rows, made.train_config, precision="bf16")


def test_a_processor_is_tried_once(tried):
    tried("")
    assert precision.processor_has_bf16()
    tried_again = precision.processor_has_bf16.cache_info()
    precision.check_bf16(torch.device("cpu"))
    assert precision.processor_has_bf16.cache_info().misses == tried_again.misses == 1


def test_each_process_of_a_machine_takes_a_cuda_device_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ComputeConfig().torch_device() == torch.device("cuda")
    for rank, device in enumerate(("cuda:0", "cuda:1", "cuda:0")):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert ComputeConfig().torch_device() == torch.device(device)
