"""What frames a caller wants: the arguments of a conversion, checked."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.extension.errors import FormatError, LbrxError, ShapeError
from lbrx.extension.tensors import DtypeLike, Tensor
from lbrx.extension.tensors import dtypes as dt
from lbrx_video.color import Color
from lbrx_video.conversion import Samples, ToFrames
from lbrx_video.operations import to_frames
from lbrx_video.planes import Planes
from lbrx_video.resampling import check_filter
from lbrx_video.transfer import check_transfer


class FrameOptions:
    """The arguments of `Clip.batches` that say how planes become frames.

    What they mean depends on the planes: `conversion` gives the conversion of some of them.
    """

    def __init__(
        self,
        *,
        size: Sequence[int] | None = None,
        crop: Sequence[float] | None = None,
        filter: str = "bilinear",
        antialias: bool = True,
        dtype: DtypeLike = dt.float32,
        layout: str = "NCHW",
        alpha: bool = False,
        clip: bool = False,
        transfer: str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        color: Color | None = None,
    ) -> None:
        self._size = None if size is None else _numbers("size", size, 2)
        self._crop = None if crop is None else _numbers("crop", crop, 4)
        self._filter, self._antialias = check_filter(filter), antialias
        self._dtype, self._layout = dt.parse(dtype), layout
        self._alpha, self._clip, self._color = alpha, clip, color
        self._transfer = None if transfer is None else check_transfer(transfer)
        channels = 4 if alpha else 3
        means = _numbers("mean", [0.0] * channels if mean is None else mean, channels)
        stds = _numbers("std", [1.0] * channels if std is None else std, channels)
        if 0 in stds:
            raise LbrxError(f"std={std}: give values other than 0")
        self._scale = tuple(1 / s for s in stds)
        self._offset = tuple(-m / s for m, s in zip(means, stds, strict=True))
        self._known: tuple[tuple[object, ...], ToFrames] | None = None

    def frames(self, planes: Planes) -> Tensor:
        key = (planes.format, planes.height, planes.width, planes.color)
        if self._known is None or self._known[0] != key:
            self._known = key, self.conversion(planes)
        return to_frames(planes, self._known[1])

    def conversion(self, planes: Planes) -> ToFrames:
        color = planes.color if self._color is None else self._color
        matrix = color.matrix_name
        if matrix is None:
            raise FormatError(
                f"frames with matrix {color.matrix} of H.273 are not supported: "
                "give color=, with a matrix that fits"
            )
        source = color.transfer_name or "bt709"
        same = self._transfer is None or self._transfer == source
        light = None if same or source == "linear" else source
        code = None if same or self._transfer == "linear" else self._transfer
        size = (planes.height, planes.width)
        box = (0.0, 0.0, *map(float, size)) if self._crop is None else self._crop
        if self._size is not None:
            size = (int(self._size[0]), int(self._size[1]))
        elif self._crop is not None:
            size = (round(box[2]), round(box[3]))
        samples = Samples(
            *(planes.format, planes.height, planes.width),
            *(matrix, color.full_range, color.siting),
        )
        return ToFrames(
            samples,
            (box[0], box[1], box[2], box[3]),
            size,
            *(self._filter, self._antialias, light, code, self._clip),
            *(self._scale, self._offset, self._alpha, self._layout, self._dtype),
        )


def _numbers(name: str, given: Sequence[float], count: int) -> tuple[float, ...]:
    values = tuple(given)
    if len(values) != count:
        raise ShapeError(f"{name}={given}: give {count} numbers")
    return values
