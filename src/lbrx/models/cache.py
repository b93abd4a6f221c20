"""Keys and values of the tokens so far, and where the tokens of one pass stand among them."""

from __future__ import annotations

from dataclasses import dataclass, field

from lbrx.dtype import Dtype
from lbrx.models.config import ModelConfig
from lbrx.storage import empty_aligned
from lbrx.tensor.core import Tensor
from lbrx.tensor.creation import from_numpy


class KVCache:
    """Room for the keys and values of `capacity` tokens in each of `batch` texts.

    It is taken once, and pages that no token has reached are never touched.
    """

    def __init__(
        self, config: ModelConfig, batch: int, capacity: int, dtype: Dtype, device: str
    ) -> None:
        self.batch = batch
        self.capacity = capacity
        self.device = device
        shape = (config.layers, 2, batch, config.kv_heads, capacity, config.head_size)
        self.store = from_numpy(empty_aligned(shape, dtype), device=device, copy=False)

    def copy_from(self, other: KVCache, length: int) -> None:
        """Take the first tokens of another one, of the same batch."""
        self.store.numpy()[..., :length, :] = other.store.numpy()[..., :length, :]


@dataclass
class Step:
    """One pass of tokens through the layers."""

    cache: KVCache
    positions: Tensor
    """(batch, tokens): those below zero are of tokens that only fill a shorter text up."""
    lengths: Tensor
    """(batch,): how many tokens there are with these."""
    written: list[Tensor] = field(default_factory=list)

    def remember(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put the tokens' keys and values, (batch, heads, tokens, size), into the cache; returns
        all that are there."""
        places = self.positions.unsqueeze(1)
        kept = [
            self.cache.store[layer, part].overwrite(rows, places)
            for part, rows in enumerate((keys, values))
        ]
        self.written += kept
        return kept[0], kept[1]

    def commit(self) -> None:
        """Where an operation has not written in place, do it now."""
        if self.cache.device == "cpu":
            store = self.cache.store.numpy()
            for i, tensor in enumerate(self.written):
                store[i // 2, i % 2] = tensor.numpy()
