"""The operations of lbrx in MIL: one function for each, of variables in fp16 and attributes.

Booleans are MIL's booleans; every other value is fp16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import normalize_axes
from lbrx.neural_engine.binding import mil_builder
from lbrx.neural_engine.views import reshaped
from lbrx.ops import TABLE, Attributes, Spec
from lbrx.ops.convolution import Window, pooling, window
from lbrx.ops.quantized import weights_of

Operands = Sequence[Any]
"""Variables, or numpy arrays for constants; None for operands that were left out."""
Emit = Callable[[Operands, Attributes, Sequence[Spec]], Any]
EMIT: dict[str, Emit] = {}
HIDDEN_SCORE = -1e4  # hides a key: exp of it is 0, and fp16 holds it


def emits(*names: str) -> Callable[[Emit], Emit]:
    def register(function: Emit) -> Emit:
        EMIT.update(dict.fromkeys(names, function))
        return function

    return register


def half(value: float) -> np.float16:
    return np.float16(value)


def _direct(mil: str, **fixed: Any) -> Emit:
    """An operation that MIL has under the name `mil`, of one or two operands."""

    def emit(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
        named = dict(zip(("x", "y"), operands, strict=False))
        return getattr(mil_builder(), mil)(**named, **fixed)

    return emit


for _name in (
    *("sign", "square", "abs", "floor", "ceil", "round", "exp", "exp2", "sqrt", "sin", "cos"),
    *("atan", "erf", "relu", "sigmoid", "tanh", "silu", "softplus", "maximum", "minimum", "add"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "pow"),
):
    EMIT[_name] = _direct(_name)
EMIT |= {
    "multiply": _direct("mul"),
    "subtract": _direct("sub"),
    "divide": _direct("real_div"),
    "floor_divide": _direct("floor_div"),
    "negative": _direct("mul", y=half(-1)),
    "copy": _direct("identity"),
    "log": _direct("log"),
    "rsqrt": _direct("rsqrt"),
    "reciprocal": lambda x, a, o: mil_builder().real_div(x=half(1), y=x[0]),
    "trunc": lambda x, a, o: _mul(_op("sign", x[0]), _op("floor", _op("abs", x[0]))),
    "expm1": lambda x, a, o: mil_builder().sub(x=_op("exp", x[0]), y=half(1)),
    "log1p": lambda x, a, o: _op("log", mil_builder().add(x=x[0], y=half(1))),
    "log2": lambda x, a, o: _mul(_op("log", x[0]), half(1 / math.log(2))),
    "log10": lambda x, a, o: _mul(_op("log", x[0]), half(1 / math.log(10))),
    "fma": lambda x, a, o: mil_builder().add(x=_mul(x[0], x[1]), y=x[2]),
    "swiglu": lambda x, a, o: _mul(_op("silu", x[0]), x[1]),
    "geglu": lambda x, a, o: _mul(_gelu(x[0], a["approximate"]), x[1]),
    "gelu": lambda x, a, o: _gelu(x[0], a["approximate"]),
    "leaky_relu": lambda x, a, o: mil_builder().leaky_relu(x=x[0], alpha=half(a["slope"])),
    "softmax": lambda x, a, o: mil_builder().softmax(x=x[0], axis=a["axis"]),
    "isnan": lambda x, a, o: mil_builder().not_equal(x=x[0], y=x[0]),
}


def _op(name: str, x: Any) -> Any:
    return getattr(mil_builder(), name)(x=x)


def _mul(x: Any, y: Any) -> Any:
    return mil_builder().mul(x=x, y=y)


def _gelu(x: Any, approximate: str) -> Any:
    mode = "TANH_APPROXIMATION" if approximate == "tanh" else "EXACT"
    return mil_builder().gelu(x=x, mode=mode)


EMIT["isinf"] = lambda x, a, o: mil_builder().greater(x=_op("abs", x[0]), y=half(65504))
EMIT["isfinite"] = lambda x, a, o: mil_builder().less_equal(x=_op("abs", x[0]), y=half(65504))


def _as_bool(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x != 0
    return x if x.is_tensor_or_scalar_of("bool") else mil_builder().not_equal(x=x, y=half(0))


def _as_half(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.astype(np.float16)
    return mil_builder().cast(x=x, dtype="fp16") if x.is_tensor_or_scalar_of("bool") else x


def _logical(mil: str) -> Emit:
    def emit(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
        x, y = map(_as_bool, operands)
        return getattr(mil_builder(), mil)(x=x, y=y)

    return emit


EMIT |= {name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor")}
EMIT["logical_not"] = lambda x, a, o: mil_builder().logical_not(x=_as_bool(x[0]))


@emits("remainder")
def _remainder(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, (x, y) = mil_builder(), operands
    return mb.sub(x=x, y=mb.mul(x=mb.floor(x=mb.real_div(x=x, y=y)), y=y))


@emits("hypot")
def _hypot(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    """Scaled by the larger operand, so that squares stay within fp16."""
    mb = mil_builder()
    x, y = (mb.abs(x=operand) for operand in operands)
    high, low = mb.maximum(x=x, y=y), mb.minimum(x=x, y=y)
    ratio = mb.real_div(x=low, y=mb.maximum(x=high, y=half(6e-8)))
    return mb.mul(x=high, y=mb.sqrt(x=mb.add(x=half(1), y=mb.mul(x=ratio, y=ratio))))


@emits("logaddexp")
def _logaddexp(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, (x, y) = mil_builder(), operands
    apart = mb.mul(x=mb.abs(x=mb.sub(x=x, y=y)), y=half(-1))
    return mb.add(x=mb.maximum(x=x, y=y), y=mb.softplus(x=apart))


@emits("where")
def _where(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    condition, x, y = operands
    return mil_builder().select(cond=_as_bool(condition), a=x, b=y)


@emits("clip")
def _clip(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, (x, low, high) = mil_builder(), operands
    return mb.minimum(x=mb.maximum(x=x, y=low), y=high)


@emits("cast")
def _cast(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    if outputs[0].dtype is dt.bool_:
        return _as_bool(operands[0])
    return mil_builder().identity(x=_as_half(operands[0]))


# ---- reductions ----


def _reduce(mil: str) -> Emit:
    def emit(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
        return _reduced(mil, _as_half(operands[0]), attributes)

    return emit


def _reduced(mil: str, x: Any, attributes: Attributes, keepdims: bool | None = None) -> Any:
    axes = list(normalize_axes(attributes["axis"], x.rank))
    keep = attributes["keepdims"] if keepdims is None else keepdims
    return getattr(mil_builder(), mil)(x=x, axes=axes, keep_dims=bool(keep))


EMIT |= {name: _reduce(f"reduce_{name}") for name in ("sum", "mean", "max", "min")}


def _truth(mil: str) -> Emit:
    def emit(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
        flags = _as_half(_as_bool(operands[0]))
        return _as_bool(_reduced(mil, flags, attributes))

    return emit


EMIT |= {"any": _truth("reduce_max"), "all": _truth("reduce_min")}


@emits("var")
def _var(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, x = mil_builder(), operands[0]
    centred = mb.sub(x=x, y=_reduced("reduce_mean", x, attributes, keepdims=True))
    mean = _reduced("reduce_mean", mb.mul(x=centred, y=centred), attributes)
    count = math.prod(x.shape[axis] for axis in normalize_axes(attributes["axis"], x.rank))
    correction = attributes["correction"]
    return mean if not correction else _mul(mean, half(count / max(count - correction, 1e-9)))


@emits("norm")
def _norm(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x = operands[0]
    if attributes["ord"] == math.inf:
        return _reduced("reduce_max", _op("abs", x), attributes)
    return _reduced(f"reduce_l{int(attributes['ord'])}_norm", x, attributes)


@emits("log_softmax")
def _log_softmax(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x = operands[0]
    total = mil_builder().reduce_log_sum_exp(x=x, axes=[attributes["axis"]], keep_dims=True)
    return mil_builder().sub(x=x, y=total)


# ---- norms ----


def _scaled(normed: Any, weight: Any, bias: Any) -> Any:
    mb = mil_builder()
    normed = normed if weight is None else mb.mul(x=normed, y=weight)
    return normed if bias is None else mb.add(x=normed, y=bias)


def _layer_normed(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    normed = mil_builder().layer_norm(x=x, axes=[-1], epsilon=half(eps))
    return _scaled(normed, weight, bias)


def rms_normed(x: Any, weight: Any, eps: float) -> Any:
    """RMSNorm as a layer norm of (x, -x), whose mean is zero: squares stay inside it."""
    mb = mil_builder()
    both = mb.concat(values=(x, mb.mul(x=x, y=half(-1))), axis=-1)
    normed = mb.layer_norm(x=both, axes=[-1], epsilon=half(eps))
    first = mb.slice_by_index(x=normed, begin=[0] * x.rank, end=list(x.shape))
    return _scaled(first, weight, None)


def _padded(operands: Operands, count: int) -> list[Any]:
    return [*operands, *[None] * (count - len(operands))]


@emits("layer_norm")
def _layer_norm(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x, weight, bias = _padded(operands, 3)
    return _layer_normed(x, weight, bias, attributes["eps"])


@emits("rms_norm")
def _rms_norm(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x, weight = _padded(operands, 2)
    return rms_normed(x, weight, attributes["eps"])


def _added(norm: Callable[..., Any], operands: int) -> Emit:
    def emit(given: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
        x, residual, *others = _padded(given, operands)
        total = mil_builder().add(x=x, y=residual)
        return norm(total, *others, attributes["eps"]), total

    return emit


EMIT |= {"add_rms_norm": _added(rms_normed, 3), "add_layer_norm": _added(_layer_normed, 4)}


# ---- products ----


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: _gelu(x, "none"),
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
}


@emits("matmul")
def _matmul(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, (x, y, bias) = mil_builder(), _padded(operands, 3)
    left = x if len(x.shape) > 1 else _matrix(x, (1, -1))
    right = y if len(y.shape) > 1 else _matrix(y, (-1, 1))
    product = mb.matmul(x=left, y=right)
    product = reshaped(product, outputs[0].shape)
    if bias is not None:
        product = mb.add(x=product, y=bias)
    name = attributes["activation"]
    if name is None:
        return product
    return _ACTIVATIONS[name](product) if name in _ACTIVATIONS else _op(name, product)


def _matrix(x: Any, shape: tuple[int, int]) -> Any:
    return (
        x.reshape(shape) if isinstance(x, np.ndarray) else mil_builder().reshape(x=x, shape=shape)
    )


@emits("quantized_matmul")
def _quantized(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, x, scheme = mil_builder(), operands[0], attributes["scheme"]
    decode = TABLE["decode_blocks"].reference
    weights = [
        decode(*parts, scheme=scheme).astype(np.float16)
        for parts in weights_of(operands[1:], attributes["count"])
    ]
    return tuple(mb.linear(x=x, weight=weight) for weight in weights)


@emits("conv2d")
def _conv(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x, weight, bias = _padded(operands, 3)
    place = window(tuple(x.shape), weight.shape[2:], attributes)
    extra = {} if bias is None or not isinstance(bias, np.ndarray) else {"bias": bias}
    made = mil_builder().conv(
        x=x,
        weight=weight,
        strides=list(place.stride),
        dilations=list(place.dilation),
        groups=int(attributes["groups"]),
        pad_type="custom",
        pad=_pads(place),
        **extra,
    )
    if bias is None or extra:
        return made
    return mil_builder().add(x=made, y=mil_builder().reshape(x=bias, shape=(1, -1, 1, 1)))


def _pads(place: Window) -> list[int]:
    return [place.before[0], place.after[0], place.before[1], place.after[1]]


@emits("max_pool2d", "avg_pool2d")
def _pool(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    place = pooling(tuple(operands[0].shape), attributes)
    common = {
        "x": operands[0],
        "kernel_sizes": list(place.size),
        "strides": list(place.stride),
        "pad_type": "custom",
        "pad": _pads(place),
    }
    if "count_include_pad" not in attributes:
        return mil_builder().max_pool(**common)
    without = not attributes["count_include_pad"]
    return mil_builder().avg_pool(**common, exclude_padding_from_average=without)


# ---- attention ----


@emits("attention")
def _attention(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb = mil_builder()
    query, key, value, mask, *_ = _padded(operands, 6)
    batch, heads, count, size = query.shape
    groups, keys = key.shape[1], key.shape[2]
    share = heads // groups
    scale = attributes["scale"]
    if scale is not None:  # the operation has 1 / sqrt(size) of its own
        query = mb.mul(x=query, y=half(scale * size**0.5))
    grouped = reshaped(query, (batch, groups, share * count, size))
    seen = _mask(attributes, count, keys, mask, (batch, heads, groups))
    extra = {} if seen is None else {"attn_mask": seen}
    made = mb.scaled_dot_product_attention(query=grouped, key=key, value=value, **extra)
    return reshaped(made, outputs[0].shape)


def _mask(
    attributes: Attributes, count: int, keys: int, mask: Any, sizes: tuple[int, int, int]
) -> Any:
    """What is added to the scores of (batch, key heads, shared queries, keys)."""
    mb, (batch, heads, groups) = mil_builder(), sizes
    share = heads // groups
    hidden = np.zeros((1, 1, count, keys), np.float16)
    if attributes["causal"]:
        place, key = np.arange(count)[:, None] + keys - count, np.arange(keys)
        outside = key > place
        if attributes["window"]:
            outside |= key <= place - attributes["window"]
        hidden[..., outside] = HIDDEN_SCORE
    elif mask is None:
        return None
    if mask is None:
        return np.tile(hidden, (1, 1, share, 1))
    # -inf of a mask becomes the lowest score that fp16 can add to others.
    low = mb.maximum(x=_as_half(mask), y=half(HIDDEN_SCORE))
    wide = (1,) * (4 - low.rank) + tuple(low.shape)
    whole = mb.add(
        x=reshaped(low, wide), y=np.broadcast_to(hidden, (batch, heads, count, keys)).copy()
    )
    return reshaped(whole, (batch, groups, share * count, keys))


@emits("rope")
def _rope(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    mb, (x, positions, factors) = mil_builder(), _padded(operands, 3)
    size = x.shape[-1]
    dims = size if attributes["dims"] is None else int(attributes["dims"])
    if not dims:
        return mb.identity(x=x)
    pairs = dims // 2
    rates = attributes["scale"] * attributes["base"] ** (-np.arange(pairs) / pairs)
    if factors is not None:
        rates = rates / np.asarray(factors, np.float64)
    angles = np.asarray(positions)[..., None] * rates
    first = np.arange(0, dims, 2) if attributes["interleaved"] else np.arange(pairs)
    second = first + 1 if attributes["interleaved"] else first + pairs
    cos, sin = np.ones((*angles.shape[:-1], size)), np.zeros((*angles.shape[:-1], size))
    cos[..., first] = cos[..., second] = np.cos(angles)
    sin[..., first], sin[..., second] = -np.sin(angles), np.sin(angles)
    swapped = np.arange(size, dtype=np.int32)
    swapped[first], swapped[second] = second, first
    other = mb.gather(x=x, indices=swapped, axis=x.rank - 1)
    return mb.add(
        x=mb.mul(x=x, y=cos.astype(np.float16)), y=mb.mul(x=other, y=sin.astype(np.float16))
    )


# ---- movement ----


@emits("concat")
def _concat(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    return mil_builder().concat(values=list(operands), axis=attributes["axis"])


@emits("pad")
def _pad(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    widths = [n for pair in attributes["widths"] for n in pair]
    return mil_builder().pad(
        x=operands[0], pad=widths, mode="constant", constant_val=half(attributes["value"])
    )


@emits("take")
def _take(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x, indices = operands
    axis = attributes["axis"] % x.rank
    places = np.asarray(indices)
    inside = (places >= -x.shape[axis]) & (places < x.shape[axis])
    if not inside.all() and attributes["beyond"] == "raise":
        raise IndexError(f"index {places[~inside][0]} is beyond an axis of {x.shape[axis]}")
    places = np.where(inside, places % x.shape[axis], 0).astype(np.int32)
    made = mil_builder().gather(x=x, indices=places.reshape(-1), axis=axis)
    if not inside.all():
        kept = inside.reshape(-1, *[1] * (x.rank - axis - 1)).astype(np.float16)
        made = mil_builder().mul(x=made, y=kept)
    return reshaped(made, outputs[0].shape)


@emits("gather")
def _gather(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x, indices = operands
    axis = attributes["axis"] % x.rank
    places = (np.asarray(indices) % x.shape[axis]).astype(np.int32)
    return mil_builder().gather_along_axis(x=x, indices=places, axis=axis)


@emits("sort", "topk")
def _topk(operands: Operands, attributes: Attributes, outputs: Sequence[Spec]) -> Any:
    x = operands[0]
    sorting = "k" not in attributes
    ascending = not attributes["descending"] if sorting else not attributes["largest"]
    k = x.shape[attributes["axis"]] if sorting else int(attributes["k"])
    return mil_builder().topk(x=x, k=k, axis=attributes["axis"], ascending=ascending)[0]
