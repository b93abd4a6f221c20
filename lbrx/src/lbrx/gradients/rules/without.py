"""Operations that have no gradient, with the reason that errors give."""

from __future__ import annotations

from lbrx.ops import TABLE, OpFamily
from lbrx.ops.vjp import not_differentiable

_INTEGERS = (
    *("argmax", "argmin", "argsort", "any", "all", "signbit", "isnan", "isinf", "isfinite"),
    *("logical_not", "bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("bitwise_left_shift", "bitwise_right_shift", "magnitude_mask"),
)

not_differentiable(
    "its result is not floating, so it is a constant to gradients",
    *(op.name for op in TABLE.values() if op.family is OpFamily.COMPARISON),
    *_INTEGERS,
    "encode_blocks",
    "overwrite_blocks",
)
not_differentiable(
    "it takes no tensor that a gradient could be of",
    *("random_uniform", "random_normal", "random_bernoulli", "random_integers", "decode_blocks"),
)
not_differentiable("it steps between neighbouring numbers: use its operand", "nextafter")
not_differentiable(
    "it writes a cache in place: train without a cache, or use x.at[...].set",
    *("overwrite", "short_convolution", "recurrence"),
)
not_differentiable(
    "it is a step of merging: write it with elementwise operations",
    *("weighted", "kept_change", "agreeing", "changed", "rank_bernoulli", "row_products"),
)
