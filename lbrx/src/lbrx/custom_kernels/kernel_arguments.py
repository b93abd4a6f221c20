"""Binds the arguments of a custom kernel: checks them and converts them to buffers and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, NumberStorage
from lbrx.arrays.storage.cpu import copied
from lbrx.command_lists.builder import Builder
from lbrx.custom_kernels.kernel import Kernel, Signature
from lbrx.errors import DeviceError, DtypeError, ShapeError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, extent_of
from lbrx.kernels.registry import RUNNERS, Call
from lbrx.metal import Buffer
from lbrx.metal.commands import NumberSlot
from lbrx.metal.reflection import ArgumentKind, KernelArgument
from lbrx.ops import TABLE, Spec
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.operands import as_scalar

THREADGROUP_ALIGNMENT = 16  # lengths of threadgroup memory are multiples of this


@dataclass(frozen=True)
class BoundArguments:
    """The arguments of a dispatch, at their indices."""

    buffers: list[Buffer | bytes | None]
    threadgroup: list[int]


def bind(
    b: Builder,
    kernel: Kernel,
    signature: Signature,
    given: Mapping[str, Any],
    specs: Mapping[str, Spec],
    checked: bool,
) -> tuple[BoundArguments, tuple[Tensor, ...]]:
    """The arguments of a call, and its results, which the kernel has not written yet. Inputs of a
    checked kernel end with the last element that they show, others with their memory."""
    memory_of = extent_of if checked else buffer_of
    buffers: dict[int, Buffer | bytes] = {}
    threadgroup: dict[int, int] = {}
    results = []
    for name, argument in signature.arguments.items():
        where = f"{kernel}: {name}"
        if argument.kind is ArgumentKind.THREADGROUP:
            threadgroup[argument.index] = _length(where, given[name])
        elif name not in specs:
            source = _input(b, where, argument, given[name], kernel.contiguous)
            buffers[argument.index] = memory_of(source) if isinstance(source, Array) else source
    for name, spec in specs.items():
        array = _output(b, f"{kernel}: {name}", spec, given.get(name))
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
    b: Builder, where: str, argument: KernelArgument, value: Any, contiguous: bool
) -> Array | Buffer | bytes:
    if isinstance(value, bytes):
        return _checked_bytes(where, argument, value)
    if isinstance(value, Tensor) and isinstance(value.array.storage, NumberStorage):
        number = value.array.storage
        return NumberSlot.of(number.argument, number.number, value.dtype.numpy)
    if isinstance(value, Tensor) and value.device == "cpu" and value.ndim == 0:
        value = value.item()
    if not hasattr(value, "__array__") or isinstance(value, np.generic):
        return _constant(where, argument, value)
    source = value if isinstance(value, Tensor) else tensor(value, device="metal")
    if source.device != "metal":
        raise DeviceError(
            f"{where} is on {source.device!r}, {source.dtype}{list(source.shape)}: "
            "move it with to_device('metal')"
        )
    if argument.dtype not in (None, source.dtype):
        raise DtypeError(
            f"{where} is declared as {argument.type_name}, but was given "
            f"{source.dtype}{list(source.shape)}: cast it with astype('{argument.dtype}')"
        )
    return layouts.contiguous(b, _computed(source)) if contiguous else _computed(source)


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


def _output(b: Builder, where: str, spec: Spec, start: Any) -> Array:
    """Memory for a result, with a copy of the initial content if there is one."""
    if start is None:
        return b.result(spec)
    number = as_scalar(start)
    if number is not None:
        dt.check_scalar(number, spec.dtype)
        source = b.imported(copied(np.asarray(number), spec.dtype))
    else:
        start_tensor = start if isinstance(start, Tensor) else tensor(start, device="metal")
        source = layouts.cast(b, _computed(start_tensor.to_device("metal")), spec.dtype)
    try:
        layout = sh.expand(source.layout, spec.shape)
    except ShapeError as problem:
        raise ShapeError(f"{where} cannot start with {source.layout.shape}: {problem}") from None
    call = Call(b, TABLE["copy"], (replace(source, layout=layout),), {}, (spec,))
    # Run the copy directly: a node of the graph could be shared, and the kernel writes this memory.
    (array,) = RUNNERS["copy"](call)
    return array
