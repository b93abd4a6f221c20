"""Optimizers, schedules of learning rates, and clipping, with MLX's names and formulas."""

from __future__ import annotations

from lbrx.optim.gradients import Accumulator, clip_grad_norm
from lbrx.optim.optimizer import MultiOptimizer, Optimizer
from lbrx.optim.optimizers import (
    SGD,
    AdaDelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    Muon,
    RMSprop,
)
from lbrx.optim.schedules import (
    cosine_decay,
    exponential_decay,
    join_schedules,
    linear_schedule,
    step_decay,
)

__all__ = [
    "SGD",
    "Accumulator",
    "AdaDelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "MultiOptimizer",
    "Muon",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm",
    "cosine_decay",
    "exponential_decay",
    "join_schedules",
    "linear_schedule",
    "step_decay",
]
