"""The registry of schemes, and the functions that use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import Shape, list_of
from lbrx.errors import DtypeError, QuantizationError, ShapeError
from lbrx.quant import affine_schemes, checkpoint_schemes, gguf, mlx_schemes
from lbrx.quant.info import ArrayT, QuantizationInfo
from lbrx.quant.scheme import FloatArray, Scheme, decode, encode

SCHEMES: dict[str, Scheme] = {}
"""Every scheme by its name."""
DEFAULT_GROUP = 64
_BESIDE = {"scales", "zero_points", "biases"}
_UNIT = 16  # values that a codec reads with one scale, as in kernels/quantized/quant_blocks.h


def register(scheme: Scheme) -> Scheme:
    """Add a scheme, which `quantize`, tensors and kernels then know by its name.

    Raises QuantizationError for a name that exists already and for a record that tensors or kernels
    cannot use.
    """
    if problem := _problem(scheme):
        raise QuantizationError(f"the quantization scheme {scheme.name!r} {problem}")
    SCHEMES[scheme.name] = scheme
    return scheme


def _problem(scheme: Scheme) -> str | None:
    if scheme.name in SCHEMES:
        return "exists already: give another name"
    if scheme.name != scheme.name.lower():
        return "has capital letters in its name: use lower case"
    first, *beside = scheme.fields or ("",)
    if scheme.planar and (first != "data" or not set(beside) <= _BESIDE):
        known = list_of(sorted(_BESIDE))
        return f"has the fields {list_of(scheme.fields)}: planar schemes have data, then {known}"
    if scheme.codec is not None and scheme.elements % _UNIT:
        return f"has blocks of {scheme.elements}: codecs read multiples of {_UNIT} values"
    if scheme.codec_source and f"struct {scheme.codec} " not in scheme.codec_source:
        return f"has a codec_source without a struct {scheme.codec}: name it like the codec"
    return None


_GROUPED = (*affine_schemes.SCHEMES, *mlx_schemes.SCHEMES, *checkpoint_schemes.SCHEMES)
for _scheme in (*gguf.SCHEMES, *_GROUPED):
    register(_scheme)


class Quantized(NamedTuple):
    """Encoded values. `data` is uint8 rows of blocks or uint32 rows of packed codes, with the
    values' leading axes."""

    data: NDArray[Any]
    info: QuantizationInfo[NDArray[Any]]


def find(name: str | Scheme) -> Scheme:
    """The scheme of a name, in any case; `q4` and `mlx:4` mean groups of 64."""
    if isinstance(name, Scheme):
        return name
    lowered = str(name).lower()
    scheme = SCHEMES.get(lowered) or SCHEMES.get(f"{lowered}:{DEFAULT_GROUP}")
    if scheme is None:
        families = {s.name for s in _GROUPED}
        blocks = ", ".join(name for name in SCHEMES if name not in families)
        groups, bits = list_of(affine_schemes.GROUP_SIZES), affine_schemes.BITS
        raise QuantizationError(
            f"{name!r} is not a quantization scheme: give one of {blocks}; qBITS:GROUP or "
            f"qBITS:GROUP:symmetric with bits {bits[0]} to {bits[-1]}; "
            f"mlx:BITS:GROUP with bits {list_of(mlx_schemes.BITS)}; groups of {groups}; "
            "mlx:mxfp4, mlx:mxfp8 or mlx:nvfp4; those of checkpoints, which are only decoded: "
            f"{', '.join(s.name for s in checkpoint_schemes.SCHEMES)}"
        )
    return scheme


def quantize(
    array: NDArray[Any], scheme: str | Scheme, importance: NDArray[Any] | None = None
) -> Quantized:
    """Encode a floating array whose last axis is a multiple of the scheme's block.

    `importance` weighs the errors of each column: the mean square of the activations that the
    column is multiplied with, as [columns] or with the leading axes of the array. Only schemes with
    `heeds_importance` use it. Raises QuantizationError for NaN, infinity, values beyond a scale's
    range, and schemes that lbrx only decodes.
    """
    known = find(scheme)
    if known.encode is None:
        raise QuantizationError(
            f"lbrx only decodes {known.name}, whose encoding is a search in a code book: "
            "use q2_k, q3_k or tq2_0"
        )
    if not dt.parse(array.dtype).is_float:
        raise DtypeError(f"{known.name} stores floating values, not {array.dtype}: cast first")
    parts = encode(array, known, importance)
    data = parts.pop("data")
    return Quantized(data, describe(known, **parts))


def describe(scheme: str | Scheme, **arrays: ArrayT) -> QuantizationInfo[ArrayT]:
    """The QuantizationInfo of data in a scheme, with its `scales`, `zero_points` or `biases`."""
    known = find(scheme)
    return QuantizationInfo(
        known.name,
        known.bits,
        known.group_size,
        known.symmetric,
        scales=arrays.get("scales"),
        zero_points=arrays.get("zero_points"),
        biases=arrays.get("biases"),
    )


def dequantize(
    data: NDArray[Any] | bytes | bytearray | memoryview,
    scheme: str | Scheme | QuantizationInfo[NDArray[Any]],
    shape: Sequence[int] | None = None,
) -> FloatArray:
    """Decode to float32. Bytes need the values' `shape`; an array has the values' leading axes.

    Raises QuantizationError for missing companions and ShapeError for sizes that do not fit.
    """
    info = scheme if isinstance(scheme, QuantizationInfo) else describe(scheme)
    known = find(info.scheme)
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if not known.planar:
        array = np.ascontiguousarray(array).view(np.uint8)
    parts = {"data": array, **info.arrays}
    if missing := set(known.fields if known.planar else ()) - parts.keys():
        raise QuantizationError(
            f"{known.name} needs {list_of(sorted(missing))} besides its data: "
            "give the QuantizationInfo that quantize returned, or describe(...) them"
        )
    wanted = _shape_of(array, known) if shape is None else tuple(shape)
    _check_sizes(parts, known, wanted)
    return decode(parts, known, wanted)


def _shape_of(data: NDArray[Any], scheme: Scheme) -> Shape:
    """The shape of the values that rows of blocks hold."""
    size = math.prod(scheme.layout["data"].shape) if scheme.planar else scheme.block_bytes
    if not data.ndim or data.shape[-1] % size:
        raise ShapeError(
            f"{scheme.name} data of shape {data.shape} are not whole blocks: their last axis must "
            f"be a multiple of {size}"
        )
    return (*data.shape[:-1], data.shape[-1] // size * scheme.elements)


def _check_sizes(parts: dict[str, NDArray[Any]], scheme: Scheme, shape: Shape) -> None:
    blocks = scheme.blocks(shape)
    if not scheme.planar:
        if parts["data"].nbytes != blocks * scheme.block_bytes:
            raise ShapeError(
                f"{scheme.name} of shape {shape} takes {blocks * scheme.block_bytes} bytes "
                f"({blocks} blocks of {scheme.block_bytes}), not {parts['data'].nbytes}"
            )
        return
    for name, part in parts.items():
        expected = scheme.part_shape(name, shape)
        if part.size != math.prod(expected):
            raise ShapeError(
                f"{scheme.name} of shape {shape} has {name} of shape {expected}, not {part.shape}"
            )
