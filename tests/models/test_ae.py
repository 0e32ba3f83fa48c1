"""The autoencoder against principal components, its way back to the data, and its doctor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from small_data import make

from monge.core.batch import Batch
from monge.core.errors import DataError, UsageError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.models.latent._encoder_decoder import ConvEncoderDecoder, DenseEncoderDecoder
from monge.models.latent.ae import AE


def linear(rows: torch.Tensor, latent: int) -> AE:
    """A linear autoencoder at its optimum."""
    torch.manual_seed(0)
    space = Space(kind="real", shape=(rows.shape[1],))
    model = AE.Config(latent=latent, net=DenseEncoderDecoder.Config(depth=0)).build(space).double()
    optimiser = torch.optim.LBFGS(
        model.parameters(),
        max_iter=2000,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = model.loss(Batch(rows))["error"].mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    return model.eval()


def test_the_linear_form_is_pca():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6))
    model = linear(torch.from_numpy(rows), 2)
    pca = PCA(2).fit(rows)
    rebuilt = model.decode(model.encode(torch.from_numpy(rows))).numpy()
    np.testing.assert_allclose(rebuilt, pca.inverse_transform(pca.transform(rows)), atol=1e-4)
    left = ((rows - rebuilt) ** 2).sum(1).mean()
    assert left == pytest.approx(PCA().fit(rows).explained_variance_[2:].sum() * 299 / 300)


@pytest.mark.parametrize("kind", sorted(AE.events))
def test_features_are_turned_back_into_events(kind):
    space, batch = make(kind, 50)
    model = AE.smallest_config(space).build(space)
    back = model.features_to_events(model.features(batch)).reshape(batch.x.shape)
    torch.testing.assert_close(back, batch.x, atol=1e-4, rtol=1e-5)
    wild = model.features_to_events(
        1000 * torch.randn(50, model.features.width, generator=make_generator(0))
    )
    for part, column in zip(space.parts, wild.T, strict=True):
        if part.kind in ("binary", "levels", "label"):
            assert 0 <= column.min() <= column.max() <= max(part.size, 2) - 1


def test_unseen_entries_cost_nothing():
    space, batch = make("real", 20)
    model = AE.smallest_config(space).build(space)
    seen = torch.tensor([True, False]).expand(20, 2)
    one, two = (
        model.loss(Batch(batch.x.clone().index_fill_(1, torch.tensor([1]), value), observed=seen))[
            "error"
        ]
        for value in (0.0, 7.0)
    )
    assert torch.equal(one, two)
    assert (model.loss(batch)["error"] != one).any()


def test_convolutions_reconstruct_images():
    space = Space(kind="levels", shape=(1, 6, 6), size=4, mean=(1.5,), scale=(1.0,))
    config = AE.Config(latent=4, net=ConvEncoderDecoder.Config(widths=(4, 8), width=8))
    torch.manual_seed(0)
    model = config.build(space)
    x = torch.randint(4, (9, 1, 6, 6), generator=make_generator(0)).float()
    assert model.decode(model.encode(x)).shape == x.shape
    model.loss(Batch(x))["error"].mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_decoded_noise_is_unlike_data_and_is_diagnosed():
    """Codes of an autoencoder may lie anywhere (item F2); standardised ones are near N(0, I)."""
    rows = torch.randn(500, 4, generator=make_generator(0), dtype=torch.float64) @ torch.diag(
        torch.tensor([5.0, 3.0, 0.1, 0.1]).double()
    )
    model = linear(rows, 2)
    codes = model.encode(rows)
    spread = torch.cov(codes.T)
    with torch.no_grad():  # codes moved off, the rebuilt rows left as they are
        model.nets.encoder.out.weight.mul_(3.0)
        model.nets.encoder.out.bias.mul_(3.0).add_(10.0)
        model.nets.decoder.out.bias.sub_(
            model.nets.decoder.out.weight @ torch.full((2,), 10 / 3.0).double()
        )
        model.nets.decoder.out.weight.div_(3.0)
    (found,) = model.diagnose(Batch(rows))
    assert found.name == "codes far from the prior"
    assert "vae" in found.remedy
    root = torch.linalg.cholesky(9 * spread)
    mean = model.encode(rows).mean(0)
    with torch.no_grad():
        model.nets.encoder.out.bias.sub_(mean)
        for parameter in (model.nets.encoder.out.weight, model.nets.encoder.out.bias):
            parameter.copy_(torch.linalg.solve(root, parameter))
    assert model.diagnose(Batch(rows)) == []


def test_invalid_settings_are_refused():
    space = Space(kind="real", shape=(3,))
    with pytest.raises(UsageError, match="latent=4"):
        AE.Config(latent=4).build(space)
    with pytest.raises(DataError, match=r"\b2 units.*\b3\b"):
        AE.Config(latent=2).build(space).decode(torch.zeros(1, 3))
