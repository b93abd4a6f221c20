"""Results that a CPU writes past its caches: the choice for `streamed.h`.

It pays off for results that no cache holds until they are read, in kernels that wait for memory.
Where arithmetic is the limit, it is slower: stores then no longer overlap with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.metal import DeviceInfo
from lbrx.program.element_program import Access, Program, ProgramStep

# Functions of a few instructions. Rounding to bfloat16 is some instructions, too.
SHORT = {
    *("add", "subtract", "multiply", "divide", "fma", "negative", "abs", "square", "sqrt", "cast"),
    *("maximum", "minimum", "clip", "relu", "leaky_relu", "where", "sign", "weighted"),
    *("ceil", "floor", "round", "trunc", "copysign", "signbit", "isfinite", "isinf", "isnan"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "agreeing", "changed"),
    *("bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor"),
    *("bitwise_left_shift", "bitwise_right_shift", "kept_change"),
}
LONG_STEPS, ROUNDING_STEPS = 8, 3  # short steps that take as long
STEP = 6.0  # operations at the measured peak that take as long as a short step
BALANCE = 1.0  # bytes that move in the time of a short step, unless the device is calibrated


def pays_off(info: DeviceInfo, program: Program, size: int) -> bool:
    """Whether a program of so many elements should write past the caches."""
    outputs = [dtype for _, dtype in program.outputs]
    read = [x.dtype for x in program.inputs if x.access not in (Access.SCALAR, Access.SAME)]
    moved = sum(dtype.itemsize for dtype in (*read, *outputs))
    written = size * min(dtype.itemsize for dtype in outputs)
    return info.streams(written) and _steps(program.steps, outputs) * _step_bytes(info) < moved


def _steps(steps: Sequence[ProgramStep], outputs: Sequence[Dtype]) -> int:
    """The work on an element, in short steps."""
    work = sum(1 if step.function in SHORT else LONG_STEPS for step in steps)
    rounded = [step.gives for step in steps] if len(steps) > 1 else outputs
    return work + ROUNDING_STEPS * sum(dtype is dt.bfloat16 for dtype in rounded)


def _step_bytes(info: DeviceInfo) -> float:
    """Bytes that move in the time of a short step."""
    if info.calibration is None:
        return BALANCE
    return STEP * info.calibration.bandwidth / info.calibration.fp32
