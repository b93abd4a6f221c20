"""Linear maps, embeddings, dropout, and layers of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lbrx.nn.module import Module
from lbrx.tensors import quantized, random
from lbrx.tensors.core import Tensor, call


class Identity(Module):
    """Returns its argument; takes any arguments when it is made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Linear(Module):
    """x @ weight.T + bias, with a weight of shape (output_dims, input_dims).

    The weight may be a quantized tensor: then it is multiplied as it is stored, and is not trained.
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        scale = math.sqrt(1 / input_dims)
        self.weight = random.uniform((output_dims, input_dims), -scale, scale)
        if bias:
            self.bias = random.uniform((output_dims,), -scale, scale)

    def _extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"input_dims={inputs}, output_dims={outputs}, bias={hasattr(self, 'bias')}"

    def __call__(self, x: Tensor) -> Tensor:
        return quantized.linear(x, self.weight, getattr(self, "bias", None))


class Bilinear(Module):
    """x1 @ weight[o] @ x2 for each output o, plus a bias."""

    def __init__(
        self, input1_dims: int, input2_dims: int, output_dims: int, bias: bool = True
    ) -> None:
        super().__init__()
        scale = math.sqrt(1 / input1_dims)
        self.weight = random.uniform((output_dims, input2_dims, input1_dims), -scale, scale)
        if bias:
            self.bias = random.uniform((output_dims,), -scale, scale)

    def _extra_repr(self) -> str:
        outputs, second, first = self.weight.shape
        return f"input1_dims={first}, input2_dims={second}, output_dims={outputs}"

    def __call__(self, x1: Tensor, x2: Tensor) -> Tensor:
        outputs, second, first = self.weight.shape
        made = quantized.linear(x1, self.weight.reshape(outputs * second, first))
        made = made.reshape(*x1.shape[:-1], outputs, second) @ x2[..., None]
        result = made[..., 0]
        return result + self.bias if hasattr(self, "bias") else result


class Embedding(Module):
    """Rows of a matrix (num_embeddings, dims) by index. The weight may be quantized."""

    def __init__(self, num_embeddings: int, dims: int) -> None:
        super().__init__()
        self.weight = random.normal((num_embeddings, dims), 0.0, math.sqrt(1 / dims))

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

    def __call__(self, x: Tensor) -> Tensor:
        return quantized.embedding(self.weight, x)

    def as_linear(self, x: Tensor) -> Tensor:
        """x @ weight.T, as for the output of a model that shares its embedding."""
        return quantized.linear(x, self.weight)


class _Dropout(Module):
    """Sets parts of its argument to zero while training, and divides the rest by their share."""

    _last = 0
    """Axes at the end that are dropped as a whole, without the last one."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p={p} is not a probability below 1")
        self._kept = 1 - p

    def _extra_repr(self) -> str:
        return f"p={1 - self._kept}"

    def __call__(self, x: Tensor) -> Tensor:
        if self._kept == 1 or not self.training:
            return x
        end = x.ndim - 1
        dropped = range(end - self._last, end)
        shape = tuple(1 if i in dropped else n for i, n in enumerate(x.shape))
        mask = random.bernoulli(shape, self._kept, device=x.device)
        return call("where", mask, x * (1 / self._kept), 0)


class Dropout(_Dropout):
    """Each element is zero with probability p while training; the others are divided by 1 - p."""


class Dropout2d(_Dropout):
    """Whole channels of images (..., height, width, channels) are zero with probability p."""

    _last = 2


class Dropout3d(_Dropout):
    """Whole channels of volumes (..., depth, height, width, channels) are zero."""

    _last = 3


class Sequential(Module):
    """Calls modules, or functions, one after the other."""

    def __init__(self, *modules: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = list(modules)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class QuantizedLinear(Module):
    """A linear map whose weight is quantized, as `quantize` makes it of `Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._weight = weight
        if bias is not None:
            self.bias = bias
            self.freeze()

    @classmethod
    def from_linear(cls, layer: Linear, scheme: str = "mlx:4:64") -> QuantizedLinear:
        """The layer with its weight quantized by a scheme."""
        weight = quantized.quantize(layer.weight, scheme)
        return cls(weight, getattr(layer, "bias", None))

    def _extra_repr(self) -> str:
        outputs, inputs = self._weight.shape
        return f"input_dims={inputs}, output_dims={outputs}, {self._weight.metadata.quantization}"

    def __call__(self, x: Tensor) -> Tensor:
        return quantized.linear(x, self._weight, getattr(self, "bias", None))
