"""Functions about dtypes, as the Python array API standard has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike, Scalar
from lbrx.errors import DtypeError
from lbrx.tensor.core import Tensor, call

_KINDS: dict[str, frozenset[Dtype]] = {
    "bool": frozenset({dt.bool_}),
    "signed integer": frozenset(d for d in dt.ALL if d.kind is dt.Kind.INT),
    "unsigned integer": frozenset(d for d in dt.ALL if d.kind is dt.Kind.UINT),
    "integral": frozenset(d for d in dt.ALL if d.is_integer),
    "real floating": frozenset(d for d in dt.ALL if d.is_float),
    "complex floating": frozenset(),
    "numeric": frozenset(d for d in dt.ALL if d is not dt.bool_),
}


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating dtype."""

    bits: int
    eps: float
    """The distance from 1 to the next larger number."""
    max: float
    min: float
    smallest_normal: float
    dtype: Dtype


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Dtype


def _dtype_of(value: DtypeLike | Tensor) -> Dtype:
    return value.dtype if isinstance(value, Tensor) else dt.parse(value)


def finfo(type: DtypeLike | Tensor, /) -> FloatInfo:
    """The limits of a floating dtype, or of a tensor's: `lbrx.finfo("bfloat16").max`."""
    dtype = _dtype_of(type)
    if not dtype.is_float:
        raise DtypeError(f"{dtype} is not a floating dtype: use iinfo for integers")
    facts: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return FloatInfo(
        bits=dtype.itemsize * 8,
        eps=float(facts.eps),
        max=float(facts.max),
        min=float(facts.min),
        smallest_normal=float(facts.smallest_normal),
        dtype=dtype,
    )


def iinfo(type: DtypeLike | Tensor, /) -> IntegerInfo:
    """The limits of an integer dtype, or of a tensor's: `lbrx.iinfo("int8").min`."""
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise DtypeError(f"{dtype} is not an integer dtype: use finfo for floating ones")
    facts = np.iinfo(dtype.numpy)
    return IntegerInfo(dtype.itemsize * 8, int(facts.max), int(facts.min), dtype)


def isdtype(dtype: DtypeLike, kind: DtypeLike | str | tuple[DtypeLike | str, ...]) -> bool:
    """Whether a dtype is of a kind: another dtype, a name such as "integral" or "real floating",
    or any of a tuple of these."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(_is_kind(dt.parse(dtype), each) for each in kinds)


def _is_kind(dtype: Dtype, kind: DtypeLike | str) -> bool:
    if isinstance(kind, str) and kind in _KINDS:
        return dtype in _KINDS[kind]
    return dtype is dt.parse(kind)


def can_cast(from_: DtypeLike | Tensor, to: DtypeLike, /) -> bool:
    """Whether promotion may turn the first dtype into the second one."""
    target = dt.parse(to)
    return dt.promote(_dtype_of(from_), target) is target


def result_type(*arrays_and_dtypes: Tensor | DtypeLike | Scalar) -> Dtype:
    """The dtype of an operation on these tensors, dtypes and Python numbers.

    Numbers are weak: `lbrx.result_type(lbrx.float16, 2.0)` is float16.
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type of nothing: give tensors, dtypes or numbers")
    weak = (bool, int, float)
    return dt.result_type(*(v if isinstance(v, weak) else _dtype_of(v) for v in arrays_and_dtypes))


def astype(
    x: Tensor, dtype: DtypeLike, /, *, copy: bool = True, device: str | None = None
) -> Tensor:
    """The elements as another dtype, on another device if one is given.

    Floats become integers by truncation; a float that does not fit gives an unspecified integer.
    Tensors are values, so a copy of the same dtype cannot be told from the tensor itself.
    """
    result = x.astype(dtype) if device is None else x.to_device(device).astype(dtype)
    return call("copy", result) if copy and result is x else result


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807
    """What this namespace offers, as the array API standard asks."""
    return NamespaceInfo()


class NamespaceInfo:
    """Capabilities, devices and dtypes of the array namespace `lbrx`."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing and results whose shape depends on values are supported."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        from lbrx.tensor.placement import default_device

        return default_device()

    def devices(self) -> list[str]:
        from lbrx.tensor.placement import NAMES

        return list(NAMES)

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Dtype | None]:
        """The dtypes of tensors that are created without one."""
        return {
            "real floating": dt.float32,
            "complex floating": None,
            "integral": dt.int64,
            "indexing": dt.int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Dtype]:
        """The dtypes of a device by name, all or those of a kind; metal has no float64."""
        from lbrx.tensor.placement import default_device

        place = device or default_device()
        there = [d for d in dt.ALL if place == "cpu" or d.msl is not None]
        return {d.name: d for d in there if kind is None or isdtype(d, kind)}
