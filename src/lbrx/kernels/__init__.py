"""The kernel library: one module a family, each with its shaders under the same stem."""

from lbrx.kernels import (
    attention,
    elementwise,
    indexing,
    matmul,
    movement,
    mps,
    norm,
    random,
    reduction,
    rope,
    softmax,
)
from lbrx.kernels.device import MetalDevice
from lbrx.kernels.registry import FAMILIES, RUNNERS, deterministic, forced

__all__ = [
    "FAMILIES",
    "RUNNERS",
    "MetalDevice",
    "attention",
    "deterministic",
    "elementwise",
    "forced",
    "indexing",
    "matmul",
    "movement",
    "mps",
    "norm",
    "random",
    "reduction",
    "rope",
    "softmax",
]
