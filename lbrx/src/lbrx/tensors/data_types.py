"""Functions about dtypes, with the names and rules of the Python array API standard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike, Scalar
from lbrx.errors import DtypeError
from lbrx.tensors.core import Tensor, call

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
    """The limits of a floating dtype, as `finfo` returns them."""

    bits: int
    eps: float
    """The distance from 1 to the next larger number."""
    max: float
    min: float
    """The most negative number, -max."""
    smallest_normal: float
    """The smallest positive number with full precision."""
    dtype: Dtype


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype, as `iinfo` returns them."""

    bits: int
    max: int
    min: int
    dtype: Dtype


def _dtype_of(value: DtypeLike | Tensor) -> Dtype:
    return value.dtype if isinstance(value, Tensor) else dt.parse(value)


def finfo(type: DtypeLike | Tensor, /) -> FloatInfo:
    """The limits of a floating dtype, or of a tensor's dtype; DtypeError for other dtypes.

    >>> lbrx.finfo("float16").max
    65504.0
    """
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
    """The limits of an integer dtype, or of a tensor's dtype; DtypeError for other dtypes.

    >>> lbrx.iinfo("int8").min
    -128
    """
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise DtypeError(f"{dtype} is not an integer dtype: use finfo for floating ones")
    facts = np.iinfo(dtype.numpy)
    return IntegerInfo(dtype.itemsize * 8, int(facts.max), int(facts.min), dtype)


def isdtype(dtype: DtypeLike, kind: DtypeLike | str | tuple[DtypeLike | str, ...]) -> bool:
    """Whether a dtype is of a kind.

    A kind is a dtype, or one of the standard's names: "bool", "signed integer", "unsigned integer",
    "integral", "real floating", "complex floating" and "numeric". Of a tuple of kinds, any one.

    >>> lbrx.isdtype("uint8", ("bool", "integral"))
    True
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(_is_kind(dt.parse(dtype), each) for each in kinds)


def _is_kind(dtype: Dtype, kind: DtypeLike | str) -> bool:
    if isinstance(kind, str) and kind in _KINDS:
        return dtype in _KINDS[kind]
    return dtype is dt.parse(kind)


def can_cast(from_: DtypeLike | Tensor, to: DtypeLike, /) -> bool:
    """Whether a dtype, or a tensor's dtype, can be promoted to another: their promotion is `to`.

    >>> lbrx.can_cast("int8", "float16"), lbrx.can_cast("float32", "int64")
    (True, False)
    """
    target = dt.parse(to)
    return dt.promote(_dtype_of(from_), target) is target


def result_type(*arrays_and_dtypes: Tensor | DtypeLike | Scalar) -> Dtype:
    """The dtype to which these tensors, dtypes and Python numbers are promoted.

    Numbers are weak: they change the kind of the dtype, but not its width. Without arguments
    ValueError is raised.

    >>> lbrx.result_type(lbrx.float16, 2.0)
    lbrx.float16
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type has no arguments: give tensors, dtypes or numbers")
    weak = (bool, int, float)
    return dt.result_type(*(v if isinstance(v, weak) else _dtype_of(v) for v in arrays_and_dtypes))


def astype(
    x: Tensor, dtype: DtypeLike, /, *, copy: bool = True, device: str | None = None
) -> Tensor:
    """The elements converted to a dtype, on another device if one is given.

    Floats are truncated to integers; one outside the integer's range becomes its nearest value,
    and NaN becomes 0. A tensor that already has the dtype is copied, or returned itself with
    copy=False.
    """
    result = x.astype(dtype) if device is None else x.to_device(device).astype(dtype)
    return call("copy", result) if copy and result is x else result


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807
    """The inspection functions of the array API standard for this namespace."""
    return NamespaceInfo()


class NamespaceInfo:
    """Capabilities, devices and dtypes of the array namespace `lbrx`."""

    def capabilities(self) -> dict[str, Any]:
        """Supported features by name: boolean indexing and shapes that depend on values are."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device on which tensors are created unless one is given."""
        from lbrx.tensors.placement import default_device

        return default_device()

    def devices(self) -> list[str]:
        """The names of the devices, "cpu" and "metal"."""
        from lbrx.tensors.placement import NAMES

        return list(NAMES)

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Dtype | None]:
        """The dtypes of tensors that are created without a dtype, by kind; None: not supported."""
        return {
            "real floating": dt.float32,
            "complex floating": None,
            "integral": dt.int64,
            "indexing": dt.int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Dtype]:
        """The dtypes of a device by name, all or those of a kind; metal does not have float64."""
        from lbrx.tensors.placement import default_device

        place = device or default_device()
        there = [d for d in dt.ALL if place == "cpu" or d.msl is not None]
        return {d.name: d for d in there if kind is None or isdtype(d, kind)}
