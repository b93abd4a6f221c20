"""How weights are stored in a program for the Neural Engine, and the conversion from ours.

| form | stored as | encoded from |
|---|---|---|
| f16 | fp16 | the values |
| int8, int4 | integers, one fp16 scale for each output channel | the values |
| lut8, lut6, lut4 | indices into one table of fp16 for each matrix | the values, by k-means |
| stored | integers and block scales of our file, bit for bit | q8_0, q4_0, q4:*, q8:* |

The Neural Engine takes scales of whole channels and tables; block scales run on the GPU or CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.errors import LbrxError
from lbrx.neural_engine.binding import mil_builder, mil_types
from lbrx.quant.affine_schemes import codes_of
from lbrx.quant.bits import unpack_runs
from lbrx.tensors.core import Tensor
from lbrx.tensors.quantized import dequantize, stored_parts

KMEANS_STEPS = 12
_KMEANS_SAMPLE = 1 << 20  # values that a table is fitted to
_CHUNK = 1 << 18  # values at a time, so that their indices stay in the cache


class WeightForm(StrEnum):
    """How the matrices of an exported program are stored."""

    F16 = "f16"
    INT8 = "int8"
    INT4 = "int4"
    LUT8 = "lut8"
    LUT6 = "lut6"
    LUT4 = "lut4"
    STORED = "stored"


def parse_form(name: str) -> WeightForm:
    """The form of this name. Raises LbrxError for a name that is not one."""
    if name not in {form.value for form in WeightForm}:
        raise LbrxError(f"{name!r} is not a form of weights: give {', '.join(WeightForm)}")
    return WeightForm(name)


@dataclass(frozen=True)
class ProgramWeight:
    """A matrix (rows, columns) as constants of a program."""

    operation: str
    """The constexpr operation that decompresses the parts; "const" for plain values."""
    parts: Mapping[str, NDArray[Any]]
    """Arrays by the name of the operation's input; axis 0 of each is the rows, or has length 1."""
    bits: int
    """Bits of one stored value."""

    @property
    def rows(self) -> int:
        return max(len(part) for part in self.parts.values())

    @property
    def nbytes(self) -> int:
        """Bytes in the package."""
        main, *others = self.parts.values()
        return main.size * self.bits // 8 + sum(part.nbytes for part in others)

    def take(self, rows: NDArray[np.intp] | slice) -> ProgramWeight:
        """Some rows, or all in another order."""
        shared = self.rows
        parts = {
            name: part[rows] if len(part) == shared else part for name, part in self.parts.items()
        }
        return ProgramWeight(self.operation, parts, self.bits)

    def emit(self, name: str) -> Any:
        """The weight of a 1x1 convolution, (rows, columns, 1, 1), as a variable of the function
        that is being built. Functions of one program share the bytes of weights of one name."""
        mb = mil_builder()
        given = {key: _constant(part, f"{name}_{key}") for key, part in self.parts.items()}
        if self.operation == "const":
            return given["val"]
        return getattr(mb, self.operation)(**given, name=f"{name}_values")


def _constant(values: NDArray[Any], name: str) -> Any:
    made = mil_builder().const(val=values, name=name)
    made.op.weight_id = name
    return made


def program_weight(tensor: Tensor, form: WeightForm) -> ProgramWeight:
    """The matrix of a tensor in a form; in fp16 where `stored` does not have its encoding."""
    if form is WeightForm.STORED:
        return _as_stored(tensor) or _plain(values_of(tensor))
    if form is WeightForm.F16:
        return _plain(values_of(tensor))
    values = values_of(tensor, dt.float32)
    if form in (WeightForm.INT8, WeightForm.INT4):
        return _by_channel(values, int(form[3:]))
    return _by_table(values, int(form[3:]))


def values_of(tensor: Tensor, dtype: dt.Dtype = dt.float16) -> NDArray[Any]:
    """The values of a tensor, quantized or not. Raises LbrxError if fp16 cannot hold them."""
    values = dequantize(tensor, dtype).numpy()
    if dtype is dt.float16 and not np.isfinite(values).all():
        name = tensor.metadata.name or "a weight"
        raise LbrxError(
            f"{name} has values beyond the range of float16, in which the Neural Engine computes: "
            "use another file"
        )
    return values


def _plain(values: NDArray[Any]) -> ProgramWeight:
    return ProgramWeight("const", {"val": _as_kernel(values.astype(np.float16, copy=False))}, 16)


def _as_kernel(matrix: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(matrix).reshape(*matrix.shape, 1, 1)


def _integers(values: NDArray[Any], bits: int, signed: bool) -> NDArray[Any]:
    """Integers in the type by which coremltools knows their bits."""
    if bits == 8:
        return values.astype(np.int8 if signed else np.uint8)
    kind = getattr(mil_types(), f"np_{'' if signed else 'u'}int{bits}_dtype")
    return values.astype(kind)


def _by_channel(values: NDArray[Any], bits: int) -> ProgramWeight:
    top = (1 << (bits - 1)) - 1
    scales = (np.abs(values).max(axis=1, keepdims=True) / top).astype(np.float16)
    safe = np.where(scales == 0, 1, scales).astype(np.float32)
    codes = np.rint(values / safe).clip(-top, top)
    data = _integers(_as_kernel(codes), bits, signed=True)
    parts = {"data": data, "scale": _as_kernel(scales)}
    return ProgramWeight("constexpr_blockwise_shift_scale", parts, bits)


def _by_table(values: NDArray[Any], bits: int) -> ProgramWeight:
    table = _fitted_table(values.reshape(-1), 1 << bits)
    borders = (table[1:].astype(np.float32) + table[:-1]) / 2
    indices = _integers(_as_kernel(_places(borders, values)), bits, signed=False)
    parts = {"indices": indices, "lut": table.reshape(1, 1, 1, 1, -1, 1)}
    return ProgramWeight("constexpr_lut_to_dense", parts, bits)


def _places(borders: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint8]:
    """np.searchsorted(borders, values) for at most 255 borders, several times as fast.

    The upper half of a value's bits says how many borders lie below all values with this half. Few
    halves have borders among their values, and only these are compared.
    """
    halves = np.arange(1 << 16, dtype=np.uint32) << 16
    ends = halves.view(np.float32), (halves | 0xFFFF).view(np.float32)
    below, up_to = (np.searchsorted(borders, end(*ends)) for end in (np.fmin, np.fmax))
    inner = (up_to - below).max()
    padded = np.append(borders, [np.float32(np.inf)] * (inner + 1))
    own = [np.where(up_to - below > i, padded[below + i], np.inf) for i in range(inner)]
    first, compared = below.astype(np.uint8), [each.astype(np.float32) for each in own]
    places = np.empty(values.size, np.uint8)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        half = flat[part].view(np.uint32) >> 16
        found = first[half]
        for border in compared:
            found += flat[part] > border[half]
        places[part] = found
    return places.reshape(values.shape)


def _fitted_table(values: NDArray[Any], entries: int) -> NDArray[np.float16]:
    """A sorted table by Lloyd's algorithm, from quantiles of an even sample of the values."""
    sample = np.sort(values[:: max(1, values.size // _KMEANS_SAMPLE)])
    sums = np.concatenate(([0.0], np.cumsum(sample, dtype=np.float64)))
    # Quantiles of sorted values.
    table = np.interp((np.arange(entries) + 0.5) / entries, np.linspace(0, 1, sample.size), sample)
    for _ in range(KMEANS_STEPS):
        edges = np.searchsorted(sample, (table[1:] + table[:-1]) / 2)
        first, last = np.concatenate(([0], edges)), np.concatenate((edges, [sample.size]))
        counts = last - first
        means = (sums[last] - sums[first]) / np.maximum(counts, 1)
        table = np.where(counts > 0, means, table)
    return np.sort(table).astype(np.float16)


def _as_stored(tensor: Tensor) -> ProgramWeight | None:
    """The codes and scales of an encoding that Core ML has too; None for any other."""
    found = stored_parts(tensor)
    if found is None:
        return None
    name, parts = found
    scheme = quant.find(name)
    rows, columns = tensor.shape
    arrays = {key: part.numpy() for key, part in parts.items()}
    groups = (rows, columns // scheme.elements)
    if name in ("q8_0", "q4_0"):
        blocks = arrays["data"].reshape(-1).view(scheme.layout)
        scales = blocks["d"].reshape(groups)
        if name == "q8_0":
            return _scaled(blocks["qs"].reshape(rows, columns), scales, None, 8, signed=True)
        codes = unpack_runs(blocks["qs"], 4, 16).reshape(rows, columns)
        return _scaled(codes, scales, np.full(groups, 8), 4, signed=False)
    if name.startswith(("q4:", "q8:")):
        words = arrays["data"].reshape(-1, *scheme.layout["data"].shape)
        codes = codes_of(words, scheme.bits).reshape(rows, columns)
        zeros = arrays.get("zero_points", np.full(groups, 1 << (scheme.bits - 1)))
        scales = arrays["scales"].reshape(groups)
        return _scaled(codes, scales, zeros.reshape(groups), scheme.bits, signed=False)
    return None


def _scaled(
    codes: NDArray[Any],
    scales: NDArray[Any],
    offsets: NDArray[Any] | None,
    bits: int,
    signed: bool,
) -> ProgramWeight:
    parts = {
        "data": _integers(_as_kernel(codes), bits, signed),
        "scale": _as_kernel(scales.astype(np.float16, copy=False)),
    }
    if offsets is not None:
        parts["offset"] = _integers(_as_kernel(offsets), bits, signed)
    return ProgramWeight("constexpr_blockwise_shift_scale", parts, bits)
