"""Errors of operations: type and text for each wrong call."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx import ops

pytestmark = pytest.mark.usefixtures("cpu_default")


def ones(*shape, dtype="float32"):
    return lbrx.ones(shape, dtype)


def attend(*shapes, mask=None, lengths=None, **rule):
    q, k, v = (ones(*shape) for shape in shapes)
    return q.attention(k, v, mask, lengths, **rule)


SAME = [(2, 4, 3, 8)] * 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ones(2, 3) + ones(4),
            lbrx.ShapeError,
            r"add\(float32\[2, 3\], float32\[4\]\): shapes \(2, 3\) and \(4,\) do not broadcast.*reshape",
        ),
        (
            lambda: ones(2, 3) @ ones(4, 5),
            lbrx.ShapeError,
            r"inner sizes of \(2, 3\) and \(4, 5\) differ, 3 and 4: transpose",
        ),
        (lambda: ones() @ ones(2), lbrx.ShapeError, r"scalar has no rows or columns: use \*"),
        (
            lambda: ones(2, 3).matmul(ones(3, 4), ones(2)),
            lbrx.ShapeError,
            r"matmul\(float32\[2, 3\], .*\): the bias has shape \(2,\): give \(4,\), or add it",
        ),
        (
            lambda: ones(2, 3).matmul(ones(3), ones(2)),
            lbrx.ShapeError,
            r"y of shape \(3,\) is a vector, which takes no bias: add it with \+",
        ),
        (
            lambda: ones(2, 2).matmul(ones(2, 2), activation="gelu_erf"),
            ValueError,
            "activation='gelu_erf' is not an activation of matmul: give None, 'relu', 'gelu', ",
        ),
        (
            lambda: ones(2, 2, dtype="int8").matmul(ones(2, 2, dtype="int8"), activation="relu"),
            lbrx.DtypeError,
            r"matmul\(int8\[2, 2\], .*\): activation='relu' of int8 products: cast x or y",
        ),
        (
            lambda: ones(2) & ones(2),
            lbrx.DtypeError,
            r"bitwise_and\(float32\[2\], float32\[2\]\): .*cast to an integer",
        ),
        (
            lambda: -ones(2, dtype="bool"),
            lbrx.DtypeError,
            r"negative\(bool\[2\]\): .*cast to a numeric dtype",
        ),
        (lambda: ones(2).where(1, 2), lbrx.DtypeError, "condition is float32: compare it, or cast"),
        (lambda: ones(3).take(ones(1)), lbrx.DtypeError, "indices are float32: cast them"),
        (lambda: ones(3).take([3]), IndexError, "index 3 is beyond an axis of 3 elements"),
        (lambda: ones(3).softmax(axis=1), lbrx.ShapeError, "axis 1 does not exist in 1 dimensions"),
        (
            lambda: ones(2, 3).rms_norm(ones(2)),
            lbrx.ShapeError,
            r"weight or bias has shape \(2,\): give \(3,\)",
        ),
        (
            lambda: ones(2, 3).add_rms_norm(ones(3)),
            lbrx.ShapeError,
            r"x and residual have shapes \(2, 3\) and \(3,\): expand one",
        ),
        (
            lambda: ones(2, 3).add_layer_norm(ones(2, 3), ones(3), ones(2)),
            lbrx.ShapeError,
            r"weight or bias has shape \(2,\): give \(3,\)",
        ),
        (lambda: ones().add_rms_norm(ones()), lbrx.ShapeError, "no last axis to normalise"),
        (lambda: ones(3).topk(4), lbrx.ShapeError, r"k=4 of axis 0 in shape \(3,\): give 0 to 3"),
        (
            lambda: lbrx.concat([ones(2, 3), ones(3, 3)], axis=1),
            lbrx.ShapeError,
            "may only differ in axis 1: slice",
        ),
        (lambda: ones(2).pad([(1, 0), (0, 1)]), lbrx.ShapeError, r"give \(before, after\) for"),
        (
            lambda: ones(2, dtype="int8").pad([(1, 0)], constant_values=200),
            lbrx.DtypeError,
            "200 does not fit int8",
        ),
        (
            lambda: attend((3, 8), (3, 8), (3, 8)),
            lbrx.ShapeError,
            r"attention\(float32\[3, 8\], .*need axes \(\.\.\., heads, length, depth\): reshape",
        ),
        (
            lambda: attend((2, 4, 3, 8), (1, 4, 3, 8), (1, 4, 3, 8)),
            lbrx.ShapeError,
            "must agree in their batch axes",
        ),
        (
            lambda: attend((4, 3, 8), (4, 3, 8), (4, 2, 8)),
            lbrx.ShapeError,
            "key and value also in heads and length: expand or slice",
        ),
        (
            lambda: attend((4, 3, 8), (4, 3, 6), (4, 3, 8)),
            lbrx.ShapeError,
            "query is 8 deep and key 6: make their last axes equal",
        ),
        (
            lambda: attend((4, 3, 8), (3, 3, 8), (3, 3, 8)),
            lbrx.ShapeError,
            "4 heads do not divide among 3 of key and value: give a multiple",
        ),
        (lambda: attend((4, 3, 8), (0, 3, 8), (0, 3, 8)), lbrx.ShapeError, "among 0 of key"),
        (
            lambda: attend(*SAME, mask=ones(2, 3)),
            lbrx.ShapeError,
            r"shapes \(2, 4, 3, 3\) and \(2, 3\) do not broadcast",
        ),
        (
            lambda: attend(*SAME, mask=ones(5, 2, 4, 3, 3)),
            lbrx.ShapeError,
            r"mask of shape \(5, 2, 4, 3, 3\) is larger than the scores, \(2, 4, 3, 3\): slice it",
        ),
        (
            lambda: attend(*SAME, mask=ones(3, 3, dtype="int8")),
            lbrx.DtypeError,
            r"attention\(.*int8\[3, 3\].*mask cannot be int8: it is added .*: cast it to .* or to bool",
        ),
        (lambda: attend(*SAME, lengths=3), lbrx.ShapeError, r"lengths have shape \(\): .*\(2,\)"),
        (lambda: attend(*SAME, lengths=[1.0, 2.0]), lbrx.DtypeError, "lengths are float32: cast"),
        (lambda: attend(*SAME, lengths=[1, 4]), IndexError, "length 4 is beyond 3 keys: give 0 to"),
        (lambda: attend(*SAME, window=2), ValueError, "window=2: .* together with causal=True"),
        (lambda: attend(*SAME, window=-1, causal=True), ValueError, "window=-1: give 0 for none"),
        (lambda: attend(*SAME, window=1.5, causal=True), TypeError, "as an integer"),
        (lambda: ones().rope(0), lbrx.ShapeError, r"rope\(.*scalar has no features to rotate"),
        (lambda: ones(3, 5).rope(0), lbrx.ShapeError, "dims=5 of 5 features: give an even number"),
        (lambda: ones(3, 4).rope(0, dims=6), lbrx.ShapeError, "dims=6 of 4 .* even number up to 4"),
        (lambda: ones(3, 4).rope(0, dims=-2), lbrx.ShapeError, "dims=-2 of 4 features"),
        (lambda: ones(3, 4).rope(0.5), lbrx.DtypeError, "positions are float32: cast them"),
        (lambda: ones(3, 4).rope([0, 1]), lbrx.ShapeError, "do not broadcast"),
        (
            lambda: ones(1, 4).rope([0, 1]),
            lbrx.ShapeError,
            r"positions of shape \(2,\) are larger than \(1,\): slice them",
        ),
        (
            lambda: ones(3, 4).rope(0, ones(4)),
            lbrx.ShapeError,
            r"factors have shape \(4,\): give one for each pair, \(2,\)",
        ),
        (
            lambda: ones(3, 4).rope(0, ones(2, dtype="int32")),
            lbrx.DtypeError,
            "factors cannot be int32: cast to a floating dtype",
        ),
        (lambda: ones(2).norm(ord=0), ValueError, "is not the order of a norm: give one above 0"),
        (lambda: ones(2).topk(1.5), TypeError, "as an integer"),
        (lambda: ones(2, 3).gather(np.zeros((3, 3), int)), lbrx.ShapeError, "may differ from"),
        (
            lambda: ones(2, 3).scatter(np.zeros((2, 1), int), ones(2, 2)),
            lbrx.ShapeError,
            "do not have the indices' shape",
        ),
        (
            lambda: ones(2).scatter([0], ones(1), reduce="mean"),
            ValueError,
            "reduce='mean' is not known: give one of 'set', 'add', 'multiply', 'min', 'max'",
        ),
        (lambda: ones(2).gelu(approximate="erf"), ValueError, "give 'none' or 'tanh'"),
        (lambda: ones(2, dtype="uint8") + 300, lbrx.DtypeError, "300 does not fit uint8"),
        (lambda: ones(2) + None, TypeError, "add needs y: give a tensor, not None"),
        (lambda: ones(2) + "a", lbrx.DtypeError, "str of <U1 is not numeric: give numbers"),
        (lambda: ones(2).sum(axes=0), TypeError, "axes"),
        (
            lambda: ops.TABLE["sum"].bind({"axes": 0}),
            TypeError,
            "sum has no attribute axes: it has axis, keepdims",
        ),
        (lambda: ops.TABLE["cast"].bind({}), TypeError, "cast needs dtype"),
        (lambda: ops.TABLE["add"].roles(3), TypeError, r"add takes \(x, y\), not 3 operands"),
        (
            lambda: lbrx.stack([ones(2, 3), ones(3)]),
            lbrx.ShapeError,
            r"stack of shapes \(2, 3\) and \(3,\): give equal shapes, or use concat",
        ),
        (lambda: lbrx.concat([]), lbrx.ShapeError, "concat of no tensors: give one or more"),
    ],
)
def test_errors_name_operands_and_remedy(call, error, message):
    with pytest.raises(error, match=message):
        call()
