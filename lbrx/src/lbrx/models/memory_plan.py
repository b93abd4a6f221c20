"""Whether a model fits the device's memory, before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.errors import LbrxError
from lbrx.models.config import ModelConfig

CHUNK = 512  # prompt tokens per forward step: enough for efficient matrix products


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes that a model uses at most, and the limit of its device."""

    weights: int
    cache: int
    """For the keys and values of a text as long as the context."""
    scratch: int
    """For intermediate results while a prompt is computed."""
    limit: int
    tokens: int
    """The context: the number of tokens that the cache has room for."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.scratch

    @property
    def bytes_per_token(self) -> int:
        """The size of one token in the cache."""
        return self.cache // self.tokens

    def __str__(self) -> str:
        parts = f"weights {_size(self.weights)}, cache of {self.tokens:,} tokens "
        return (
            f"{parts}{_size(self.cache)}, scratch {_size(self.scratch)}: {_size(self.total)} of "
            f"{_size(self.limit)}"
        )

    def check(self) -> None:
        """Raise LbrxError if the total exceeds the limit, with the context that would fit."""
        if self.total <= self.limit:
            return
        fitting = (self.limit - self.weights - self.scratch) // max(self.bytes_per_token, 1)
        if fitting >= 256:
            remedy = f"a context of {fitting // 256 * 256:,} tokens fits"
        else:
            remedy = "use a smaller model, or one quantized to fewer bits"
        raise LbrxError(f"the model does not fit the device's memory ({self}): {remedy}")

    def check_cache(self, texts: int, tokens: int) -> None:
        """Raise LbrxError if the cache of a batch does not fit beside the model."""
        wanted = texts * tokens * self.bytes_per_token
        left = self.limit - self.weights - self.scratch
        if texts > 1 and wanted > left:
            raise LbrxError(
                f"{texts:,} texts of {tokens:,} tokens need a cache of {_size(wanted)}, and "
                f"{_size(left)} are left beside the model: give fewer prompts at once, or lower "
                "max_tokens"
            )


def plan_memory(
    config: ModelConfig, weights: int, tokens: int, itemsize: float, limit: int
) -> MemoryPlan:
    """The plan for a context of `tokens` and a cache of `itemsize` bytes per value."""
    wide = 6 * config.hidden + 3 * config.intermediate + 4 * config.heads * config.head_size
    # A matrix product with many rows may dequantize one matrix of a layer.
    expanded = max(config.intermediate, config.heads * config.head_size) * config.hidden
    scratch = 4 * (CHUNK * wide + expanded + 2 * config.vocabulary)
    cache = config.cache_bytes(tokens, itemsize) + config.state_bytes
    return MemoryPlan(weights, cache, scratch, limit, tokens)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
