"""Merge methods: one module for each, or for two that differ in one step."""

from __future__ import annotations

from lbrx.merging.methods.arcee_fusion import METHOD as ARCEE_FUSION
from lbrx.merging.methods.breadcrumbs import BREADCRUMBS, BREADCRUMBS_TIES
from lbrx.merging.methods.dare import DARE_LINEAR, DARE_TIES
from lbrx.merging.methods.della import DELLA, DELLA_LINEAR
from lbrx.merging.methods.karcher import METHOD as KARCHER
from lbrx.merging.methods.linear import METHOD as LINEAR
from lbrx.merging.methods.method import Base, Method, Parameter, Parents
from lbrx.merging.methods.model_stock import METHOD as MODEL_STOCK
from lbrx.merging.methods.multislerp import METHOD as MULTISLERP
from lbrx.merging.methods.nearswap import METHOD as NEARSWAP
from lbrx.merging.methods.nuslerp import METHOD as NUSLERP
from lbrx.merging.methods.passthrough import METHOD as PASSTHROUGH
from lbrx.merging.methods.ram import RAM, RAMPLUS_TL
from lbrx.merging.methods.sce import METHOD as SCE
from lbrx.merging.methods.slerp import METHOD as SLERP
from lbrx.merging.methods.task_arithmetic import METHOD as TASK_ARITHMETIC
from lbrx.merging.methods.ties import METHOD as TIES

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(LINEAR, SLERP, NUSLERP, MULTISLERP, KARCHER),
        *(TASK_ARITHMETIC, TIES, DARE_TIES, DARE_LINEAR, DELLA, DELLA_LINEAR),
        *(BREADCRUMBS, BREADCRUMBS_TIES, SCE, MODEL_STOCK, NEARSWAP, ARCEE_FUSION),
        *(RAM, RAMPLUS_TL, PASSTHROUGH),
    )
}
"""Every method by its name in a configuration."""

__all__ = ["METHODS", "Base", "Method", "Parameter", "Parents"]
