"""Whether a model fits the device, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.errors import LbrxError
from lbrx.models.config import ModelConfig

CHUNK = 512  # tokens of a prompt in one pass: enough for products of matrices to be efficient


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a model will use."""

    weights: int
    cache: int
    scratch: int
    limit: int
    tokens: int
    """That the cache is for."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.scratch

    @property
    def each(self) -> int:
        """Of a token in the cache."""
        return self.cache // self.tokens

    def __str__(self) -> str:
        parts = f"weights {_size(self.weights)}, cache of {self.tokens:,} tokens "
        return (
            f"{parts}{_size(self.cache)}, scratch {_size(self.scratch)}: {_size(self.total)} of "
            f"{_size(self.limit)}"
        )

    def check(self) -> None:
        """Refuse what does not fit, with what would help."""
        if self.total <= self.limit:
            return
        fitting = (self.limit - self.weights - self.scratch) // max(self.each, 1)
        if fitting >= 256:
            remedy = f"a context of {fitting // 256 * 256:,} tokens fits"
        else:
            remedy = "take a smaller or a more strongly quantized model"
        raise LbrxError(f"the model does not fit the device's memory ({self}): {remedy}")

    def check_cache(self, texts: int, tokens: int) -> None:
        """Refuse texts whose cache does not fit beside the model."""
        wanted = texts * tokens * self.each
        left = self.limit - self.weights - self.scratch
        if texts > 1 and wanted > left:
            raise LbrxError(
                f"{texts:,} texts of {tokens:,} tokens need a cache of {_size(wanted)}, and "
                f"{_size(left)} are left beside the model: give fewer at once, or lower max_tokens"
            )


def plan(config: ModelConfig, weights: int, tokens: int, itemsize: float, limit: int) -> MemoryPlan:
    """For texts of so many tokens in all, and cached elements of a size."""
    wide = 6 * config.hidden + 3 * config.intermediate + 4 * config.heads * config.head_size
    # A product with many rows may expand one matrix of a layer.
    expanded = max(config.intermediate, config.heads * config.head_size) * config.hidden
    scratch = 4 * (CHUNK * wide + expanded + 2 * config.vocabulary)
    return MemoryPlan(weights, config.cache_bytes(tokens, itemsize), scratch, limit, tokens)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
