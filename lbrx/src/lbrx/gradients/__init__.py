"""Gradients of functions of tensors: reverse mode over the operation table's column `vjp`."""

from __future__ import annotations

from lbrx.gradients import rules as rules
from lbrx.gradients.custom import checkpoint, custom_vjp
from lbrx.gradients.functions import grad, stop_gradient, value_and_grad, vjp
from lbrx.gradients.vectorizing import vmap

__all__ = ["checkpoint", "custom_vjp", "grad", "stop_gradient", "value_and_grad", "vjp", "vmap"]
