"""Parameters by the beginning of their names: `trunk` is every parameter inside model.trunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from ..core.error import WordError, nearest
from ..core.model import Model


def within(name: str, head: str) -> bool:
    return name == head or name.startswith(f"{head}.")


def beginnings(names: Iterable[str]) -> Iterator[str]:
    """Every beginning of the names that ends where a dot stands, and the names."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:size]) for size in range(1, len(parts) + 1))


def check(heads: Iterable[str], model: Model, word: str) -> None:
    """Refuse what begins no parameter's name."""
    names = [name for name, _ in model.named_parameters()]
    for head in heads:
        if not any(within(name, head) for name in names):
            known = dict.fromkeys(beginnings(names))
            close = nearest(head, known)
            if "did you mean" not in close:
                close = nearest(head, dict.fromkeys(name.split(".")[0] for name in names))
            raise WordError(f"{word}: no parameter's name begins with {head!r}{close}")


def freeze(model: Model, heads: tuple[str, ...]) -> list[nn.Module]:
    """Hold the parameters under `heads` still; the modules that are still as a whole, and so are
    used as they would be after training: without dropout, with the statistics they have."""
    check(heads, model, "train.freeze")
    for name, param in model.named_parameters():
        if any(within(name, head) for head in heads):
            param.requires_grad_(False)
    return [model.parts, *(module for name, module in model.named_modules() if name in heads)]


def factors(model: Model, rates: Mapping[str, float]) -> dict[int, float]:
    """What multiplies the rate of each parameter (by its id) that the longest of the beginnings
    fits."""
    check(rates, model, "train.rates")
    found = {}
    for name, param in model.named_parameters():
        fitting = [head for head in rates if within(name, head)]
        if fitting:
            found[id(param)] = rates[max(fitting, key=len)]
    return found
