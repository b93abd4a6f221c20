"""Keys and values of the tokens so far, and where the tokens of one pass stand among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike
from lbrx.errors import LbrxError
from lbrx.models.config import ModelConfig
from lbrx.storage import empty_aligned
from lbrx.tensor.core import Tensor, call
from lbrx.tensor.creation import from_numpy


@dataclass(frozen=True)
class CacheType:
    """How keys and values are stored: as numbers, or in blocks of quantized ones."""

    name: str
    dtype: Dtype
    """Of the stored elements."""
    features: int = 1
    """That a block is made of."""
    elements: int = 1
    """Of a block."""

    @property
    def quantized(self) -> bool:
        return self.features > 1

    @property
    def itemsize(self) -> float:
        """Bytes of a feature, with its share of the scale."""
        return self.elements * self.dtype.itemsize / self.features


CACHE_TYPES = {
    kind.name: kind
    for kind in (
        *(CacheType(dtype.name, dtype) for dtype in (dt.float16, dt.bfloat16, dt.float32)),
        CacheType("q8_0", dt.uint8, features=32, elements=34),
    )
}
SHORT_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def find_cache_type(given: DtypeLike, head_size: int) -> CacheType:
    """The type of a name, or of an element type, for heads of a size."""
    name = given if isinstance(given, str) else dt.parse(given).name
    kind = CACHE_TYPES.get(SHORT_NAMES.get(name, name))
    if kind is None:
        known = ", ".join(CACHE_TYPES)
        raise LbrxError(f"a cache of {name} is not possible: choose one of {known}")
    if head_size % kind.features:
        raise LbrxError(
            f"heads of {head_size} features are no whole blocks of {kind.name}, which have "
            f"{kind.features}: choose float16"
        )
    return kind


class KVCache:
    """Room for the keys and values of `capacity` tokens in each of `batch` texts.

    It is taken once; what no token has reached is not written.
    """

    def __init__(
        self, config: ModelConfig, batch: int, capacity: int, kind: CacheType, device: str
    ) -> None:
        self.kind = kind
        self.batch = batch
        self.capacity = capacity
        self.device = device
        width = config.head_size // kind.features * kind.elements
        shape = (config.layers, 2, batch, config.kv_heads, capacity, width)
        self.store = from_numpy(empty_aligned(shape, kind.dtype), device=device, copy=False)

    def copy_from(self, other: KVCache, length: int) -> None:
        """Take the first tokens of another one, of the same batch."""
        self.store.numpy()[..., :length, :] = other.store.numpy()[..., :length, :]


@dataclass
class ForwardStep:
    """One pass of tokens through the layers."""

    cache: KVCache
    positions: Tensor
    """(batch, tokens): those below zero are of tokens that only fill a shorter text up."""
    lengths: Tensor
    """(batch,): how many tokens there are with these."""
    written: list[Tensor] = field(default_factory=list)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, **rules: Any
    ) -> Tensor:
        """Put the tokens' keys and values, (batch, heads, tokens, size), into the cache; returns
        what their queries see of all that are there."""
        places = self.positions.unsqueeze(1)
        kind = self.cache.kind
        put = "overwrite_blocks" if kind.quantized else "overwrite"
        kept = [
            call(put, self.cache.store[layer, part], rows, places)
            for part, rows in enumerate((keys, values))
        ]
        self.written += kept
        look = "quantized_attention" if kind.quantized else "attention"
        return call(look, queries, *kept, None, self.lengths, causal=True, **rules)

    def commit(self) -> None:
        """Where an operation has not written in place, do it now."""
        if self.cache.device == "cpu":
            store = self.cache.store.numpy()
            for i, tensor in enumerate(self.written):
                store[i // 2, i % 2] = tensor.numpy()
