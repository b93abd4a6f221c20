"""The KV cache: keys and values of earlier tokens, and one forward step that extends them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.errors import LbrxError
from lbrx.models.config import ModelConfig
from lbrx.tensors.core import Tensor, call, calls
from lbrx.tensors.long_lived import new_cache, write


@dataclass(frozen=True)
class CacheType:
    """How keys and values are stored: as floats, or in quantized blocks."""

    name: str
    dtype: Dtype
    """The dtype of the stored elements; bytes where they are quantized."""
    block_values: int = 1
    """Number of values in a block."""
    block_elements: int = 1
    """Number of stored elements in a block."""

    @property
    def quantized(self) -> bool:
        return self.block_values > 1

    @property
    def itemsize(self) -> float:
        """Bytes per value, with its share of the block's scale."""
        return self.block_elements * self.dtype.itemsize / self.block_values


CACHE_TYPES = {
    kind.name: kind
    for kind in (
        *(CacheType(dtype.name, dtype) for dtype in (dt.float16, dt.bfloat16, dt.float32)),
        CacheType("q8_0", dt.uint8, block_values=32, block_elements=34),
    )
}
SHORT_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def find_cache_type(given: DtypeLike, head_size: int) -> CacheType:
    """The cache type of a name or dtype. Raises LbrxError if it does not suit the head size."""
    name = given if isinstance(given, str) else dt.parse(given).name
    kind = CACHE_TYPES.get(SHORT_NAMES.get(name, name))
    if kind is None:
        short = {long: f" ({word})" for word, long in SHORT_NAMES.items()}
        known = ", ".join(f"{kind}{short.get(kind, '')}" for kind in CACHE_TYPES)
        raise LbrxError(f"{name} is not a type of cache: choose one of {known}")
    if head_size % kind.block_values:
        raise LbrxError(
            f"a cache of {kind.name} needs a head size that is a multiple of {kind.block_values}, "
            f"and the model's is {head_size}: choose float16"
        )
    return kind


class KVCache:
    """Memory for the keys and values of `capacity` tokens in each of `batch` texts, and for the
    states of recurrent layers, which are those after the last token and cannot be rolled back.

    It is allocated uninitialised and all at once; pages that no token has reached stay untouched.
    """

    def __init__(
        self, config: ModelConfig, batch: int, capacity: int, kind: CacheType, device: str
    ) -> None:
        self.kind = kind
        self.batch = batch
        self.capacity = capacity
        self.seen = capacity
        self.device = device
        width = config.head_size // kind.block_values * kind.block_elements
        self.place = {layer: i for i, layer in enumerate(config.attending_layers)}
        shape = (len(self.place), 2, batch, config.kv_heads, capacity, width)
        self.store = new_cache(shape, kind.dtype, device)
        self.states = tuple(
            tuple(new_cache((batch, *shape), dt.float32, device) for shape in shapes)
            for shapes in config.states
        )

    def copy_from(self, other: KVCache, length: int) -> None:
        """Copy the first `length` tokens of another cache of the same batch, and its states."""
        self.write(other.store[..., :length, :])
        self.restore(other.snapshot())

    def snapshot(self) -> list[Tensor]:
        """Copies of the states of recurrent layers, as they are after the last token."""
        return [state + 0 for states in self.states for state in states]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Replace the states by those of a snapshot of the same model and batch."""
        own = [state for states in self.states for state in states]
        for state, values in zip(own, snapshot, strict=True):
            write(state, values)

    def slots(self, first: int, count: int, seen: int) -> KVCache:
        """Some of the texts, as a cache that shares this one's memory. Their attention looks
        through the first `seen` tokens alone."""
        view = copy(self)
        view.batch, view.seen = count, seen
        view.store = self.store[:, :, first : first + count]
        rows = slice(first, first + count)
        view.states = tuple(tuple(state[rows] for state in states) for states in self.states)
        return view

    def put(self, layer: int, part: int, rows: Tensor, places: Tensor) -> Tensor:
        """A layer's keys (part 0) or values (part 1) with rows written at places in the cache's
        own memory. rows are (batch, heads, tokens, size), places (batch, 1, tokens)."""
        operation = "overwrite_blocks" if self.kind.quantized else "overwrite"
        return call(operation, self.store[self.place[layer], part], rows, places)

    def write(self, values: Tensor) -> None:
        """Replace the keys and values of the first tokens by stored ones, of the same layout."""
        write(self.store[..., : values.shape[-2], :], values)


@dataclass
class ForwardStep:
    """One pass of some tokens of each text through all layers of a network."""

    cache: KVCache
    positions: Tensor
    """(batch, tokens). Positions below zero are padding in front of a shorter text."""
    lengths: Tensor
    """(batch,): the number of tokens of each text, with those of this step."""
    written: list[Tensor] = field(default_factory=list)
    """The cache's keys and values of each layer after this step's tokens are written."""

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Write the tokens' keys and values into the cache, and attend to all tokens in it.

        All are (batch, heads, tokens, size), and so is the result. `options` are those of the
        operation `attention`: window, scale and cap; `sinks` are its operand.
        """
        places = self.positions.unsqueeze(1)
        kept = [
            self.cache.put(layer, part, rows, places) for part, rows in enumerate((keys, values))
        ]
        return self._look(queries, kept, options, sinks)

    def recur(self, layer: int, state: int, operation: str, *operands: Any, **rule: Any) -> Tensor:
        """The result of a recurrent operation, which continues a layer's state of this number."""
        kept: Tensor
        result: Tensor
        kept, result = calls(operation, self.cache.states[layer][state], *operands, **rule)
        self.written.append(kept)
        return result

    def attend_rows(
        self, layer: int, queries: Tensor, rows: Tensor, values: int, **options: Any
    ) -> Tensor:
        """`attend` where the first features of a token's one row of keys are its values."""
        kept = self.cache.put(layer, 0, rows, self.positions.unsqueeze(1))
        kind = self.cache.kind
        width = values // kind.block_values * kind.block_elements
        return self._look(queries, [kept, kept[..., :width]], options)

    def _look(
        self,
        queries: Tensor,
        kept: list[Tensor],
        options: dict[str, Any],
        sinks: Tensor | None = None,
    ) -> Tensor:
        self.written += kept
        if self.cache.seen < self.cache.capacity:
            kept = [each[..., : self.cache.seen, :] for each in kept]
        look = "quantized_attention" if self.cache.kind.quantized else "attention"
        return call(look, queries, *kept, None, self.lengths, sinks, causal=True, **options)
