"""Directed graphical models: enumeration, independence of random tables, Chow-Liu trees."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from monge.core.batch import Batch
from monge.core.errors import UsageError
from monge.core.space import Space
from monge.models.baseline.chow_liu import ChowLiuTree
from monge.prob.graphical import BayesianNetwork, Node


def normalised(*sizes):
    found = torch.rand(*sizes, dtype=torch.float64) + 0.05
    return found / found.sum(-1, keepdim=True)


@pytest.fixture
def net():
    """Two latents and two observations: p(x1 | z1, z2) p(x2 | z2) p(z1) p(z2 | z1)."""
    torch.manual_seed(0)
    return BayesianNetwork(
        {
            "x1": Node(normalised(2, 3, 4), ["z1", "z2"]),
            "x2": Node(normalised(3, 2), ["z2"]),
            "z2": Node(normalised(2, 3), ["z1"]),
            "z1": Node(normalised(2)),
        }
    )


def enumerate_all(net):
    """Every state of the nodes, and its probability as a product of table entries."""
    sizes = [net.nodes[name].conditional.shape[-1] for name in net.order]
    states = [
        dict(zip(net.order, each, strict=True)) for each in itertools.product(*map(range, sizes))
    ]
    weights = []
    for state in states:
        weight = 1.0
        for name, node in net.nodes.items():
            weight *= float(node.conditional[tuple(state[p] for p in node.parents)][state[name]])
        weights.append(weight)
    return states, torch.tensor(weights, dtype=torch.float64)


def test_posteriors_are_those_of_enumeration(net):
    states, weights = enumerate_all(net)
    assert float(weights.sum()) == pytest.approx(1)
    for query, evidence in [
        (["z1"], {"x1": 2, "x2": 1}),
        (["z1", "z2"], {"x1": 0}),
        (["x2", "z1"], {}),
        (["x1"], {"z1": 1, "x2": 0}),
    ]:
        found = net.posterior(query, evidence)
        due = torch.zeros_like(found)
        for state, weight in zip(states, weights, strict=True):
            if all(state[name] == value for name, value in evidence.items()):
                due[tuple(state[name] for name in query)] += weight
        torch.testing.assert_close(found, due / due.sum())
    torch.testing.assert_close(
        net.marginal([], {"x1": 3}), weights[[state["x1"] == 3 for state in states]].sum()
    )


def test_log_prob_and_ancestral_samples_follow_the_joint(net):
    states, weights = enumerate_all(net)
    values = {name: torch.tensor([state[name] for state in states]) for name in net.order}
    torch.testing.assert_close(net.log_prob(values).exp(), weights)
    drawn = net.sample(40_000, torch.Generator().manual_seed(1))
    pair = drawn["x1"] * 2 + drawn["x2"]
    share = torch.bincount(pair, minlength=8) / 40_000
    due = net.posterior(["x1", "x2"], {}).flatten()
    assert float((share - due).abs().max()) < 5 * (0.25 / 40_000) ** 0.5
    acted = net.sample(40_000, torch.Generator().manual_seed(1), do={"z2": 1})
    share = torch.bincount(acted["z1"], minlength=2) / 40_000
    assert float((share - net.nodes["z1"].conditional).abs().max()) < 0.015


@pytest.mark.parametrize("seed", range(6))
def test_d_separation_is_independence_for_random_tables(seed):
    """Given sets that separate leave no dependence; sets that do not leave some, for tables that
    are random."""
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    names = list("abcde")
    nodes = {}
    for place, name in enumerate(names):
        parents = [other for other in names[:place] if float(torch.rand((), generator=g)) < 0.4]
        nodes[name] = Node(normalised(*[2] * len(parents), 2), parents)
    net = BayesianNetwork(nodes)
    for a, b in itertools.combinations(names, 2):
        rest = [name for name in names if name not in (a, b)]
        for count in range(4):
            for given in itertools.combinations(rest, count):
                gap = 0.0
                for state in itertools.product(range(2), repeat=count):
                    joint = net.posterior([a, b], dict(zip(given, state, strict=True)))
                    apart = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
                    gap = max(gap, float((joint - apart).abs().max()))
                assert net.d_separated(a, b, given) == (gap < 1e-10), (a, b, given)


def test_conditionals_may_be_networks():
    torch.manual_seed(0)
    layer = nn.Linear(1, 2)

    def emit(z):
        mean, log_scale = layer(z[:, None]).unbind(1)
        return Normal(mean, log_scale.exp())

    net = BayesianNetwork({"z": Node(lambda: Normal(0.0, 1.0)), "x": Node(emit, ["z"])})
    found = net.sample(50, torch.Generator().manual_seed(3))
    again = net.sample(50, torch.Generator().manual_seed(3))
    assert torch.equal(found["x"], again["x"])
    due = Normal(0.0, 1.0).log_prob(found["z"]) + emit(found["z"]).log_prob(found["x"])
    torch.testing.assert_close(net.log_prob(found), due)
    with pytest.raises(UsageError, match="z"):
        net.posterior("x", {})


def test_a_chow_liu_tree_is_such_a_network():
    torch.manual_seed(0)
    z = torch.rand(400, 1) < 0.5
    x = (z ^ (torch.rand(400, 5) < 0.2)).float()
    space = Space(kind="binary", shape=(5,), size=2, mean=(0.5,), scale=(0.5,), rows=400)
    tree = ChowLiuTree.Config().build(space)
    tree.fit_rows(Batch(x))
    net = tree.network()
    values = {f"x{i}": x[:20, i].long() for i in range(5)}
    own = tree.likelihood(Batch(x[:20])).value.double()
    torch.testing.assert_close(net.log_prob(values), own, rtol=1e-5, atol=1e-5)
    seen = torch.tensor([[True, False, True, False, False]])
    value = tree.likelihood(Batch(torch.ones(1, 5), observed=seen)).value.double()
    found = net.marginal([], {"x0": 1, "x2": 1}).log()[None]
    torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "nodes",
    [
        {"a": Node(torch.tensor([0.5, 0.4]))},
        {"a": Node(torch.eye(2), ["b"]), "b": Node(torch.eye(2), ["a"])},
        {"a": Node(torch.eye(2), ["c"])},
        {"a": Node(torch.tensor([0.5, 0.5])), "b": Node(torch.eye(3), ["a"])},
        {"a": Node(lambda: Normal(0.0, 1.0)), "b": Node(torch.eye(2), ["a"])},
    ],
)
def test_what_is_no_network_is_refused(nodes):
    with pytest.raises(UsageError):
        BayesianNetwork(nodes)


def test_impossible_questions_are_refused(net):
    for query, evidence in [
        ("z3", {}),
        ("z1", {"z1": 0}),
        ("z1", {"x1": 4}),
    ]:
        with pytest.raises(UsageError):
            net.posterior(query, evidence)
    with pytest.raises(UsageError, match="x2"):
        net.log_prob({"x1": torch.zeros(1), "z1": torch.zeros(1), "z2": torch.zeros(1)})


def test_a_posterior_given_what_cannot_happen_is_refused():
    never = {"a": Node(torch.tensor([1.0, 0.0])), "b": Node(torch.eye(2), ["a"])}
    with pytest.raises(UsageError):
        BayesianNetwork(never).posterior("a", {"b": 1})
