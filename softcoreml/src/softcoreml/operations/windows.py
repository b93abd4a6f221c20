"""Where the windows of convolutions and poolings lie: padding, strides and output sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, integers, positive, require_size


@dataclass(frozen=True)
class Windows:
    """Windows along the spatial axes, one entry for each axis."""

    sizes: tuple[int, ...]
    """Elements of a window from its first to its last, dilation included."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    """Elements before and after the input. Windows at the end may reach beyond these."""
    outputs: tuple[int, ...]

    def padded(self, x: Array, value: float) -> Array:
        """The input (batch, channels, spatial...) with everything that the windows reach."""
        spatial = x.shape[2:]
        reach = [
            max((count - 1) * stride + size, length + sum(pad))
            for count, stride, size, length, pad in zip(
                self.outputs, self.strides, self.sizes, spatial, self.pads, strict=True
            )
        ]
        if tuple(reach) == spatial:
            return x
        require_size((*x.shape[:2], *reach), "pad")
        result = np.full((*x.shape[:2], *reach), value, dtype=x.dtype)
        inside = [
            slice(pad[0], pad[0] + length) for pad, length in zip(self.pads, spatial, strict=True)
        ]
        result[(slice(None), slice(None), *inside)] = x
        return result

    def view(self, padded: Array) -> Array:
        """Every window: (batch, channels, outputs..., elements of a window...), without a copy."""
        axes = tuple(range(2, 2 + len(self.sizes)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.sizes, axis=axes)
        taken = [
            slice(0, (count - 1) * stride + 1, stride)
            for count, stride in zip(self.outputs, self.strides, strict=True)
        ]
        inside = [slice(None, None, one) for one in self.dilations]
        return windows[(slice(None), slice(None), *taken, *inside)]


def _pads(
    pad_type: str,
    pad: Array | None,
    spatial: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    rank = len(spatial)
    if pad_type == "valid":
        return ((0, 0),) * rank
    if pad_type == "custom":
        given = (0,) * (2 * rank) if pad is None else integers(pad, "pad", 2 * rank)
        if min(given) < 0:
            raise ModelError(f"pad {list(given)} must not be negative")
        return tuple(zip(given[::2], given[1::2], strict=True))
    if pad_type not in ("same", "same_lower"):
        raise ModelError(f"pad_type {pad_type!r} is not one of valid, custom, same and same_lower")
    pairs = []
    for length, size, stride in zip(spatial, sizes, strides, strict=True):
        total = max(0, (-(-length // stride) - 1) * stride + size - length)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if pad_type == "same" else (large, small))
    return tuple(pairs)


def windows_of(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Array | None,
    dilations: Array | None,
    pad_type: str,
    pad: Array | None,
    ceil_mode: bool = False,
) -> Windows:
    """The windows of a kernel over an input with the given spatial sizes.

    With ceil_mode the last window may begin within the input or its padding in front and reach
    beyond its end, as in PyTorch. An odd padding of "same" has its larger half behind, that of
    "same_lower" in front.
    """
    rank = len(spatial)
    ones = (1,) * rank
    steps = positive(ones if strides is None else integers(strides, "strides", rank), "strides")
    spread = ones if dilations is None else integers(dilations, "dilations", rank)
    positive(spread, "dilations")
    positive(kernel, "the kernel")
    sizes = tuple((size - 1) * by + 1 for size, by in zip(kernel, spread, strict=True))
    pads = _pads(str(pad_type).lower(), pad, spatial, sizes, steps)
    outputs = []
    for length, size, step, sides in zip(spatial, sizes, steps, pads, strict=True):
        before, after = sides
        room = length + before + after - size
        count = room // step + 1
        if ceil_mode:
            count = -(-room // step) + 1
            if (count - 1) * step >= length + before and before + after:
                count -= 1
        if count < 1 or room < 0:
            raise ModelError(f"a window of {size} does not fit {room + size} elements of x")
        outputs.append(count)
    return Windows(sizes, steps, spread, pads, tuple(outputs))
