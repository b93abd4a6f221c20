"""How much two clips differ: PSNR and SSIM, as FFmpeg's filters of these names define them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

from lbrx.extension.errors import ShapeError
from lbrx.extension.tensors import Tensor
from lbrx_video.clip import Clip
from lbrx_video.pixel_formats import ColorModel
from lbrx_video.planes import Planes

BLOCK, WINDOW = 4, 64  # side of a block; samples of a window, which is two by two blocks
BATCH = 8  # frames


@dataclass
class Comparison:
    """The differences of two clips by component, over the frames that both have.

    psnr is in decibels, of the mean squared error over all frames; inf if there is none. ssim is
    the mean over windows of 8 x 8 samples. "all" weights components by their samples.
    """

    names: tuple[str, ...]
    frames: tuple[int, int] = (0, 0)
    """Of both clips."""
    matrices: tuple[str | None, str | None] = (None, None)
    """That both clips are read with, by name."""
    coded: bool = False
    """Whether codes were compared, which mean different colors if the matrices differ."""
    _errors: list[list[float]] = field(default_factory=list)
    _similar: list[list[float]] = field(default_factory=list)
    _weights: tuple[float, ...] = ()

    @property
    def psnr(self) -> dict[str, float]:
        return {name: decibels(value) for name, value in self._means(self._errors).items()}

    @property
    def ssim(self) -> dict[str, float]:
        return self._means(self._similar)

    def _means(self, values: list[list[float]]) -> dict[str, float]:
        count = max(len(values), 1)
        means = [sum(row[i] for row in values) / count for i in range(len(self.names))]
        total = sum(m * w for m, w in zip(means, self._weights, strict=True))
        return dict(zip((*self.names, "all"), (*means, total), strict=True))

    def add(self, first: list[Tensor], second: list[Tensor], top: float) -> None:
        """Compare frames: a tensor (frames, rows, columns) for each component."""
        sizes = [math.prod(tensor.shape[1:]) for tensor in first]
        self._weights = tuple(size / sum(sizes) for size in sizes)
        pairs = [
            (a.astype("float32"), b.astype("float32")) for a, b in zip(first, second, strict=True)
        ]
        errors = [((a - b) / top).square().mean(axis=(1, 2)).tolist() for a, b in pairs]
        similar = [similarity(a, b, top).tolist() for a, b in pairs]
        self._errors += map(list, zip(*errors, strict=True))
        self._similar += map(list, zip(*similar, strict=True))


def decibels(error: float) -> float:
    """Of a mean squared error relative to the largest value."""
    return math.inf if error == 0 else -10 * math.log10(error)


def similarity(a: Tensor, b: Tensor, top: float) -> Tensor:
    """SSIM of each frame: sums over blocks of 4 x 4, windows of two by two neighbouring blocks.

    Planes below 8 x 8 raise ShapeError.
    """
    rows, columns = (n // BLOCK for n in a.shape[1:])
    if min(rows, columns) < 2:
        raise ShapeError(f"planes of {a.shape[1]} x {a.shape[2]}: SSIM needs at least 8 x 8")
    middle = (top + 1) / 2  # variances of values around 0 lose no digits
    x, y = (_blocked(values - middle, rows, columns) for values in (a, b))
    sums = [_windows(each.sum(axis=(2, 4))) for each in (x, y, x * x + y * y, x * y)]
    s1, s2, squares, products = sums
    variance = squares * WINDOW - s1 * s1 - s2 * s2
    covariance = products * WINDOW - s1 * s2
    m1, m2 = s1 + middle * WINDOW, s2 + middle * WINDOW
    c1 = (0.01 * top) ** 2 * WINDOW
    c2 = (0.03 * top) ** 2 * WINDOW * (WINDOW - 1)
    means = (m1 * m2 * 2 + c1) / (m1 * m1 + m2 * m2 + c1)
    return (means * ((covariance * 2 + c2) / (variance + c2))).mean(axis=(1, 2))


def _blocked(values: Tensor, rows: int, columns: int) -> Tensor:
    whole = values[:, : rows * BLOCK, : columns * BLOCK]
    return whole.reshape(values.shape[0], rows, BLOCK, columns, BLOCK)


def _windows(blocks: Tensor) -> Tensor:
    upper, lower = blocks[:, :-1], blocks[:, 1:]
    both = upper + lower
    return both[:, :, :-1] + both[:, :, 1:]


def compare(first: Clip, second: Clip) -> Comparison:
    """Compare two clips of one size frame by frame: by component of their codes if their pixel
    formats are equal and planar, else as RGB limited to 0..1."""
    if first.size != second.size:
        raise ShapeError(
            f"{first.path} is {first.size[1]} x {first.size[0]} and {second.path} "
            f"{second.size[1]} x {second.size[0]}: resize one of them first"
        )
    coded = _same_codes(first, second)
    pairs = _coded(first, second) if coded else _as_rgb(first, second)
    matrices = (first.facts.matrix_name, second.facts.matrix_name)
    result: Comparison | None = None
    counts = [0, 0]
    for names, top, parts in pairs:
        if result is None:
            result = Comparison(names, matrices=matrices, coded=coded)
        lengths = [0 if part is None else part[0].shape[0] for part in parts]
        counts = [count + n for count, n in zip(counts, lengths, strict=True)]
        a, b = parts
        if a is not None and b is not None:
            common = min(lengths)
            result.add([x[:common] for x in a], [x[:common] for x in b], top)
    if result is None or min(counts) == 0:
        raise ShapeError(f"{first.path} and {second.path} have no frames in common")
    result.frames = (counts[0], counts[1])
    return result


Pairs = Iterator[tuple[tuple[str, ...], float, tuple[list[Tensor] | None, list[Tensor] | None]]]


def _same_codes(first: Clip, second: Clip) -> bool:
    name = first.facts.pixel_format
    return name == second.facts.pixel_format and not name.startswith(("p0", "p2", "p4", "nv"))


def _coded(first: Clip, second: Clip) -> Pairs:
    for a, b in zip_longest(first.planes(BATCH), second.planes(BATCH)):
        known = a or b
        order = {ColorModel.RGB: "GBRA", ColorModel.GRAY: "YA"}.get(known.format.model, "YUVA")
        top = 2.0**known.format.depth - 1
        yield tuple(order[: known.format.planes]), top, (_tensors(a), _tensors(b))


def _tensors(planes: Planes | None) -> list[Tensor] | None:
    return None if planes is None else list(planes.tensors)


def _as_rgb(first: Clip, second: Clip) -> Pairs:
    for a, b in zip_longest(first.batches(BATCH, clip=True), second.batches(BATCH, clip=True)):
        yield ("R", "G", "B"), 1.0, (_channels(a), _channels(b))


def _channels(frames: Tensor | None) -> list[Tensor] | None:
    return None if frames is None else [frames[:, i] for i in range(3)]
