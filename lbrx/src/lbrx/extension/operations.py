"""Operations: a numpy function with rules, which `lbrx.apply` calls by its name on any device."""

from __future__ import annotations

from lbrx.ops import Attributes, OpFamily, Spec, rules
from lbrx.ops.table import op
from lbrx.ops.vjp import differentiable, not_differentiable

__all__ = [
    "Attributes",
    "OpFamily",
    "Spec",
    "differentiable",
    "not_differentiable",
    "op",
    "rules",
]
