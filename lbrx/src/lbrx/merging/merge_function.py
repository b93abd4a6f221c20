"""A merge method with its parameters, as the function of a computed tensor."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lbrx.dtype import Dtype
from lbrx.merge.methods import METHODS, Parents
from lbrx.storage import PackedStorage
from lbrx.tensor import Tensor
from lbrx.tensor.compilation import Compiled, compile

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

    def rounded(self, sources: Sequence[Tensor], dtype: Dtype) -> Tensor:
        """The result in a type. A merge computes hundreds of pieces of a few shapes with the same
        parameters: from the third on, their commands are replayed."""
        if not self._is_replayable(sources):
            return self(sources).astype(dtype)
        key = (replace(self, name=_ANY_TENSOR), dtype, tuple((s.shape, s.dtype) for s in sources))
        with _LOCK:
            if len(_USES) > _MOST_USES:
                _USES.clear()
            _USES[key] += 1
            is_usual = _USES[key] >= _USUAL
        return _replayed(*key)(*sources) if is_usual else self(sources).astype(dtype)

    def _is_replayable(self, sources: Sequence[Tensor]) -> bool:
        """Whether kernels and parameters decide the result, and no intermediate result of a whole
        tensor would be kept."""
        method = METHODS[self.method]
        on_metal = all(
            source.device == "metal" and not isinstance(source.array.storage, PackedStorage)
            for source in sources
        )
        return method.is_elementwise and not method.is_random and on_metal


_USUAL = 3  # a trace costs as much as a few computations
_REPLAYS, _MOST_USES = 64, 4096
_ANY_TENSOR = "a merged tensor"
_LOCK = threading.Lock()
_USES: Counter[object] = Counter()


@lru_cache(_REPLAYS)
def _replayed(function: MergeFunction, dtype: Dtype, shapes: object) -> Compiled[..., Tensor]:
    """A function for sources of these shapes and types, which is traced at its first call."""
    return compile(lambda *sources: function(sources).astype(dtype))


atexit.register(_replayed.cache_clear)  # while the device that the replays use still exists
