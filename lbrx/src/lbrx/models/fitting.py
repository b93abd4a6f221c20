"""Which Apple chips have the memory for a model, and how fast they could run it at best.

Modelled from sizes and the chip table, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.metal.device import chips
from lbrx.models.config import ModelConfig
from lbrx.models.memory_plan import MemoryPlan, plan_memory

# The share of memory that macOS lets a GPU use by default.
WORKING_SET = 0.75
_CACHED = 2  # bytes: keys and values are float16


@dataclass(frozen=True)
class Fit:
    """A chip, the memory sizes that suffice, and an upper bound of its speed."""

    chip: str
    enough: tuple[int, ...]
    """In GiB; empty if the model is too large for every size the chip is sold with."""
    tokens_per_second: float


def needs(config: ModelConfig, weights: int, context: int) -> MemoryPlan:
    """The memory that a model needs for a text of that length."""
    return plan_memory(config, weights, context, _CACHED, limit=0)


def fits(need: MemoryPlan) -> list[Fit]:
    """One for each chip. Generation is taken to be limited by reading weights and cache."""
    result = []
    for name, chip in chips().items():
        enough = tuple(size for size in chip.memory if need.total <= size * 2**30 * WORKING_SET)
        rate = chip.bandwidth / (need.weights + need.cache)
        result.append(Fit(name, enough, rate if enough else 0.0))
    return result
