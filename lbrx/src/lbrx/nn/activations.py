"""Activation functions, and modules that apply them."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.nn.module import Module
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import full


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return x.relu()


def relu2(x: Tensor) -> Tensor:
    """relu(x)**2."""
    return x.relu().square()


def relu6(x: Tensor) -> Tensor:
    """x between 0 and 6."""
    return call("clip", x, 0, 6)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where x > 0, else negative_slope * x."""
    return x.leaky_relu(slope=negative_slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    # exp of what is positive would overflow, and its gradient be 0 times infinity.
    return call("where", x > 0, x, call("minimum", x, 0).expm1() * alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""
    return x.relu() + (call("minimum", x, 0) / alpha).expm1() * alpha


def selu(x: Tensor) -> Tensor:
    """`elu` with the scale and alpha that keep mean and variance."""
    return elu(x, 1.6732632423543772) * 1.0507009873554805


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.sigmoid()


def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return -(-x).softplus()


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return x.softplus()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish."""
    return x.silu()


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return x * x.softplus().tanh()


def gelu(x: Tensor) -> Tensor:
    """x times the cumulative normal distribution of x."""
    return x.gelu()


def gelu_approx(x: Tensor) -> Tensor:
    """`gelu` by tanh."""
    return x.gelu(approximate="tanh")


def gelu_fast_approx(x: Tensor) -> Tensor:
    """`gelu` as x * sigmoid(1.702 x)."""
    return x * (x * 1.702).sigmoid()


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second."""
    first, second = x.split(2, axis=axis)
    return first * second.sigmoid()


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return x.tanh()


def hard_tanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x between two values."""
    return call("clip", x, min_val, max_val)


def hard_shrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0."""
    return call("where", x.abs() > lambd, x, 0)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x brought nearer to 0 by lambd, and 0 where |x| <= lambd."""
    return call("where", x.abs() > lambd, x - x.sign() * lambd, 0)


def hardswish(x: Tensor) -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x * relu6(x + 3) / 6


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return x / (1 + x.abs())


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return x.softmax(axis=axis)


def softmin(x: Tensor, axis: int = -1) -> Tensor:
    """softmax(-x)."""
    return (-x).softmax(axis=axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x))."""
    return x.log_softmax(axis=axis)


def step(x: Tensor, threshold: float = 0.0) -> Tensor:
    """1 where x > threshold, else 0."""
    return call("where", x > threshold, 1.0, 0.0).astype(x.dtype)


def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    """max(x, 0) + alpha * min(x, 0)."""
    return x.relu() + alpha * call("minimum", x, 0)


class _Activation(Module):
    """A module that applies a function with the module's options."""

    _function: Callable[..., Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return type(self)._function(x)


def _plain(name: str, function: Callable[..., Tensor]) -> type[Module]:
    """A module without options; its docstring is that of the function."""
    members = {"_function": staticmethod(function), "__doc__": function.__doc__}
    return type(name, (_Activation,), {**members, "__module__": __name__})


ReLU = _plain("ReLU", relu)
ReLU2 = _plain("ReLU2", relu2)
ReLU6 = _plain("ReLU6", relu6)
SELU = _plain("SELU", selu)
Sigmoid = _plain("Sigmoid", sigmoid)
LogSigmoid = _plain("LogSigmoid", log_sigmoid)
Softplus = _plain("Softplus", softplus)
SiLU = _plain("SiLU", silu)
Mish = _plain("Mish", mish)
Tanh = _plain("Tanh", tanh)
HardTanh = _plain("HardTanh", hard_tanh)
Hardswish = _plain("Hardswish", hardswish)
Softsign = _plain("Softsign", softsign)
Softmax = _plain("Softmax", softmax)
Softmin = _plain("Softmin", softmin)
LogSoftmax = _plain("LogSoftmax", log_softmax)


class _WithNumber(Module):
    """A module whose function takes one number."""

    _function: Callable[..., Tensor]
    _number: float

    def __call__(self, x: Tensor) -> Tensor:
        return type(self)._function(x, self._number)


def _numbered(
    name: str, function: Callable[..., Tensor], option: str, value: float
) -> type[Module]:
    """A module with one option."""

    def init(self: _WithNumber, number: float = value) -> None:
        Module.__init__(self)
        self._number = number

    init.__doc__ = f"{option}: see the function."
    members = {"_function": staticmethod(function), "__init__": init, "__doc__": function.__doc__}
    return type(name, (_WithNumber,), {**members, "__module__": __name__})


LeakyReLU = _numbered("LeakyReLU", leaky_relu, "negative_slope", 0.01)
ELU = _numbered("ELU", elu, "alpha", 1.0)
CELU = _numbered("CELU", celu, "alpha", 1.0)
HardShrink = _numbered("HardShrink", hard_shrink, "lambd", 0.5)
Softshrink = _numbered("Softshrink", softshrink, "lambd", 0.5)
Step = _numbered("Step", step, "threshold", 0.0)
GLU = _numbered("GLU", glu, "axis", -1)


class PReLU(Module):
    """`prelu` with a parameter for each feature, or one for all."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = full((num_parameters,), init)

    def __call__(self, x: Tensor) -> Tensor:
        return prelu(x, self.weight)


class GELU(Module):
    """`gelu`: exact with approx="none", by tanh with "precise" or "tanh", by sigmoid with
    "fast"."""

    _KINDS = ("none", "precise", "tanh", "fast")

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if approx not in self._KINDS:
            raise ValueError(f"approx={approx!r} is not known: give one of {self._KINDS}")
        self._approx = approx

    def __call__(self, x: Tensor) -> Tensor:
        if self._approx == "fast":
            return gelu_fast_approx(x)
        return gelu(x) if self._approx == "none" else gelu_approx(x)
