"""Members as one batched network, equal to members one by one."""

import pytest
import torch
from ensembles import classes, regression, trained

from monge import registry
from monge.core.ensemble import Ensemble, StackedModels, ensemble_class
from monge.core.train_config import TrainConfig


@pytest.fixture
def apart():
    """Members of predict.mlp that are trained one by one."""
    owner, right = registry.find("predict.mlp"), registry.find("predict.mlp").supports_vmap
    yield lambda stacked: (setattr(owner, "supports_vmap", stacked), ensemble_class.cache_clear())
    owner.supports_vmap = right
    ensemble_class.cache_clear()


@pytest.mark.parametrize("world", [regression, classes])
@pytest.mark.parametrize("bag", [False, True])
def test_members_as_one_network_equal_members_one_by_one(apart, world, bag):
    space, batch = world()
    member = registry.find("predict.mlp").smallest_config(space)
    member = member.override("net.dropout=0")
    states = []
    for stacked in (True, False):
        apart(stacked)
        config = Ensemble.Config(member=member, members=3, bag=bag)
        trainer = trained(
            config, space, batch, train_config=TrainConfig(batch_size=64, weight_decay=0.1)
        )
        assert len(trainer.updates) == (1 if stacked else 3)
        states.append(trainer.model.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-9, atol=1e-12)
    assert not torch.equal(states[0]["members.0.out.weight"], states[0]["members.1.out.weight"])


@pytest.mark.filterwarnings("error::UserWarning")  # what torch cannot batch, it warns of
def test_members_as_one_network_drop_out_apart():
    space, batch = regression()
    owner = registry.find("predict.mlp")
    member = owner.smallest_config(space).override("net.dropout=0.5")
    model = Ensemble.Config(member=member, members=2).build(space).train()
    first, second = model.members
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        first.out.weight.normal_()
        second.out.weight.copy_(first.out.weight)
    (update,) = model.updates()
    same = batch[torch.cat([torch.arange(64), torch.arange(64)])]
    (loss,) = update.loss(same).values()
    loss.mean().backward()
    slopes = [m.out.weight.grad for m in model.members]
    assert not torch.allclose(*slopes)


def test_only_the_buffers_in_which_members_differ_are_stacked():
    space, _ = regression()
    owner = registry.find("predict.mlp")
    first, second = (owner.smallest_config(space).build(space) for _ in range(2))
    assert dict(first.named_buffers())
    assert StackedModels([first, second]).buffers == {}
    name, own = next(pair for pair in first.named_buffers() if pair[1].numel())
    part, _, leaf = name.rpartition(".")
    first.get_submodule(part).register_buffer(leaf, own + 1)  # its own: statistics are shared
    assert StackedModels([first, second]).buffers.keys() == {f"model.{name}"}
    (found,) = StackedModels([first, second]).buffers.values()
    assert torch.equal(found, torch.stack([own + 1, own]))
