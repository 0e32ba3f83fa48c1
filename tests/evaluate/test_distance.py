"""Distances between data sets: errors, p-value, and what the command prints and writes."""

import json

import numpy as np
import pytest
import torch

from monge.cli.main import attempt
from monge.core.errors import DataError
from monge.core.rng import make_generator
from monge.core.space import Space
from monge.evaluate.two_sample import (
    distances,
    frequencies,
    jackknife,
    p_value,
    plan,
    sweep_batch_size,
    sweep_epsilon,
)
from monge.plot.transport_sweep import write_sweeps


def points(n: int = 200, seed: int = 0, dims: int = 2) -> torch.Tensor:
    return torch.randn(n, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_shift_is_seen_by_every_metric_and_equal_distributions_by_none():
    near, far = distances(points(), points(seed=1)), distances(points(), points(seed=1) + 2)
    assert near["p_value"].value > 0.05
    assert far["p_value"].value == pytest.approx(0.001)
    for name in set(near) - {"p_value"}:
        assert far[name].value > near[name].value + 3 * far[name].stderr, name
    size = 2 * 2**0.5
    assert far["wasserstein_1"].value == pytest.approx(size, rel=0.1)
    assert far["gaussian_wasserstein_2"].value == pytest.approx(size, rel=0.1)
    for name in ("gaussian_kl", "gaussian_reverse_kl"):
        assert far[name].value == pytest.approx(size**2 / 2, rel=0.25)
    both = far["gaussian_kl"].value + far["gaussian_reverse_kl"].value
    assert far["gaussian_jeffreys"].value == pytest.approx(both)
    sweep = [far[f"smoothed_kl_{bandwidth}"].value for bandwidth in ("0.1", "0.3", "1")]
    assert sweep == sorted(sweep, reverse=True)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    x, y = points(400, dims=1), points(400, seed=1, dims=1)
    found = jackknife(lambda x, y: (x.mean() - y.mean()).abs(), x, y)
    assert found.stderr == pytest.approx((2 / 400) ** 0.5, rel=0.6)


def test_p_values_of_equal_distributions_are_uniform():
    """Not small more often than by chance."""
    found = torch.tensor(
        [p_value(points(20, seed=2 * i), points(25, seed=2 * i + 1), i) for i in range(120)]
    )
    assert (found < 0.1).double().mean() < 0.1 + 3 * (0.09 / 120) ** 0.5
    assert abs(found.mean() - 0.5) < 4 * (1 / 12 / 120) ** 0.5


def test_tables_of_one_finite_entry_are_compared():
    space = Space(kind="label", size=2)
    x, y = torch.tensor([0] * 30 + [1] * 10), torch.tensor([0] * 20 + [1] * 20)
    found = frequencies(x, y, space)
    assert found["total_variation"].value == pytest.approx(0.25)
    assert found["kl"].value == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert found["reverse_kl"].value != found["kl"].value
    assert frequencies(points(), points(), Space(kind="real", shape=(2,))) == {}


def test_a_plan_is_a_coupling():
    found = plan(points(30), points(40, seed=1))
    torch.testing.assert_close(found.matrix.sum(0), torch.full((40,), 1 / 40))
    assert found.converged


def test_few_rows_are_refused():
    with pytest.raises(DataError, match=r"\b5 rows\b.*\b20\b"):
        distances(points(5), points())


@pytest.fixture
def run_distance(capsys):
    def run(*arguments):
        code = attempt(["distance", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def arrays(tmp_path):
    def save(name, x):
        np.save(tmp_path / f"{name}.npy", x)
        return tmp_path / f"{name}.npy"

    return save


def test_the_command_gives_metrics_a_plan_and_a_plot(run_distance, tmp_path):
    code, out, err = run_distance(
        "moons",
        "rings",
        "--rows",
        60,
        "--plan",
        tmp_path / "plan.npz",
        "--plot",
        tmp_path / "plan.png",
        "--json",
    )
    assert (code, err) == (0, "")
    metrics = json.loads(out)["metrics"]
    assert set(metrics) >= {
        "energy",
        "mmd",
        "sliced_wasserstein_2",
        "sinkhorn_divergence",
        "wasserstein_1",
        "wasserstein_2",
        "p_value",
    }
    assert set(metrics["energy"]) == {"value", "kind", "unit", "stderr"}
    assert metrics["p_value"]["value"] < 0.05
    saved = np.load(tmp_path / "plan.npz")
    assert saved["plan"].shape == (60, 60)
    np.testing.assert_allclose(saved["plan"].sum(0), 1 / 60, atol=1e-5)
    reach = saved["f"][:, None] + saved["g"] - ((saved["x"][:, None] - saved["y"]) ** 2).sum(-1)
    np.testing.assert_allclose(np.exp(reach / saved["epsilon"]) / 3600, saved["plan"], atol=1e-5)
    assert (tmp_path / "plan.png").stat().st_size > 5000


def test_the_command_is_seeded_and_prints_a_table(run_distance):
    code, out, _ = run_distance("moons", "moons", "data.seed=3", "--rows", 40)
    assert code == 0
    assert "wasserstein_1" in out
    assert run_distance("moons", "moons", "data.seed=3", "--rows", 40)[1] == out
    assert run_distance("moons", "moons", "data.seed=3", "--rows", 40, "--seed", 1)[1] != out


def test_the_command_compares_labels_by_their_frequencies(run_distance, tmp_path):
    for name, share in (("a", 10), ("b", 30)):
        rows = ["red"] * share + ["blue"] * (60 - share)
        (tmp_path / f"{name}.csv").write_text("colour\n" + "\n".join(rows) + "\n")
    code, out, err = run_distance(tmp_path / "a.csv", tmp_path / "b.csv", "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"]["total_variation"]["value"] == pytest.approx(1 / 3)


def test_the_command_refuses_in_one_line(run_distance, arrays, tmp_path):
    rng = np.random.default_rng(0)
    flat, deep = arrays("flat", rng.normal(size=(50, 2))), arrays("deep", rng.normal(size=(50, 3)))
    holes = rng.normal(size=(50, 2))
    holes[3, 1] = np.nan
    few = arrays("few", rng.normal(size=(8, 2)))
    (tmp_path / "a.csv").write_text("age,size\n" + "1,2.5\n3,4.5\n" * 20)
    (tmp_path / "b.csv").write_text("age,weight\n" + "1,2.5\n3,4.5\n" * 20)
    for arguments, value in [
        ((flat, deep), "shape 3"),
        ((tmp_path / "a.csv", tmp_path / "b.csv"), "size"),
        ((flat, arrays("holes", holes)), "holes"),
        ((flat, flat, "epsilon=0.1"), "epsilon=0.1"),
        ((flat, few), "8 rows"),
        ((deep, deep, "--plot", tmp_path / "p.png"), "--plot"),
        ((flat, "mons"), "moons"),
    ]:
        code, out, err = run_distance(*arguments)
        assert code in (1, 2), arguments
        assert out == ""
        assert len(err.strip().splitlines()) == 1
        assert value in err, err


def test_rows_with_holes_are_left_out_of_both_sides_on_request(run_distance, arrays):
    rows = np.random.default_rng(0).normal(size=(60, 2))
    rows[3, 1] = np.nan
    holes = arrays("holes", rows)
    code, _, err = run_distance(holes, holes, "data.missing=drop", "--json")
    assert code == 0, err


def test_sweeps_show_the_bias_of_minibatches_and_the_ends_of_the_entropy(tmp_path):
    g = make_generator(0)
    x, y = torch.randn(2, 128, 4, generator=g, dtype=torch.float64)
    sizes = sweep_batch_size(x, y)
    plain = [metric.value for metric in sizes.curves["exact"]]
    debiased = [metric.value for metric in sizes.curves["divergence"]]
    assert plain[0] > 1.5 * plain[-1]  # equal distributions, yet far apart in small batches
    assert all(less < more for less, more in zip(debiased, plain, strict=True))
    entropies = sweep_epsilon(x, y + 1)
    cost, (best, *_), (product, *_) = (
        [metric.value for metric in entropies.curves[name]]
        for name in ("cost", "exact", "product")
    )
    assert cost == sorted(cost)
    assert cost[0] == pytest.approx(best, rel=0.02)
    assert cost[-1] == pytest.approx(product, rel=0.05)
    write_sweeps(tmp_path / "sweep.png", [sizes, entropies])
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
