"""Trunk networks of predictors, and weights and encoders from other runs."""

from __future__ import annotations

import abc
from dataclasses import replace

from torch import Tensor, nn

from ...core.abilities import CanEncode, Given
from ...core.errors import DataError, UsageError
from ...core.model import Model
from ...core.space import Space
from ...nn.inputs.features import Conditions
from ...nn.layers.dropout import GaussianNoise, dropout
from ...nn.mlp import MLP as Network
from ...nn.mlp import side_by_side


class Trunk(nn.Module, abc.ABC):
    """A network from conditions to `width` features of each row, or several side by side."""

    width: int
    members: int = 1

    @abc.abstractmethod
    def forward(self, given: Given) -> Tensor:
        """(B, width), or of several networks (members, B, width)"""


class FlatTrunk(Trunk):
    """Everything given, standardised and side by side."""

    def __init__(self, inputs: Space) -> None:
        super().__init__()
        self.conditions = Conditions(inputs)
        self.width = self.conditions.width

    def forward(self, given: Given) -> Tensor:
        return self.conditions(given, len(next(iter(given.values()))))


class MLPTrunk(Trunk):
    """Hidden layers over everything given, of one network or of `members` side by side."""

    def __init__(self, config: Network.Config, inputs: Space, members: int = 1) -> None:
        super().__init__()
        self.flat, self.members = FlatTrunk(inputs), members
        widths = config.widths or (config.width,) * config.depth
        self.width = widths[-1] if widths else self.flat.width
        before = replace(config, widths=widths[:-1], depth=0)
        nets = [before.build(self.flat.width, config.maps * self.width) for _ in range(members)]
        self.net: Network = nets[0] if members == 1 else side_by_side(nets)
        self.act, self.drop = config.function(), dropout(config.dropout)
        self.noise = GaussianNoise(config.noise)

    def forward(self, given: Given) -> Tensor:  # (B, width) or (members, B, width)
        x = self.flat(given)
        x = x if self.members == 1 else x.expand(self.members, -1, -1)
        return self.drop(self.noise(self.act(self.net(x))))


def encoder_input(space: Space, encoder: Model | None) -> tuple[str | None, Space]:
    """The condition that the encoder reads, if any, and what the trunk reads in the end."""
    if encoder is None:
        return None, space
    if not isinstance(encoder, CanEncode):
        raise UsageError(
            f"encoder: {model_name(type(encoder))} cannot {CanEncode.task}; name "
            "a run of a model that can, such as latent.vae"
        )
    own = encoder.space
    for name, part in space.given.items():
        if (part.kind, part.shape, part.size) == (own.kind, own.shape, own.size) and not own.given:
            return name, replace(space, given={**space.given, name: encoder.latent})
    found = ", ".join(f"{name} ({part})" for name, part in space.given.items())
    raise DataError(
        f"encoder: its run was fitted on {own}{' and conditions' * bool(own.given)}, "
        f"and the inputs here are {found}; fit the encoder on one of them alone"
    )


def copy_weights(source: Model, trunk: Trunk) -> None:
    """Copy the weights of another model's trunk where names and shapes agree."""
    state = trunk.state_dict()
    names = [name for name, _ in trunk.named_parameters()]
    other = {name.removeprefix("trunk."): value for name, value in source.state_dict().items()}
    agreeing = {
        name: value
        for name, value in other.items()
        if name in state and value.shape == state[name].shape
    }
    if not set(names) & set(agreeing):
        raise UsageError(
            f"start: {model_name(type(source))} shares no weights with this trunk; "
            "name a run of the same network"
        )
    trunk.load_state_dict(agreeing, strict=False)


def model_name(model: type[Model]) -> str:
    """The name of a model in the registry, such as predict.mlp."""
    return model.Config.tag.removeprefix("model/")
