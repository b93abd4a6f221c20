"""Elementwise operations and activations. Gradients of operands that broadcast are summed later."""

from __future__ import annotations

import math

from lbrx.ops.vjp import Rule, differentiable
from lbrx.tensors.core import Tensor, call

_LOG_2 = math.log(2)
_LOG_10 = math.log(10)


def _where(condition: Tensor, x: object, y: object) -> Tensor:
    return call("where", condition, x, y)


def _shared(g: Tensor, chosen: Tensor, equal: Tensor) -> Tensor:
    """The gradient of the chosen operand; of equal ones, each has a half."""
    return _where(chosen, g, _where(equal, g * 0.5, 0))


def _one_plus_square(x: Tensor) -> Tensor:
    return 1 + x * x


# Operations that are constant between their jumps have a gradient of zero.
_STEPS = ("sign", "floor", "ceil", "trunc", "round", "floor_divide")

_UNARY: dict[str, Rule] = {
    "negative": lambda g: -g,
    "square": lambda g, x: g * x * 2,
    "abs": lambda g, x: g * x.sign(),
    "exp": lambda g, output: g * output,
    "exp2": lambda g, output: g * output * _LOG_2,
    "expm1": lambda g, output: g * (output + 1),
    "log": lambda g, x: g / x,
    "log2": lambda g, x: g / (x * _LOG_2),
    "log10": lambda g, x: g / (x * _LOG_10),
    "log1p": lambda g, x: g / (x + 1),
    "sqrt": lambda g, output: g * 0.5 / output,
    "rsqrt": lambda g, output: g * -0.5 * (output * output * output),
    "reciprocal": lambda g, output: -g * (output * output),
    "sin": lambda g, x: g * x.cos(),
    "cos": lambda g, x: -g * x.sin(),
    "tan": lambda g, output: g * _one_plus_square(output),
    "asin": lambda g, x: g * (1 - x * x).rsqrt(),
    "acos": lambda g, x: -g * (1 - x * x).rsqrt(),
    "atan": lambda g, x: g / _one_plus_square(x),
    "sinh": lambda g, x: g * x.cosh(),
    "cosh": lambda g, x: g * x.sinh(),
    "asinh": lambda g, x: g * _one_plus_square(x).rsqrt(),
    "acosh": lambda g, x: g * (x * x - 1).rsqrt(),
    "atanh": lambda g, x: g / (1 - x * x),
    "erf": lambda g, x: g * (-(x * x)).exp() * (2 / math.sqrt(math.pi)),
    "relu": lambda g, output: _where(output > 0, g, 0),
    "leaky_relu": lambda g, x, slope: _where(x > 0, g, g * slope),
    "sigmoid": lambda g, output: g * output * (1 - output),
    "tanh": lambda g, output: g * (1 - output * output),
    "softplus": lambda g, x: g * x.sigmoid(),
    "silu": lambda g, x: g * _silu_slope(x),
    "gelu": lambda g, x, approximate: g * _gelu_slope(x, approximate),
    "copy": lambda g: g,
    "cast": lambda g: g,
}


def _silu_slope(x: Tensor) -> Tensor:
    s = x.sigmoid()
    return s * (1 + x * (1 - s))


def _gelu_slope(x: Tensor, approximate: str) -> Tensor:
    if approximate == "tanh":
        factor = math.sqrt(2 / math.pi)
        t = (factor * (x + 0.044715 * x * x * x)).tanh()
        inner = factor * (1 + 3 * 0.044715 * x * x)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner
    area = 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    return area + x * (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))


def slope_of(activation: str, x: Tensor) -> Tensor:
    """The derivative at x of an activation that products take."""
    match activation:
        case "relu":
            return (x > 0).astype(x.dtype)
        case "gelu" | "gelu_tanh":
            return _gelu_slope(x, "tanh" if activation == "gelu_tanh" else "none")
        case "silu":
            return _silu_slope(x)
        case "sigmoid":
            s = x.sigmoid()
            return s * (1 - s)
        case "tanh":
            t = x.tanh()
            return 1 - t * t
    raise ValueError(f"activation={activation!r} has no derivative here: add it")


def _power_of(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    # 0 ** -1 is infinite, and its product with the power 0 not a number.
    return g * _where(y == 0, 0, y * x ** _where(y == 0, 1, y - 1))


def _power_to(g: Tensor, x: Tensor, output: Tensor) -> Tensor:
    """At x = 0 the limit, 0; the logarithm of a negative x is not a number."""
    return g * output * _where(x == 0, 1, x).log()


def _same_sign(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _where(call("signbit", x) == call("signbit", y), g, -g)


def _declare() -> None:
    for name in _STEPS:
        differentiable(name, **({"x": _nothing} if name != "floor_divide" else _both(_nothing)))
    for name, rule in _UNARY.items():
        differentiable(name, x=rule)
    differentiable("add", **_both(lambda g: g))
    differentiable("subtract", x=lambda g: g, y=lambda g: -g)
    differentiable("multiply", x=lambda g, y: g * y, y=lambda g, x: g * x)
    differentiable("divide", x=lambda g, y: g / y, y=lambda g, y, output: -g * output / y)
    differentiable(
        "maximum",
        x=lambda g, x, y: _shared(g, x > y, x == y),
        y=lambda g, x, y: _shared(g, y > x, x == y),
    )
    differentiable(
        "minimum",
        x=lambda g, x, y: _shared(g, x < y, x == y),
        y=lambda g, x, y: _shared(g, y < x, x == y),
    )
    differentiable("remainder", x=lambda g: g, y=lambda g, x, y: -g * call("floor_divide", x, y))
    differentiable("pow", x=_power_of, y=_power_to)
    differentiable(
        "atan2",
        x=lambda g, x, y: g * y / (x * x + y * y),
        y=lambda g, x, y: -g * x / (x * x + y * y),
    )
    differentiable("copysign", x=_same_sign, y=_nothing)
    differentiable(
        "hypot", x=lambda g, x, output: g * x / output, y=lambda g, y, output: g * y / output
    )
    differentiable(
        "logaddexp",
        x=lambda g, x, output: g * (x - output).exp(),
        y=lambda g, y, output: g * (y - output).exp(),
    )
    differentiable(
        "where",
        x=lambda g, condition: _where(condition, g, 0),
        y=lambda g, condition: _where(condition, 0, g),
    )
    differentiable("fma", x=lambda g, y: g * y, y=lambda g, x: g * x, z=lambda g: g)
    differentiable(
        "clip",
        x=lambda g, x, low, high: _where((x >= low) & (x <= high), g, 0),
        low=lambda g, x, low, high: _where((x < low) & (low <= high), g, 0),
        high=lambda g, x, low, high: _where(call("maximum", x, low) > high, g, 0),
    )
    differentiable(
        "swiglu",
        gate=lambda g, gate, x: g * x * _silu_slope(gate),
        x=lambda g, gate: g * gate.silu(),
    )
    differentiable(
        "geglu",
        gate=lambda g, gate, x, approximate: g * x * _gelu_slope(gate, approximate),
        x=lambda g, gate, approximate: g * gate.gelu(approximate=approximate),
    )


def _nothing(g: Tensor) -> None:
    return None


def _both(rule: Rule) -> dict[str, Rule]:
    return {"x": rule, "y": rule}


_declare()
