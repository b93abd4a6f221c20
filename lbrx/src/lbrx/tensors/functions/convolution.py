"""Convolutions and pooling of sequences: those of images of one row."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.errors import ShapeError
from lbrx.ops.convolution import Padding
from lbrx.tensors.core import Tensor, call
from lbrx.tensors.functions.arguments import as_tensor, as_tensors
from lbrx.tensors.tensor_like import TensorLike

Padding1 = int | str | Sequence[int]
"""One number, (before, after), "valid" or "same"."""


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

    Padding is one integer, (before, after), "valid" (none) or "same" (ceil(length / stride)
    results). Products are summed in float32 and the result, (N, O, L'), is rounded once.

    >>> lbrx.conv1d(lbrx.ones((1, 3, 32)), lbrx.ones((8, 3, 5)), padding="same").shape
    (1, 8, 32)
    """
    sequences, filters = as_tensors(x, weight)
    result = call(
        "conv2d",
        _as_images(sequences, "x", "(sequences, channels, length)"),
        _as_images(filters, "the weight", "(filters, channels / groups, length)"),
        bias,
        stride=(1, stride),
        padding=_one_row(padding),
        dilation=(1, dilation),
        groups=groups,
    )
    return result.squeeze(2)


def max_pool1d(
    x: TensorLike, kernel_size: int, stride: int | None = None, padding: Padding1 = 0
) -> Tensor:
    """The largest element under a window over sequences (N, C, L); see `max_pool2d`."""
    return _pooled("max_pool2d", x, kernel_size, stride, padding)


def avg_pool1d(
    x: TensorLike,
    kernel_size: int,
    stride: int | None = None,
    padding: Padding1 = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean under a window over sequences (N, C, L); see `avg_pool2d`."""
    more = {"count_include_pad": count_include_pad}
    return _pooled("avg_pool2d", x, kernel_size, stride, padding, **more)


def _pooled(
    name: str,
    x: TensorLike,
    kernel_size: int,
    stride: int | None,
    padding: Padding1,
    **more: bool,
) -> Tensor:
    images = _as_images(as_tensor(x), "x", "(sequences, channels, length)")
    step = (1, kernel_size if stride is None else stride)
    widths = _one_row(padding)
    pooled = call(name, images, kernel_size=(1, kernel_size), stride=step, padding=widths, **more)
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
