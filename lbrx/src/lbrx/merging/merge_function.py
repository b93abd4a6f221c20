"""A merge method with its parameters, as the function of a computed tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbrx.merging.methods import METHODS, Parents
from lbrx.tensors import Tensor

Values = tuple[tuple[str, Any], ...]
"""Parameters by name, in an order of their own: hashable, unlike a dictionary."""


def frozen(values: Mapping[str, Any]) -> Values:
    """A mapping of parameters as `Values`."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class MergeFunction:
    """A `TensorFunction`. The sources are the models' tensors, the base's first if `has_base`."""

    method: str
    name: str
    """The name of the tensor in the merged model."""
    has_base: bool
    parameters: Values
    own: tuple[Values, ...]
    seed: int = 0
    models: tuple[str, ...] = ()
    """What the models are called in reports, in the order of the sources without the base."""

    @property
    def is_elementwise(self) -> bool:
        return METHODS[self.method].is_elementwise

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        base, tensors = (sources[0], sources[1:]) if self.has_base else (None, sources)
        parents = Parents(
            name=self.name,
            tensors=tuple(tensors),
            base=base,
            parameters=dict(self.parameters),
            own=tuple(dict(values) for values in self.own),
            seed=self.seed,
        )
        return METHODS[self.method].function(parents)
