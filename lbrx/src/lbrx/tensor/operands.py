"""From the tensors, arrays and numbers of a call to what an operation computes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.dtype import Dtype, DtypeLike, Scalar
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.ops import TABLE, Op, OpFamily, Role
from lbrx.shape import Layout
from lbrx.storage import Array, CpuStorage, NumberStorage, PackedStorage
from lbrx.storage.cpu import copied, lent
from lbrx.tensor import derived
from lbrx.tensor import placement as devices
from lbrx.tensor.number import TracedNumber

SCALARS = 1024  # numbers that are kept as arrays

# An operand before numbers have found their type.
_Pending = Array | Scalar | TracedNumber | None


def as_scalar(value: object) -> Scalar | None:
    """A weak number, or None for what is not one."""
    if isinstance(value, np.generic | TracedNumber):
        value = value.item() if isinstance(value, np.generic) else float(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return None


def array_of(data: Any, device: str, dtype: DtypeLike | None = None) -> Array:
    """A copy of an array, a (nested) list or a number on a device, as a type that it has."""
    number = as_scalar(data)
    if number is not None:
        kind = dt.of_scalar(number) if dtype is None else dt.parse(dtype)
        return move(host_scalar(number, kind), device)
    values = _numpy(data)
    if values.dtype.kind not in "biuf" and values.dtype not in (d.numpy for d in dt.ALL):
        raise DtypeError(f"{type(data).__name__} of {values.dtype} is no tensor: give numbers")
    if dtype is not None:
        wanted = dt.parse(dtype)
        if not hasattr(data, "__array__") and values.size and values.dtype.kind in "iu":
            for limit in (values.min(), values.max()):
                dt.check_scalar(int(limit), wanted)
        return placed(values, wanted, device)
    if values.dtype == np.float64 and not hasattr(data, "__array__"):
        return placed(values, dt.float32, device)
    return placed(values, devices.kept_dtype(dt.parse(values.dtype), device), device)


def _numpy(data: Any) -> NDArray[Any]:
    try:
        return np.asarray(data)
    except ValueError as problem:  # numpy's for lists in which sizes differ
        kind = type(data).__name__
        raise ShapeError(f"{kind} is no tensor, make its parts equally long: {problem}") from None


def host_scalar(number: Scalar, dtype: Dtype) -> Array:
    """A number in memory of the host."""
    dt.check_scalar(number, dtype)
    with np.errstate(over="ignore"):
        data = np.asarray(number, dtype.numpy).reshape(1).view(np.uint8)
    return Array(CpuStorage(data), Layout((), ()), dtype)


def placed(values: NDArray[Any], dtype: Dtype, device: str) -> Array:
    """A copy of numpy's values in memory of the device, as the given type."""
    return copied(values, dtype) if device == "cpu" else move(lent(values, dtype), device)


def move(array: Array, device: str) -> Array:
    """The array on a device: itself, or a copy."""
    if array.storage.device == device:
        return array
    if (packed := derived.moved(array, lambda part: move(part, device))) is not None:
        return packed
    return devices.get(device).run(TABLE["copy"], [array], {})[0]


def expanded(array: Array) -> Array:
    """Itself; of values that a device keeps packed, those to compute with."""
    storage = array.storage
    if not isinstance(storage, PackedStorage) or storage.device == "cpu":
        return array
    rows = derived.packed_rows(array)
    parts = list((storage.parts if rows is None else rows).values())
    op = TABLE["decode_blocks"]
    made = devices.get(storage.device).run(op, parts, op.bind({"scheme": storage.scheme}))[0]
    return made if rows is not None else replace(array, storage=made.storage)


def common_device(arrays: Sequence[_Pending]) -> str:
    """The device of all tensors; scalars of the host go with any. The default one without any."""
    found: dict[str, Array] = {}
    for array in arrays:
        if isinstance(array, Array):
            name = array.storage.device
            if name != "cpu" or array.layout.ndim:
                found.setdefault(name, array)
    if len(found) > 1:
        (a, x), (b, y) = list(found.items())[:2]
        raise DeviceError(
            f"operands of shapes {x.layout.shape} and {y.layout.shape} are on {a!r} and {b!r}: "
            f"move one with to_device({a!r})"
        )
    if found:
        return next(iter(found))
    return "cpu" if any(isinstance(x, Array) for x in arrays) else devices.default_device()


def prepare(op: Op, values: Sequence[Any]) -> tuple[str, list[Array | None]]:
    """The device of a call and its operands there. Tensors are what has an `array`; other
    array-likes are brought to the tensors' device; a number takes the type it meets."""
    pending: list[_Pending] = []
    foreign: list[int] = []
    for i, value in enumerate(values):
        array = None if isinstance(value, TracedNumber) else getattr(value, "array", None)
        if isinstance(array, Array):
            pending.append(expanded(array))
        elif value is None or isinstance(value, TracedNumber):
            pending.append(value)
        elif (number := as_scalar(value)) is not None:
            pending.append(number)
        else:
            pending.append(None)
            foreign.append(i)
    device = common_device(pending)
    for i in foreign:
        pending[i] = array_of(values[i], device)
    return device, _with_numbers(op, pending)


def _with_numbers(op: Op, pending: Sequence[_Pending]) -> list[Array | None]:
    """Numbers as arrays. They stay with the host: every device takes scalars from there."""
    roles = op.roles(len(pending))
    known: list[Dtype | Scalar] = []
    for item, role in zip(pending, roles, strict=True):
        if item is not None and role is Role.VALUE:
            known.append(item.dtype if isinstance(item, Array) else _plain(item))
    result: list[Array | None] = []
    for item, role in zip(pending, roles, strict=True):
        if item is None or isinstance(item, Array):
            result.append(item)
        else:
            own = dt.of_scalar(_plain(item))
            dtype = dt.result_type(*known) if role is Role.VALUE else own
            if op.family is OpFamily.COMPARISON and not dt.holds(dtype, _plain(item)):
                # Beyond a type's range there is an answer too; uint64 alone would wrap in int64.
                dtype = own if dtype is not dt.uint64 else dtype
            result.append(_number_array(item, dtype))
    return result


def _plain(item: Scalar | TracedNumber) -> Scalar:
    """A number for the sake of its type alone."""
    return item.value if isinstance(item, TracedNumber) else item


@lru_cache(SCALARS)
def _known_number(value: Scalar, kind: str, dtype: Dtype) -> Array:
    return host_scalar(value, dtype)


def _number_array(item: Scalar | TracedNumber, dtype: Dtype) -> Array:
    """A number of the host; those of a traced function stay open."""
    if not isinstance(item, TracedNumber):
        # Zero has a sign, and is one key of a dictionary without it.
        known = _known_number(item, type(item).__name__, dtype) if item else None
        return known or host_scalar(item, dtype)
    array = host_scalar(item.value, dtype)
    return replace(array, storage=NumberStorage(array.storage.host(), item.index))
