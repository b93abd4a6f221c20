"""Learning rates as functions of the step, a tensor, so that they can be compiled with a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lbrx.arrays import dtype as dt
from lbrx.tensors.core import Tensor, call

Schedule = Callable[[Tensor], Tensor]


def _real(step: Tensor) -> Tensor:
    """The step in a dtype in which rates are computed."""
    return step.astype(dt.float64 if step.device == "cpu" else dt.float32)


def exponential_decay(init: float, decay_rate: float) -> Schedule:
    """init * decay_rate**step."""
    return lambda step: (_real(step) * math.log(decay_rate)).exp() * init


def step_decay(init: float, decay_rate: float, step_size: int) -> Schedule:
    """init, multiplied by decay_rate after every step_size steps."""
    return lambda step: (_real(step // step_size) * math.log(decay_rate)).exp() * init


def cosine_decay(init: float, decay_steps: int, end: float = 0.0) -> Schedule:
    """From init to end along half a cosine in decay_steps steps."""

    def rate(step: Tensor) -> Tensor:
        part = call("minimum", _real(step), decay_steps) * (math.pi / decay_steps)
        return (part.cos() + 1) * (0.5 * (init - end)) + end

    return rate


def linear_schedule(init: float, end: float, steps: int) -> Schedule:
    """From init to end along a line in so many steps, then end."""
    if steps < 1:
        raise ValueError(f"steps={steps}: give 1 or more")
    return lambda step: call("minimum", _real(step), steps) * ((end - init) / steps) + init


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other: each from its boundary on, with its steps counted from there.

    >>> warm_up = lbrx.optim.linear_schedule(0.0, 1e-3, 100)
    >>> then = lbrx.optim.cosine_decay(1e-3, 900)
    >>> rate = lbrx.optim.join_schedules([warm_up, then], [100])
    """
    if len(schedules) != len(boundaries) + 1 or not schedules:
        raise ValueError(
            f"{len(schedules)} schedules and {len(boundaries)} boundaries: give one boundary less"
        )

    def rate(step: Tensor) -> Tensor:
        found = schedules[0](step)
        for boundary, schedule in zip(boundaries, schedules[1:], strict=True):
            found = call("where", step < boundary, found, schedule(step - boundary))
        return found

    return rate
