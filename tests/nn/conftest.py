"""Networks compared with formulas are made of double precision."""

import pytest
import torch


@pytest.fixture
def doubles():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
