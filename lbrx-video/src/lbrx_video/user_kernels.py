"""A user's Metal kernel as a function of frames."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from lbrx.extension.errors import LbrxError
from lbrx.extension.tensors import Kernel, Tensor

GIVEN = ("width", "height", "channels", "number", "time")
"""Constants that a kernel gets without being given them, if it declares them."""


class FrameKernel:
    """Runs a kernel on each frame of a batch.

    The kernel reads a frame, `device const float*`, and writes one, `device float*`: red, green and
    blue one after the other, row by row, black 0 and white 1. Its grid is (width, height). The
    constants `width`, `height`, `channels`, `number` (of the frame) and `time` (in seconds) are
    given to kernels that declare them; all other arguments are parameters.

    >>> kernel = FrameKernel(Path("gain.metal"), {"gain": 1.2}, rate=24)
    >>> graded = kernel(frames, first=0)
    """

    def __init__(self, path: Path, parameters: Mapping[str, Any], rate: Fraction) -> None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as problem:
            raise LbrxError(f"{path} cannot be read: {problem}") from None
        self._kernel = Kernel(text, None, None, None, True, False)
        self._rate = rate
        inputs, outputs = self._kernel.arguments()
        known = [name for name in inputs if name not in (*GIVEN, *parameters)]
        if unknown := sorted(set(parameters) - set(inputs)):
            raise LbrxError(
                f"{path}: {self._kernel.name} has no parameter {', '.join(unknown)}: "
                f"it has {', '.join(inputs)}"
            )
        if len(known) != 1 or len(outputs) != 1:
            raise LbrxError(
                f"{path}: {self._kernel.name} has the arguments {', '.join((*inputs, *outputs))}, "
                f"of which {', '.join(known) or 'none'} is not set: one is the frame that it reads "
                "and one the frame that it writes, so set the others"
            )
        self._frame = known[0]
        self._inputs = inputs
        self._parameters = dict(parameters)

    def __call__(self, frames: Tensor, first: int) -> list[Tensor]:
        """The results for frames (frames, channels, height, width), of which the first has that
        number."""
        _, channels, height, width = frames.shape
        made = []
        for i in range(frames.shape[0]):
            number = first + i
            constants = {
                "width": width,
                "height": height,
                "channels": channels,
                "number": number,
                "time": float(number / self._rate) if self._rate else 0.0,
            }
            used = {name: constants[name] for name in self._inputs if name in constants}
            made.append(
                self._kernel(
                    **{self._frame: frames[i], **used, **self._parameters},
                    grid=(width, height),
                    shapes=[(channels, height, width)],
                )
            )
        return made
