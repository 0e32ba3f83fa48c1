"""A diffusion model that is known exactly: two normals on a line, selected by a label."""

from __future__ import annotations

import torch
from torch import Tensor

from monge.core.space import Space
from monge.models.diffusion._conditioning import ConditionEncoder, Conditioning
from monge.models.diffusion._guidance import NoiseConditionalClassifier
from monge.models.diffusion._parameterisation import DenoiserPrediction
from monge.models.diffusion._sampling import DiffusionSampling
from monge.models.diffusion._units import Units
from monge.prob.noise_schedule import NoiseSchedule
from monge.verify._noisy_mixtures import NoisyGaussianMixture

LABEL = Space(kind="label", size=2, name="label", rows=100)
LINE = Space(kind="real", shape=(1,), name="x", mean=(0.0,), scale=(1.0,), rows=100)
MEANS = torch.tensor([[-0.8], [0.8]]).double()
SPREAD = 0.45


def normals(*which: int) -> NoisyGaussianMixture:
    """One of the two, or both in equal parts."""
    share = torch.full((len(which),), 1 / len(which)).double()
    return NoisyGaussianMixture(
        share, MEANS[list(which)], torch.full((len(which),), SPREAD).double()
    )


class Known(DiffusionSampling):
    """p(x | label) of one of two normals, whose denoiser is known in closed form."""

    def __init__(self, config: DiffusionSampling.Config, space: Space) -> None:
        super().__init__(config, space)
        self.name = "known"
        self.units, self.condition_encoder = (
            Units(space).double(),
            ConditionEncoder(space).double(),
        )
        self.schedule, self.clusters = NoiseSchedule.Config().build(), None

    def predict(
        self, z: Tensor, t: Tensor, conditions: Conditioning | None = None
    ) -> DenoiserPrediction:
        alpha, sigma = self.schedule.alpha(t)[:, None], self.schedule.sigma(t)[:, None]
        x = normals(0, 1).denoised(z, alpha, sigma)
        if conditions is not None and conditions.vector.shape[1]:  # a flag, then the label
            each = [normals(label).denoised(z, alpha, sigma) for label in (0, 1)]
            named = torch.where(conditions.vector[:, 2:] > 0, each[1], each[0])
            x = torch.where(conditions.vector[:, :1] > 0, named, x)
        return DenoiserPrediction(z, alpha, sigma, "x0", x)

    def sample(self, n, given=None, options=None, generator=None):
        *_, last = self.stream(n, given, options, generator)
        return last

    def loss(self, batch):
        raise NotImplementedError

    @classmethod
    def smallest_config(cls, space):
        return cls.Config()


class Exact(NoiseConditionalClassifier, torch.nn.Module):
    """p(label | z) of the same two normals."""

    space = LABEL
    input_space = LINE

    def __init__(self, low: float = -12.0, high: float = 12.0) -> None:
        super().__init__()
        self.ends = low, high

    def log_snr_range(self) -> tuple[float, float]:
        return self.ends

    def log_prob_noisy(self, z: Tensor, log_snr: Tensor, y: Tensor) -> Tensor:
        alpha, sigma = log_snr.sigmoid().sqrt()[:, None], (-log_snr).sigmoid().sqrt()[:, None]
        log_p = normals(0, 1).log_each(z, alpha, sigma).log_softmax(1)
        return log_p.gather(1, y[:, None])[:, 0]
