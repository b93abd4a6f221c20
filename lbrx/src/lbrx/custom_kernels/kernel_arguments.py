"""Binds the arguments of a custom kernel: checks them and converts them to buffers and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.kernels.arrays import buffer_of, empty, imported
from lbrx.kernels.registry import RUNNERS, Call
from lbrx.metal import Buffer, Context
from lbrx.metal.commands import NumberSlot
from lbrx.metal.reflection import ArgumentKind, KernelArgument
from lbrx.ops import TABLE, Spec
from lbrx.storage import Array, NumberStorage
from lbrx.storage.cpu import copied
from lbrx.tensor.core import Tensor
from lbrx.tensor.creation import tensor
from lbrx.tensor.kernel import Kernel, Signature
from lbrx.tensor.operands import as_scalar

MAX_INLINE_BYTES = 4096  # Metal's limit for setBytes
THREADGROUP_ALIGNMENT = 16  # lengths of threadgroup memory are multiples of this


@dataclass(frozen=True)
class BoundArguments:
    """The arguments of a dispatch, at their indices."""

    buffers: list[Buffer | bytes | None]
    threadgroup: list[int]


def bind(
    gpu: Context,
    kernel: Kernel,
    signature: Signature,
    given: Mapping[str, Any],
    specs: Mapping[str, Spec],
) -> tuple[BoundArguments, tuple[Tensor, ...]]:
    """The arguments of a call, and its results, which the kernel has not written yet."""
    buffers: dict[int, Buffer | bytes] = {}
    threadgroup: dict[int, int] = {}
    results = []
    for name, argument in signature.arguments.items():
        where = f"{kernel}: {name}"
        if argument.kind is ArgumentKind.THREADGROUP:
            threadgroup[argument.index] = _length(where, given[name])
        elif name not in specs:
            buffers[argument.index] = _input(gpu, where, argument, given[name], kernel.contiguous)
    for name, spec in specs.items():
        array = _output(gpu, f"{kernel}: {name}", spec, given.get(name))
        buffers[signature.arguments[name].index] = buffer_of(array)
        results.append(Tensor(array))
    bound = BoundArguments(
        [buffers.get(i) for i in range(max(buffers, default=-1) + 1)],
        [threadgroup.get(i, 0) for i in range(max(threadgroup, default=-1) + 1)],
    )
    return bound, tuple(results)


def _length(where: str, value: Any) -> int:
    if not isinstance(value, int) or value <= 0:
        raise ShapeError(f"{where} is threadgroup memory: give its length in bytes, not {value!r}")
    return -(-value // THREADGROUP_ALIGNMENT) * THREADGROUP_ALIGNMENT


def _input(
    gpu: Context, where: str, argument: KernelArgument, value: Any, contiguous: bool
) -> Buffer | bytes:
    if isinstance(value, bytes):
        return _bytes_or_buffer(gpu, _checked_bytes(where, argument, value))
    if isinstance(value, Tensor) and isinstance(value.array.storage, NumberStorage):
        number = value.array.storage
        return NumberSlot.of(number.argument, number.number, value.dtype.numpy)
    if isinstance(value, Tensor) and value.device == "cpu" and value.ndim == 0:
        value = value.item()
    if not hasattr(value, "__array__") or isinstance(value, np.generic):
        return _bytes_or_buffer(gpu, _constant(where, argument, value))
    given = value if isinstance(value, Tensor) else tensor(value, device="metal")
    if given.device != "metal":
        raise DeviceError(
            f"{where} is on {given.device!r}, {given.dtype}{list(given.shape)}: "
            "move it with to_device('metal')"
        )
    if argument.dtype not in (None, given.dtype):
        raise DtypeError(
            f"{where} is declared as {argument.type_name}, but was given "
            f"{given.dtype}{list(given.shape)}: cast it with astype('{argument.dtype}')"
        )
    return buffer_of(_computed(given.contiguous() if contiguous else given))


def _computed(value: Tensor) -> Array:
    """The tensor's array, with pending values computed."""
    return replace(value.array, storage=value.storage)


def _checked_bytes(where: str, argument: KernelArgument, data: bytes) -> bytes:
    if len(data) < argument.size:
        raise ShapeError(
            f"{where} ({argument.type_name}) was given {len(data)} bytes: give {argument.size}"
        )
    return data


def _constant(where: str, argument: KernelArgument, value: Any) -> bytes:
    """Numbers as bytes of the declared type. A vector of three takes the space of four."""
    dtype = argument.dtype
    numbers = np.asarray(value)
    if dtype is None:
        raise DtypeError(f"{where} is {argument.type_name}: give it as bytes")
    if numbers.dtype.kind not in "biuf" or numbers.size == 0:
        raise DtypeError(
            f"{where} is {argument.type_name}: give numbers or a tensor, not {value!r}"
        )
    if not dtype.is_float and numbers.dtype.kind == "f":
        raise DtypeError(f"{where} is {argument.type_name}, but was given {value!r}: give integers")
    if numbers.size % argument.width:
        raise ShapeError(
            f"{where} is {argument.type_name}: give {argument.width} numbers, not {numbers.size}"
        )
    for number in (numbers.min().item(), numbers.max().item()):
        dt.check_scalar(number, dtype)
    stride = max(argument.size // dtype.itemsize, argument.width)
    packed = np.zeros((numbers.size // argument.width, stride), dtype.numpy)
    with np.errstate(over="ignore"):
        packed[:, : argument.width] = numbers.reshape(-1, argument.width).astype(dtype.numpy)
    return packed.tobytes()


def _bytes_or_buffer(gpu: Context, data: bytes) -> Buffer | bytes:
    if len(data) <= MAX_INLINE_BYTES:
        return data
    return gpu.upload(np.frombuffer(data, np.uint8))


def _output(gpu: Context, where: str, spec: Spec, start: Any) -> Array:
    """Memory for a result, with a copy of the initial content if there is one."""
    if start is None:
        return empty(gpu, spec)
    number = as_scalar(start)
    if number is not None:
        dt.check_scalar(number, spec.dtype)
        source = imported(gpu, copied(np.asarray(number), spec.dtype))
    else:
        given = start if isinstance(start, Tensor) else tensor(start, device="metal")
        source = _computed(given.to_device("metal").astype(spec.dtype))
    try:
        layout = sh.expand(source.layout, spec.shape)
    except ShapeError as problem:
        raise ShapeError(f"{where} cannot start with {source.layout.shape}: {problem}") from None
    call = Call(gpu, TABLE["copy"], (replace(source, layout=layout),), {}, (spec,))
    # Run the copy directly: a node of the graph could be shared, and the kernel writes this memory.
    (array,) = RUNNERS["copy"](call)
    return array
