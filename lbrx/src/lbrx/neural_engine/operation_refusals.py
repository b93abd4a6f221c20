"""Operations of lbrx that the Neural Engine does not run, with what to do instead.

Core ML would place these on the CPU, which splits a program and copies its values to and fro: they
are refused, so that what compiles runs on the Neural Engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lbrx.arrays import dtype as dt
from lbrx.ops import TABLE, Attributes, OpFamily, Spec

_OUTSIDE = "compute it outside the function"
REFUSED: dict[str, str] = {
    "tan": "write sin(x) / cos(x)",
    "asin": _OUTSIDE,
    "acos": _OUTSIDE,
    "sinh": "write (exp(x) - exp(-x)) / 2",
    "cosh": "write (exp(x) + exp(-x)) / 2",
    "asinh": "write log(x + sqrt(x * x + 1))",
    "acosh": "write log(x + sqrt(x * x - 1))",
    "atanh": "write log((1 + x) / (1 - x)) / 2",
    "atan2": _OUTSIDE,
    "copysign": "write sign(y) * abs(x)",
    "nextafter": _OUTSIDE,
    "signbit": "compare with 0",
    "prod": "write exp of the sum of logarithms",
    "cumsum": "multiply with a triangular matrix of ones",
    "cumprod": "write exp of a product with a triangular matrix, of logarithms",
    "scatter": "use where with a mask",
    "overwrite": "return the new values, and write them outside the function",
    "short_convolution": "its state is written in place: keep recurrent layers outside",
    "recurrence": "its state is written in place: keep recurrent layers outside",
    "overwrite_blocks": "return the new values, and write them outside the function",
    "quantized_attention": "use a float16 cache and attention",
    "encode_blocks": _OUTSIDE,
    "expert_matmul": "experts are chosen while it runs, shapes are static: call it outside",
    "custom_kernel": "the Neural Engine runs no Metal kernels: call it outside the function",
}
REFUSED |= dict.fromkeys(
    ("weighted", "kept_change", "agreeing", "changed", "row_products", "magnitude_mask"),
    "it belongs to merging: use the operations it is made of",
)
REFUSED |= dict.fromkeys(
    (
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    ),
    "the Neural Engine has no integers: compute it outside the function",
)
_INTEGER_RESULTS = ("argmax", "argmin", "argsort")
_RANDOM = "draw random numbers outside, and pass them as an argument"
MAX_RANK, MAX_AXIS = 5, 65536


def refusal(
    name: str,
    inputs: Sequence[Spec | None],
    outputs: Sequence[Spec],
    attributes: Attributes,
    constant: Sequence[bool],
) -> str | None:
    """Why an operation cannot run on the Neural Engine and what to do; None if it can.
    `constant` says which inputs do not depend on the function's arguments."""
    if name in REFUSED:
        return REFUSED[name]
    if TABLE[name].family is OpFamily.OUTSIDE:
        return "another package adds it: call it outside the function, and pass its result"
    if name.startswith("random_") or name == "rank_bernoulli":
        return _RANDOM
    if name in _INTEGER_RESULTS:
        return "the Neural Engine has no integers: return the values and find the index outside"
    special = _SPECIAL.get(name)
    problem = special(inputs, outputs, attributes, constant) if special else None
    return problem or _bad_type(name, outputs) or _bad_shape(inputs, outputs)


def _bad_type(name: str, outputs: Sequence[Spec]) -> str | None:
    for out in outputs[: 1 if name == "topk" else None]:
        if out.dtype.is_integer:
            return f"its result is {out.dtype}: the Neural Engine has no integers; use float16"
        if out.dtype in (dt.float64, dt.bfloat16):
            return f"its result is {out.dtype}: the Neural Engine computes in float16; cast to it"
    return None


def _bad_shape(inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> str | None:
    for spec in (*inputs, *outputs):
        if spec is None:
            continue
        if len(spec.shape) > MAX_RANK:
            return f"{spec} has more than {MAX_RANK} axes: merge some with reshape"
        if max(spec.shape, default=0) > MAX_AXIS:
            return f"{spec} has an axis longer than {MAX_AXIS}: split it"
        if 0 in spec.shape:
            return f"{spec} is empty: leave it out"
    return None


Check = Callable[[Sequence[Spec | None], Sequence[Spec], Attributes, Sequence[bool]], "str | None"]


def _attention(
    inputs: Sequence[Spec | None],
    outputs: Sequence[Spec],
    attributes: Attributes,
    constant: Sequence[bool],
) -> str | None:
    if attributes["cap"]:
        return "its scores are capped: use cap=0"
    if len(inputs) > 4 and inputs[4] is not None:
        return "lengths are integers: give a mask of zeros and -inf, or slice the keys"
    if len(inputs) > 5 and inputs[5] is not None:
        return "it has sinks: write softmax and products"
    query = inputs[0]
    return "give query, key and value four axes" if query and len(query.shape) != 4 else None


def _constant_operand(place: int, what: str) -> Check:
    def check(
        inputs: Sequence[Spec | None],
        outputs: Sequence[Spec],
        attributes: Attributes,
        constant: Sequence[bool],
    ) -> str | None:
        if constant[place]:
            return None
        return f"{what} depend on the arguments: make them a constant of the function"

    return check


def _norm(
    inputs: Sequence[Spec | None],
    outputs: Sequence[Spec],
    attributes: Attributes,
    constant: Sequence[bool],
) -> str | None:
    known = attributes["ord"] in (1, 2, math.inf)
    return None if known else f"ord={attributes['ord']}: give 1, 2 or inf"


_SPECIAL: dict[str, Check] = {
    "attention": _attention,
    "conv2d": _constant_operand(1, "its filters"),
    "take": _constant_operand(1, "its indices"),
    "gather": _constant_operand(1, "its indices"),
    "rope": _constant_operand(1, "its positions"),
    "norm": _norm,
}
