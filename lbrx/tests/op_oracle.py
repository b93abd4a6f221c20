"""An oracle for every operation, independent of lbrx: numpy in float64, or int64 for integers.

A row says how to compute the result and which operands are valid; the tests supply dtypes, shapes
and devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from seeds import derived

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, Kind


class Place(str):
    """A device name, and whether a test uses every dtype there or a sample."""

    every: bool

    def __new__(cls, name: str, every: bool) -> Place:
        made = super().__new__(cls, name)
        made.every = every
        return made


def rotating(values: Sequence[Any], key: str) -> list[Any]:
    """A sample of dtypes: float32 (or the last), and another that depends on the seed and the key.

    Of other values, one.
    """
    first = dt.float32 if dt.float32 in values else values[-1]
    others = [value for value in values if value is not first]
    if not others or not isinstance(first, Dtype):
        return [values[derived(key) % len(values)]]
    return [first, others[derived(key) % len(others)]]


def has(place: str, dtype: Dtype) -> bool:
    """Whether a device supports a dtype."""
    return place == "cpu" or dtype is not dt.float64


def chosen(dtypes: Sequence[Dtype], place: Place, key: str = "") -> list[Dtype]:
    """The dtypes that a test uses on a device."""
    if place == "cpu":
        return list(dtypes)
    possible = [dtype for dtype in dtypes if has(place, dtype)]
    return possible if place.every else rotating(possible, key)


FLOATS = (dt.float16, dt.bfloat16, dt.float32, dt.float64)
INTEGERS = tuple(d for d in dt.ALL if d.is_integer)
NUMBERS = (*INTEGERS, *FLOATS)
# Relative and absolute. Two units in the last place of 1 for 16-bit dtypes, more for wider ones,
# whose results are rounded several times.
PRECISION = {dt.float16: 2e-3, dt.bfloat16: 1.6e-2, dt.float32: 4e-6, dt.float64: 1e-12}


def keep(d: Dtype) -> Dtype:
    return d


def to_float(d: Dtype) -> Dtype:
    return d if d.is_float else dt.float32


def to_wide(d: Dtype) -> Dtype:
    if d.is_float:
        return d
    return dt.uint64 if d.kind is Kind.UINT else dt.int64


def to_bool(_: Dtype) -> Dtype:
    return dt.bool_


def to_index(_: Dtype) -> Dtype:
    return dt.int64


@dataclass(frozen=True)
class Row:
    """One operation: its oracle on float64 or int64 arrays, and its operands and dtypes."""

    oracle: Callable[..., Any]
    dtypes: Sequence[Dtype] = dt.ALL
    result: Callable[[Dtype], Dtype] = keep
    operands: int = 1
    low: float = -4
    high: float = 4
    attributes: Sequence[dict[str, Any]] = field(default_factory=lambda: ({},))


def _erf(x):
    return np.array([math.erf(v) for v in np.ravel(x)]).reshape(np.shape(x))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x, approximate="none"):
    if approximate == "tanh":
        return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def _floats(oracle, **facts) -> Row:
    return Row(oracle, result=to_float, **facts)


ELEMENTWISE = {
    "negative": Row(np.negative, (*FLOATS, *(d for d in INTEGERS if d.kind is Kind.INT))),
    "sign": Row(np.sign, NUMBERS),
    "square": Row(lambda x: x * x, NUMBERS),
    "abs": Row(np.abs),
    "floor": Row(np.floor),
    "ceil": Row(np.ceil),
    "trunc": Row(np.trunc),
    "round": Row(np.round),
    "exp": _floats(np.exp),
    "exp2": _floats(lambda x: 2.0**x),
    "expm1": _floats(np.expm1),
    "log": _floats(np.log, low=0.5),
    "log2": _floats(lambda x: np.log(x) / math.log(2), low=0.5),
    "log10": _floats(lambda x: np.log(x) / math.log(10), low=0.5),
    "log1p": _floats(np.log1p, low=0),
    "sqrt": _floats(lambda x: x**0.5, low=0),
    "rsqrt": _floats(lambda x: x**-0.5, low=0.5),
    "reciprocal": _floats(lambda x: 1 / x, low=0.5),
    "sin": _floats(np.sin),
    "cos": _floats(np.cos),
    "tan": _floats(np.tan, low=-1, high=1),
    "asin": _floats(np.arcsin, low=-1, high=1),
    "acos": _floats(np.arccos, low=-1, high=1),
    "atan": _floats(np.arctan),
    "sinh": _floats(np.sinh),
    "cosh": _floats(np.cosh),
    "asinh": _floats(np.arcsinh),
    "acosh": _floats(np.arccosh, low=1),
    "atanh": _floats(np.arctanh, low=-0.9, high=0.9),
    "erf": _floats(_erf),
    "bitwise_invert": Row(np.invert, INTEGERS),
    "logical_not": Row(lambda x: x == 0, result=to_bool),
    "isnan": Row(lambda x: x != x, result=to_bool),
    "isinf": Row(lambda x: np.abs(x) == math.inf, result=to_bool),
    "isfinite": Row(lambda x: np.abs(x) < math.inf, result=to_bool),
    "signbit": Row(lambda x: np.copysign(1, x) < 0, result=to_bool),
    "relu": Row(lambda x: np.where(x > 0, x, 0)),
    "leaky_relu": _floats(
        lambda x, slope=0.01: np.where(x > 0, x, slope * x), attributes=({}, {"slope": 0.25})
    ),
    "sigmoid": _floats(_sigmoid),
    "tanh": _floats(np.tanh),
    "gelu": _floats(_gelu, attributes=({}, {"approximate": "tanh"})),
    "silu": _floats(lambda x: x * _sigmoid(x)),
    "softplus": _floats(lambda x: np.log(1 + np.exp(x))),
    "copy": Row(lambda x: x),
    "add": Row(np.add, NUMBERS, operands=2),
    "multiply": Row(np.multiply, NUMBERS, operands=2),
    "subtract": Row(np.subtract, (*FLOATS, dt.int8, dt.int64), operands=2),
    "maximum": Row(lambda x, y: np.where(x > y, x, y), operands=2),
    "minimum": Row(lambda x, y: np.where(x < y, x, y), operands=2),
    "floor_divide": Row(lambda x, y: np.floor(x / y), NUMBERS, operands=2, low=1, high=9),
    "remainder": Row(lambda x, y: x - y * np.floor(x / y), NUMBERS, operands=2, low=1, high=9),
    "pow": Row(lambda x, y: x**y, NUMBERS, operands=2, low=1, high=3),
    "divide": _floats(lambda x, y: x / y, operands=2, low=1),
    "atan2": _floats(np.arctan2, operands=2),
    "copysign": _floats(lambda x, y: np.abs(x) * np.where(np.signbit(y), -1, 1), operands=2),
    "hypot": _floats(lambda x, y: (x * x + y * y) ** 0.5, operands=2),
    "logaddexp": _floats(lambda x, y: np.log(np.exp(x) + np.exp(y)), operands=2),
    "bitwise_and": Row(np.bitwise_and, INTEGERS, operands=2),
    "bitwise_or": Row(np.bitwise_or, INTEGERS, operands=2),
    "bitwise_xor": Row(np.bitwise_xor, INTEGERS, operands=2),
    "bitwise_left_shift": Row(lambda x, y: x * 2**y, INTEGERS, operands=2, low=0, high=3),
    "bitwise_right_shift": Row(lambda x, y: x // 2**y, INTEGERS, operands=2, low=0, high=7),
    "equal": Row(np.equal, result=to_bool, operands=2),
    "not_equal": Row(np.not_equal, result=to_bool, operands=2),
    "less": Row(np.less, result=to_bool, operands=2),
    "less_equal": Row(np.less_equal, result=to_bool, operands=2),
    "greater": Row(np.greater, result=to_bool, operands=2),
    "greater_equal": Row(np.greater_equal, result=to_bool, operands=2),
    "logical_and": Row(lambda x, y: (x != 0) & (y != 0), result=to_bool, operands=2),
    "logical_or": Row(lambda x, y: (x != 0) | (y != 0), result=to_bool, operands=2),
    "logical_xor": Row(lambda x, y: (x != 0) ^ (y != 0), result=to_bool, operands=2),
    "swiglu": _floats(lambda g, x: g * _sigmoid(g) * x, operands=2),
    "geglu": _floats(
        lambda g, x, approximate="none": _gelu(g, approximate) * x,
        operands=2,
        attributes=({}, {"approximate": "tanh"}),
    ),
    "fma": Row(lambda x, y, z: x * y + z, NUMBERS, operands=3, low=-3, high=3),
    "clip": Row(lambda x, a, b: np.where(np.maximum(x, a) < b, np.maximum(x, a), b), operands=3),
}


def _norm(x, axis=None, keepdims=False, ord=2):
    if ord == math.inf:
        return np.max(np.abs(x), axis=axis, keepdims=keepdims, initial=0)
    return np.sum(np.abs(x) ** ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def _place(choose):
    """argmax or argmin over several axes, one result at a time."""

    def oracle(x, axis=None, keepdims=False):
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis) % x.ndim
        rest = [i for i in range(x.ndim) if i not in axes]
        result = np.empty([x.shape[i] for i in rest], np.int64)
        for index in np.ndindex(*result.shape):
            key = [slice(None)] * x.ndim
            for i, place in zip(rest, index, strict=True):
                key[i] = place
            result[index] = choose(x[tuple(key)].ravel())
        return np.expand_dims(result, tuple(axes)) if keepdims else result

    return oracle


def _var(x, axis=None, keepdims=False, correction=0):
    return np.var(x, axis=axis, keepdims=keepdims, ddof=correction)


REDUCTIONS = {
    "sum": Row(np.sum, result=to_wide),
    "prod": Row(np.prod, result=to_wide, low=0.5, high=1.7),
    "mean": _floats(np.mean),
    "var": _floats(_var, attributes=({}, {"correction": 1})),
    "norm": _floats(_norm, attributes=({}, {"ord": 1}, {"ord": 3}, {"ord": math.inf})),
    "max": Row(np.max),
    "min": Row(np.min),
    "argmax": Row(_place(np.argmax), result=to_index),
    "argmin": Row(_place(np.argmin), result=to_index),
    "any": Row(np.any, result=to_bool),
    "all": Row(np.all, result=to_bool),
}


def _softmax(x, axis=-1):
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def _sorted(x, axis=-1, descending=False):
    return np.flip(np.sort(x, axis), axis) if descending else np.sort(x, axis)


ALONG_AXIS = {
    "softmax": _floats(_softmax),
    "log_softmax": _floats(lambda x, axis=-1: np.log(_softmax(x, axis))),
    "cumsum": Row(lambda x, axis=-1: np.cumsum(x, axis), result=to_wide),
    "cumprod": Row(lambda x, axis=-1: np.cumprod(x, axis), result=to_wide),
    "sort": Row(_sorted, attributes=({}, {"descending": True})),
}

# Operations that have separate tests, because their operands do not follow a pattern.
OTHERS = {
    *("where", "cast", "layer_norm", "rms_norm", "matmul", "concat", "pad", "take", "gather"),
    *("scatter", "argsort", "topk", "random_uniform", "random_normal", "random_bernoulli"),
    *("add_rms_norm", "add_layer_norm", "attention", "rope", "overwrite"),
    *("decode_blocks", "encode_blocks", "quantized_matmul", "quantized_attention"),
    *("overwrite_blocks", "nextafter", "conv2d", "max_pool2d", "avg_pool2d", "random_integers"),
    *("magnitude_mask", "rank_bernoulli", "weighted", "kept_change", "agreeing", "changed"),
    *("row_products", "expert_matmul", "short_convolution", "recurrence"),
}

# The activations of matmul.
ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "gelu": _gelu,
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
}


def rms_norm(x, eps):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / x.shape[-1] + eps)


def layer_norm(x, eps):
    centre = x - x.sum(-1, keepdims=True) / x.shape[-1]
    return centre / np.sqrt((centre**2).sum(-1, keepdims=True) / x.shape[-1] + eps)


def attention(
    q, k, v, mask=None, lengths=None, sinks=None, causal=False, window=0, scale=None, cap=0
):
    """One query at a time: its visible keys, their weights, and the weighted mean of values."""
    *batch, heads, count, depth = q.shape
    kv_heads, keys = k.shape[-3:-1]
    factor = depth**-0.5 if scale is None else scale
    added = np.broadcast_to(0 if mask is None else mask, (*batch, heads, count, keys))
    result = np.zeros((*batch, heads, count, v.shape[-1]))
    for *at, head, i in np.ndindex(*batch, heads, count):
        end = keys if lengths is None else int(lengths[tuple(at)])
        own = end - count + i
        first = max(own - window + 1, 0) if window else 0
        last = min(own + 1, end) if causal else end
        query = (*at, head, i)
        seen = [j for j in range(first, last) if added[(*query, j)] > -math.inf]
        if not seen:
            continue
        source = (*at, head * kv_heads // heads)
        score = [factor * sum(q[query] * k[(*source, j)]) for j in seen]
        score = [cap * math.tanh(s / cap) for s in score] if cap else score
        score = [s + added[(*query, j)] for s, j in zip(score, seen, strict=True)]
        if sinks is not None:
            score.append(sinks[head])
        weights = [math.exp(s - max(score)) for s in score]
        for j, weight in zip(seen, weights, strict=False):
            result[query] += weight / sum(weights) * v[(*source, j)]
    return result


def rope(x, positions, factors=1.0, dims=None, base=10000.0, interleaved=False, scale=1.0):
    """Each pair of features as a complex number, rotated by a complex multiplication."""
    dims = x.shape[-1] if dims is None else dims
    part = x[..., :dims]
    halves = part[..., : dims // 2] + 1j * part[..., dims // 2 :]
    pairs = part[..., ::2] + 1j * part[..., 1::2] if interleaved else halves
    speeds = np.array([scale / base ** (2 * i / dims) for i in range(dims // 2)]) / factors
    turned = pairs * np.exp(1j * np.asarray(positions)[..., None] * speeds)
    both = [turned.real, turned.imag]
    part = np.stack(both, -1).reshape(part.shape) if interleaved else np.concatenate(both, -1)
    return np.concatenate([part, x[..., dims:]], -1)


def sample(rng: np.random.Generator, shape, dtype: Dtype, low: float = -4, high: float = 4):
    """Random elements of a dtype within a range."""
    if dtype is dt.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype.numpy)
    low = max(math.ceil(low), 0 if dtype.kind is Kind.UINT else low)
    return rng.integers(low, max(math.floor(high), low), shape, endpoint=True).astype(dtype.numpy)


# Ways to get a tensor of a shape: the shape to allocate, and the view of it.
VIEWS = {
    "contiguous": (lambda s: s, lambda x: x),
    "strided": (lambda s: (*s[:-1], 2 * s[-1]), lambda x: x[..., ::2]),
    "reversed": (lambda s: s, lambda x: x[::-1]),
    "transposed": (lambda s: s[::-1], lambda x: x.T),
}


def pair(rng, shape, dtype, device, view="contiguous", low=-4, high=4):
    """A random tensor, and the same elements for the oracle."""
    make, look = VIEWS[view]
    values = sample(rng, make(shape), dtype, low, high)
    tensor = look(lbrx.tensor(values, device=device))
    assert tensor.dtype is dtype
    assert tensor.shape == shape
    return tensor, wide(look(values))


def wide(values: np.ndarray) -> np.ndarray:
    """The same numbers in the oracle's dtype, float64 or int64."""
    return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)


def close(tensor, expected, dtype: Dtype, scale: float = 1) -> None:
    """Assert the dtype and shape of a result, and its values within the precision of the dtype."""
    expected = np.asarray(expected)
    assert tensor.dtype is dtype
    assert tensor.shape == expected.shape
    values = tensor.numpy()
    if dtype.is_float:
        precision = PRECISION[dtype] * scale
        values = values.astype(np.float64)
        np.testing.assert_allclose(values, expected, rtol=precision, atol=precision)
    else:
        np.testing.assert_array_equal(values, expected.astype(dtype.numpy))
