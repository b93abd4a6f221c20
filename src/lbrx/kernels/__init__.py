"""The kernel library: one module a family, each with its shaders under the same stem."""

from lbrx.kernels import elementwise, matmul, movement
from lbrx.kernels.device import MetalDevice
from lbrx.kernels.registry import FAMILIES, RUNNERS, deterministic, forced

__all__ = [
    "FAMILIES",
    "RUNNERS",
    "MetalDevice",
    "deterministic",
    "elementwise",
    "forced",
    "matmul",
    "movement",
]
