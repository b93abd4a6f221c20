"""Convolutions and pooling, channels first. In one dimension they are those of one row."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.errors import ShapeError
from lbrx.ops.convolution import Padding, Sizes2
from lbrx.tensor.core import Tensor, call
from lbrx.tensor.functions.arguments import TensorLike, as_tensor, as_tensors

Padding1 = int | str | Sequence[int]
"""One number, (before, after), "valid" or "same"."""


def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes2 = 1,
    padding: Padding = 0,
    dilation: Sizes2 = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of images (N, C, H, W) with filters (O, C / groups, h, w), plus a bias (O).

    Stride and dilation are one integer or (height, width). Padding is one integer, (height, width),
    ((top, bottom), (left, right)), "valid" (none) or "same" (ceil(size / stride) results). Products
    are summed in float32 and the result, (N, O, H', W'), is rounded once. Operands are floating.

        lbrx.conv2d(lbrx.ones((1, 3, 32, 32)), lbrx.ones((8, 3, 3, 3)), padding="same")
    """
    attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return call("conv2d", x, weight, bias, **attributes)


def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int = 1,
    padding: Padding1 = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of sequences (N, C, L) with filters (O, C / groups, l), plus a bias (O).

    Padding is one integer, (before, after), "valid" or "same", as in `conv2d`.
    """
    sequences, filters = as_tensors(x, weight)
    made = conv2d(
        _as_images(sequences, "x", "(sequences, channels, length)"),
        _as_images(filters, "the weight", "(filters, channels / groups, length)"),
        bias,
        (1, stride),
        _one_row(padding),
        (1, dilation),
        groups,
    )
    return made.squeeze(2)


def max_pool2d(
    x: TensorLike, kernel_size: Sizes2, stride: Sizes2 | None = None, padding: Padding = 0
) -> Tensor:
    """The largest element under a window over images (N, C, H, W); NaN if there is one.

    Padding does not count as an element. The stride is the window's size unless given.
    """
    return call("max_pool2d", x, kernel_size=kernel_size, stride=stride, padding=padding)


def max_pool1d(
    x: TensorLike, kernel_size: int, stride: int | None = None, padding: Padding1 = 0
) -> Tensor:
    """`max_pool2d` over sequences (N, C, L)."""
    images = _as_images(as_tensor(x), "x", "(sequences, channels, length)")
    step = (1, kernel_size if stride is None else stride)
    return max_pool2d(images, (1, kernel_size), step, _one_row(padding)).squeeze(2)


def avg_pool2d(
    x: TensorLike,
    kernel_size: Sizes2,
    stride: Sizes2 | None = None,
    padding: Padding = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean under a window over images (N, C, H, W), summed in float32.

    Padding counts as zeros, or not at all with count_include_pad=False. The stride is the window's
    size unless given.
    """
    attributes = {"stride": stride, "padding": padding, "count_include_pad": count_include_pad}
    return call("avg_pool2d", x, kernel_size=kernel_size, **attributes)


def avg_pool1d(
    x: TensorLike,
    kernel_size: int,
    stride: int | None = None,
    padding: Padding1 = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """`avg_pool2d` over sequences (N, C, L)."""
    images = _as_images(as_tensor(x), "x", "(sequences, channels, length)")
    step = (1, kernel_size if stride is None else stride)
    pooled = avg_pool2d(images, (1, kernel_size), step, _one_row(padding), count_include_pad)
    return pooled.squeeze(2)


def _as_images(x: Tensor, name: str, axes: str) -> Tensor:
    if x.ndim != 3:
        raise ShapeError(f"{name} has shape {x.shape}: give {axes}")
    return x.unsqueeze(2)


def _one_row(padding: Padding1) -> Padding:
    """The padding of a sequence as that of an image of one row."""
    if isinstance(padding, str):
        return padding
    both = (padding, padding) if isinstance(padding, int) else tuple(padding)
    return ((0, 0), both)
