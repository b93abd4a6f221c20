"""The operations of lbrx by name: operands, shape rule, dtype rule and numpy reference."""

from __future__ import annotations

from lbrx.ops import (
    activation,
    attention,
    convolution,
    elementwise,
    error_function,
    experts,
    linear,
    merging,
    movement,
    normalization,
    overwrite,
    quantized,
    random,
    recurrent,
    reduction,
)
from lbrx.ops.table import REQUIRED, TABLE, Attributes, Op, Operand, OpFamily, Role, Spec

BUILT_IN = frozenset(TABLE)
"""The names of lbrx's own operations; others are registered from outside."""

__all__ = [
    "BUILT_IN",
    "REQUIRED",
    "TABLE",
    "Attributes",
    "Op",
    "OpFamily",
    "Operand",
    "Role",
    "Spec",
    "activation",
    "attention",
    "convolution",
    "elementwise",
    "error_function",
    "experts",
    "linear",
    "merging",
    "movement",
    "normalization",
    "overwrite",
    "quantized",
    "random",
    "recurrent",
    "reduction",
]
