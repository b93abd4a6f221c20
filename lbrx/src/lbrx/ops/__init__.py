"""Every operation of lbrx, by name: shape rule, dtype rule, numpy reference."""

from __future__ import annotations

from lbrx.ops import (
    activation,
    attention,
    cache,
    elementwise,
    error_function,
    linear,
    movement,
    normalization,
    quantized,
    random,
    reduction,
)
from lbrx.ops.table import REQUIRED, TABLE, Attributes, Family, Op, Operand, Role, Spec

__all__ = [
    "REQUIRED",
    "TABLE",
    "Attributes",
    "Family",
    "Op",
    "Operand",
    "Role",
    "Spec",
    "activation",
    "attention",
    "cache",
    "elementwise",
    "error_function",
    "linear",
    "movement",
    "normalization",
    "quantized",
    "random",
    "reduction",
]
