"""Converts the arguments of an operation (tensors, arrays, lists, numbers) to device arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike, Scalar
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array, ConstantStorage, NumberStorage, PackedStorage
from lbrx.arrays.storage.cpu import copied, lent
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.ops import TABLE, Op, OpFamily, Role, rules
from lbrx.tensors import derived, dlpack
from lbrx.tensors import placement as devices
from lbrx.tensors.traced_number import TracedNumber

KNOWN_CALLS = 1024  # with numbers among their operands
_NUMBERS = frozenset((bool, int, float))

# An operand before Python numbers are given a dtype.
_UntypedOperand = Array | Scalar | TracedNumber | None


def as_scalar(value: object) -> Scalar | None:
    """A Python number or numpy scalar as a Python number; None for anything else."""
    if isinstance(value, np.generic | TracedNumber):
        value = value.item() if isinstance(value, np.generic) else float(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return None


def array_of(data: Any, device: str, dtype: DtypeLike | None = None) -> Array:
    """A copy of an array, a (nested) list or a number on a device.

    Without a dtype, arrays and numpy scalars keep theirs (float64 becomes float32 on metal), Python
    floats, of which numpy's float64 scalars are a kind, become float32 and ints int64. Data that is
    not numeric, and integers that the dtype cannot hold, raise DtypeError; lists of unequal lengths
    raise ShapeError.
    """
    number = as_scalar(data)
    if number is not None:
        has_dtype = isinstance(data, np.generic) and not isinstance(data, float)
        alone = dt.parse(data.dtype) if has_dtype else dt.of_scalar(number)
        kind = alone if dtype is None else dt.parse(dtype)
        return move(host_scalar(number, kind), device)
    values = _numpy(data)
    is_array = hasattr(data, "__array__") or hasattr(data, "__dlpack__")
    if values.dtype.kind not in "biuf" and values.dtype not in (d.numpy for d in dt.ALL):
        large = values.dtype == object and all(isinstance(x, int) for x in values.flat)
        facts = (
            "has integers beyond 64 bits: give floats" if large else "is not numeric: give numbers"
        )
        raise DtypeError(f"{type(data).__name__} of {values.dtype} {facts}")
    if dtype is not None:
        wanted = dt.parse(dtype)
        if not is_array and values.size and values.dtype.kind in "iu":
            for limit in (values.min(), values.max()):
                dt.check_scalar(int(limit), wanted)
        return placed(values, wanted, device)
    if values.dtype == np.float64 and not is_array:
        return placed(values, dt.float32, device)
    return placed(values, devices.kept_dtype(dt.parse(values.dtype), device), device)


def _numpy(data: Any) -> NDArray[Any]:
    kind = type(data).__name__
    if hasattr(data, "__dlpack__") and not isinstance(data, np.ndarray):
        try:
            return dlpack.import_array(data)
        except Exception as problem:
            # What another library raises is its own choice; it may still offer `__array__`.
            if not hasattr(data, "__array__"):
                raise DtypeError(_unreadable(kind, problem)) from problem
    try:
        return np.asarray(data)
    except ValueError as problem:  # numpy's error for nested lists of unequal lengths
        raise ShapeError(
            f"this {kind} is not rectangular: give nested lists of equal lengths ({problem})"
        ) from None
    except (TypeError, RuntimeError, BufferError) as problem:
        raise DtypeError(_unreadable(kind, problem)) from problem


def _unreadable(kind: str, problem: Exception) -> str:
    return f"this {kind} cannot be read: give a numeric array in host memory ({problem})"


def host_scalar(number: Scalar, dtype: Dtype) -> Array:
    """A number as a scalar array in host memory."""
    dt.check_scalar(number, dtype)
    with np.errstate(over="ignore"):
        value = np.asarray(number, dtype.numpy).tobytes()
    return Array(ConstantStorage(value), Layout((), ()), dtype)


def placed(values: NDArray[Any], dtype: Dtype, device: str) -> Array:
    """A copy of a numpy array in memory of the device, converted to the dtype as `cast` does it."""
    if dtype.is_integer and values.dtype.kind not in "biu":
        (values,) = TABLE["cast"]([values], {"dtype": dtype})
    return copied(values, dtype) if device == "cpu" else move(lent(values, dtype), device)


def move(array: Array, device: str) -> Array:
    """The array on a device: itself if it is there, else a copy. Quantized arrays stay so."""
    if array.storage.device == device:
        return array
    if (packed := derived.moved(array, lambda part: move(part, device))) is not None:
        return packed
    return devices.get(device).run(TABLE["copy"], [array], {})[0]


def decoded(array: Array) -> Array:
    """The array itself, or the decoded values of an array that is quantized on a device."""
    storage = array.storage
    if not isinstance(storage, PackedStorage) or storage.device == "cpu":
        return array
    if quant.find(storage.scheme).codec is None:  # no kernel decodes it
        return move(derived.lazy_copy(array), storage.device)
    rows = derived.packed_rows(array)
    parts = list((storage.parts if rows is None else rows).values())
    op = TABLE["decode_blocks"]
    values = devices.get(storage.device).run(op, parts, op.bind({"scheme": storage.scheme}))[0]
    return values if rows is not None else replace(array, storage=values.storage)


def common_device(arrays: Sequence[_UntypedOperand]) -> str:
    """The device of all operands, or the default device if none is a tensor.

    Scalar tensors on the cpu fit any device. Other tensors on two devices raise DeviceError.
    """
    by_device: dict[str, Array] = {}
    for array in arrays:
        if isinstance(array, Array):
            name = array.storage.device
            if name != "cpu" or array.layout.ndim:
                by_device.setdefault(name, array)
    if len(by_device) > 1:
        (a, x), (b, y) = list(by_device.items())[:2]
        raise DeviceError(
            f"operands of shapes {x.layout.shape} and {y.layout.shape} are on {a!r} and {b!r}: "
            f"move one with to_device({devices.default_device()!r})"
        )
    if by_device:
        return next(iter(by_device))
    return "cpu" if any(isinstance(x, Array) for x in arrays) else devices.default_device()


def prepare(op: Op, values: Sequence[Any]) -> tuple[str, list[Array | None]]:
    """The device of a call and its operands as arrays.

    A tensor is recognised by its attribute `array`. Other array-likes are copied to the device of
    the tensors; Python numbers take the dtype of the operands they are combined with.
    """
    operands: list[_UntypedOperand] = []
    foreign: list[int] = []
    for i, value in enumerate(values):
        array = None if isinstance(value, TracedNumber) else getattr(value, "array", None)
        if isinstance(array, Array):
            operands.append(decoded(array))
        elif value is None or isinstance(value, TracedNumber):
            operands.append(value)
        elif (number := as_scalar(value)) is not None:
            operands.append(number)
        else:
            operands.append(None)
            foreign.append(i)
    device = common_device(operands)
    for i in foreign:
        operands[i] = array_of(values[i], device)
    arrays = _with_numbers(op, operands)
    if op.family is OpFamily.ATTENTION:
        names = (operand.name for operand in op.operands_of(len(arrays)))
        arrays = [
            _added(array, device) if name == "mask" and _is_bool(array) else array
            for name, array in zip(names, arrays, strict=True)
        ]
    return device, arrays


def plain_operands(op: Op, values: Sequence[Any]) -> tuple[str, list[Array | None]] | None:
    """What `prepare` returns for tensors of one device that need no conversion, and Python numbers,
    which most operands are; None if there are others, or no tensors."""
    if op.family is OpFamily.ATTENTION:
        return None
    operands: list[Any] = []
    device, has_numbers = None, False
    for value in values:
        kind = type(value)
        if kind in _NUMBERS:
            operands.append(value)
            has_numbers = True
            continue
        array = None if kind is TracedNumber else getattr(value, "array", None)
        if not isinstance(array, Array) or isinstance(array.storage, PackedStorage):
            return None
        device_name = array.storage.device
        if device is None:
            device = device_name
        elif device_name != device:
            return None
        operands.append(array)
    if device is None:
        return None
    if not op.least <= len(operands) <= op.most:
        op.check_count(len(operands))
    return device, _with_python_numbers(op, operands) if has_numbers else operands


def _is_bool(array: Array | None) -> TypeGuard[Array]:
    return array is not None and array.dtype is dt.bool_


def _added(mask: Array, device: str) -> Array:
    """A boolean mask of attention as what is added to the scores: 0 where it is True, else -inf."""
    numbers = (host_scalar(number, dt.float32) for number in (0.0, -math.inf))
    return devices.get(device).run(TABLE["where"], [mask, *numbers], {})[0]


def _with_numbers(op: Op, operands: Sequence[_UntypedOperand]) -> list[Array | None]:
    """The operands with numbers as scalar arrays on the host, which every device accepts."""
    if any(isinstance(x, TracedNumber) for x in operands):
        dtypes = [x.dtype if isinstance(x, Array) else x for x in operands]
        return _merged(operands, _typed_numbers(op, dtypes))
    return _with_python_numbers(op, operands)


def _with_python_numbers(op: Op, operands: Sequence[Any]) -> list[Array | None]:
    """The same for operands without traced numbers, whose arrays are kept for the next call."""
    known: list[Any] = []
    for x in operands:
        if isinstance(x, Array):
            known.append(x.dtype.name)
        else:  # what Python finds equal is told apart: 1, 1.0 and True, 0.0 and -0.0
            known.append(x if x is None else (x, type(x) if x else repr(x)))
    return _merged(operands, _known_numbers(op, *known))


def _merged(operands: Sequence[Any], numbers: Sequence[Array | None]) -> list[Array | None]:
    pairs = zip(operands, numbers, strict=True)
    return [x if number is None else number for x, number in pairs]


@lru_cache(KNOWN_CALLS)
def _known_numbers(op: Op, *operands: Any) -> Sequence[Array | None]:
    """What `_typed_numbers` returns for dtypes by name, and for numbers with what tells them apart
    from others that are equal."""
    items = [x[0] if isinstance(x, tuple) else x and dt.parse(x) for x in operands]
    return _typed_numbers(op, items)


def _typed_numbers(
    op: Op, items: Sequence[Dtype | Scalar | TracedNumber | None]
) -> list[Array | None]:
    """Arrays for the numbers among operands, by the dtypes of the others; None for those."""
    roles = op.roles(len(items))
    known: list[Dtype | Scalar] = []
    for item, role in zip(items, roles, strict=True):
        if item is not None and role is Role.VALUE:
            known.append(item if isinstance(item, Dtype) else _value(item))
    result: list[Array | None] = []
    for item, role in zip(items, roles, strict=True):
        if item is None or isinstance(item, Dtype):
            result.append(None)
        else:
            number_dtype = dt.of_scalar(_value(item))
            dtype = dt.result_type(*known) if role is Role.VALUE else number_dtype
            if op.family is OpFamily.COMPARISON and not dt.holds(dtype, _value(item)):
                # Compare in a wider dtype, or with infinity if an integer dtype would wrap.
                fits = dtype is not dt.uint64 and dt.holds(dt.int64, _value(item))
                item, dtype = (item, dt.int64) if fits else _beyond(item)
            elif op.dtype_rule is rules.floating and not dt.holds(dtype, _value(item)):
                dtype = dt.float32  # uint8 / 256 is a division of floats
            result.append(number_array(item, dtype))
    return result


def _beyond(item: Scalar | TracedNumber) -> tuple[Scalar, Dtype]:
    """What compares with integers as a number outside of their range does."""
    return math.copysign(math.inf, _value(item)), dt.float32


def _value(item: Scalar | TracedNumber) -> Scalar:
    """The value of a number, used for its dtype only: a traced number is not marked as read."""
    return item.value if isinstance(item, TracedNumber) else item


def number_array(item: Scalar | TracedNumber, dtype: Dtype) -> Array:
    """A number as a scalar array on the host; a traced number as a parameter of the replay."""
    if not isinstance(item, TracedNumber):
        return host_scalar(item, dtype)
    array = host_scalar(item.value, dtype)
    return replace(array, storage=NumberStorage(array.storage.host(), item.index))
