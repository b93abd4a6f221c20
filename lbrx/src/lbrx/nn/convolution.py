"""Convolutions and pooling with the channels in the last axis, as in MLX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lbrx.errors import ShapeError
from lbrx.gradients.rules.convolution import widened, with_gaps
from lbrx.nn.module import Module
from lbrx.tensors import random
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.creation import zeros

Sizes = int | Sequence[int]


def _each(value: Sizes, count: int) -> tuple[int, ...]:
    """One number, or one for each axis, as one for each axis."""
    both = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(both) != count:
        raise ShapeError(f"{value!r}: give one integer, or {count}")
    return both


class _Convolution(Module):
    """Weights (outputs, window, inputs / groups) over (batch, space, inputs)."""

    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups:
            raise ShapeError(f"groups={groups} do not divide {in_channels} channels")
        size = _each(kernel_size, self._axes)
        scale = math.sqrt(1 / (in_channels * math.prod(size)))
        shape = (out_channels, *size, in_channels // groups)
        self.weight = random.uniform(shape, -scale, scale)
        if bias:
            self.bias = zeros((out_channels,))
        self._stride = _each(stride, self._axes)
        self._padding = _each(padding, self._axes)
        self._dilation = _each(dilation, self._axes)
        self._groups = groups

    def _extra_repr(self) -> str:
        outputs, *size, inputs = self.weight.shape
        return (
            f"{inputs * self._groups}, {outputs}, kernel_size={tuple(size)}, "
            f"stride={self._stride}, padding={self._padding}, dilation={self._dilation}, "
            f"groups={self._groups}, bias={hasattr(self, 'bias')}"
        )

    def __call__(self, x: Tensor) -> Tensor:
        images, weight = _images(x, self._axes), _images(self.weight, self._axes)
        rest: dict[str, Any] = {
            "stride": _two(self._stride, 1),
            "padding": _two(self._padding, 0),
            "dilation": _two(self._dilation, 1),
            "groups": self._groups,
        }
        made = call("conv2d", images, weight, getattr(self, "bias", None), **rest)
        return _channels_last(made, self._axes)


def _images(x: Tensor, axes: int) -> Tensor:
    """(batch, space, channels) as (batch, channels, height, width)."""
    if x.ndim != axes + 2:
        raise ShapeError(f"shape {x.shape}: give (batch, {'height, ' * (axes - 1)}width, channels)")
    return x.permute(0, 3, 1, 2) if axes == 2 else x.permute(0, 2, 1).unsqueeze(2)


def _channels_last(x: Tensor, axes: int) -> Tensor:
    return x.permute(0, 2, 3, 1) if axes == 2 else x.squeeze(2).permute(0, 2, 1)


def _two(values: tuple[int, ...], missing: int) -> tuple[int, int]:
    return (values[0], values[1]) if len(values) == 2 else (missing, values[0])


class Conv1d(_Convolution):
    """Cross-correlation of sequences (batch, length, channels) with filters (outputs, window,
    channels / groups), plus a bias."""

    _axes = 1


class Conv2d(_Convolution):
    """Cross-correlation of images (batch, height, width, channels) with filters (outputs, height,
    width, channels / groups), plus a bias."""


class _Transposed(Module):
    """The gradient of a convolution with regard to its images, as a layer."""

    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        output_padding: Sizes = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        size = _each(kernel_size, self._axes)
        scale = math.sqrt(1 / (in_channels * math.prod(size)))
        self.weight = random.uniform((out_channels, *size, in_channels), -scale, scale)
        if bias:
            self.bias = zeros((out_channels,))
        self._stride = _each(stride, self._axes)
        self._padding = _each(padding, self._axes)
        self._dilation = _each(dilation, self._axes)
        self._output_padding = _each(output_padding, self._axes)

    def _extra_repr(self) -> str:
        outputs, *size, inputs = self.weight.shape
        return (
            f"{inputs}, {outputs}, kernel_size={tuple(size)}, stride={self._stride}, "
            f"padding={self._padding}, dilation={self._dilation}, "
            f"output_padding={self._output_padding}, bias={hasattr(self, 'bias')}"
        )

    def __call__(self, x: Tensor) -> Tensor:
        images, weight = _images(x, self._axes), _images(self.weight, self._axes)
        stride, dilation = _two(self._stride, 1), _two(self._dilation, 1)
        padding, more = _two(self._padding, 0), _two(self._output_padding, 0)
        reach = [(n - 1) * d for n, d in zip(weight.shape[2:], dilation, strict=True)]
        widths = [
            (r - pad, r - pad + extra) for r, pad, extra in zip(reach, padding, more, strict=True)
        ]
        made = call(
            "conv2d",
            widened(with_gaps(images, stride), widths),
            weight.flip((2, 3)),
            getattr(self, "bias", None),
            dilation=dilation,
        )
        return _channels_last(made, self._axes)


class ConvTranspose1d(_Transposed):
    """Transposed convolution of sequences (batch, length, channels)."""

    _axes = 1


class ConvTranspose2d(_Transposed):
    """Transposed convolution of images (batch, height, width, channels)."""


class _Pool(Module):
    """A pooling of the axes between the first and the last one."""

    _axes = 2
    _operation = "max_pool2d"

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self._size = _each(kernel_size, self._axes)
        self._stride = self._size if stride is None else _each(stride, self._axes)
        self._padding = _each(padding, self._axes)

    def _extra_repr(self) -> str:
        return f"kernel_size={self._size}, stride={self._stride}, padding={self._padding}"

    def __call__(self, x: Tensor) -> Tensor:
        rest: dict[str, Any] = {
            "kernel_size": _two(self._size, 1),
            "stride": _two(self._stride, 1),
            "padding": _two(self._padding, 0),
        }
        return _channels_last(call(self._operation, _images(x, self._axes), **rest), self._axes)


class MaxPool1d(_Pool):
    """The largest element under a window over (batch, length, channels)."""

    _axes = 1


class MaxPool2d(_Pool):
    """The largest element under a window over (batch, height, width, channels)."""


class AvgPool1d(_Pool):
    """The mean under a window over (batch, length, channels); padding counts as zeros."""

    _axes = 1
    _operation = "avg_pool2d"


class AvgPool2d(_Pool):
    """The mean under a window over (batch, height, width, channels); padding counts as zeros."""

    _operation = "avg_pool2d"
