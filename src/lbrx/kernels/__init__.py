"""The kernel library: one module a family, each with its shaders under the same stem."""

from lbrx.kernels import (
    attention,
    elementwise,
    indexing,
    matmul,
    matvec,
    movement,
    mps,
    norm,
    quantized,
    random,
    reduction,
    rope,
    scan,
    softmax,
    sorting,
)
from lbrx.kernels.registry import FAMILIES, RUNNERS, deterministic, forced

__all__ = [
    "FAMILIES",
    "RUNNERS",
    "attention",
    "deterministic",
    "elementwise",
    "forced",
    "indexing",
    "matmul",
    "matvec",
    "movement",
    "mps",
    "norm",
    "quantized",
    "random",
    "reduction",
    "rope",
    "scan",
    "softmax",
    "sorting",
]
