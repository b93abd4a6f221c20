"""The arguments of a kernel by Metal's reflection: names, indices and types."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.errors import DeviceError
from lbrx.metal.binding import Metal

# The names of MTLDataType; vector types append 2, 3 or 4.
_SPELLING = {
    dt.bool_: "Bool",
    dt.int8: "Char",
    dt.uint8: "UChar",
    dt.int16: "Short",
    dt.uint16: "UShort",
    dt.int32: "Int",
    dt.uint32: "UInt",
    dt.int64: "Long",
    dt.uint64: "ULong",
    dt.float16: "Half",
    dt.bfloat16: "BFloat",
    dt.float32: "Float",
}


class ArgumentKind(Enum):
    """What an argument of a kernel is bound to."""

    BUFFER = "buffer"
    THREADGROUP = "threadgroup"
    OTHER = "other"
    """Textures and other arguments that are not tensors."""


@dataclass(frozen=True)
class KernelArgument:
    """One argument of a kernel."""

    name: str
    kind: ArgumentKind
    index: int
    writable: bool
    dtype: Dtype | None  # of the scalars, None for a struct
    width: int  # of the vectors that it points to, 1 for scalars
    size: int  # of the type that it points to, in bytes

    @property
    def type_name(self) -> str:
        """The argument's type as MSL spells it, for errors."""
        if self.dtype is None:
            return f"a struct of {self.size} bytes"
        return f"{self.dtype.msl}{self.width if self.width > 1 else ''}"


def arguments(device: Any, function: Any) -> list[KernelArgument]:
    """The arguments of an MTLFunction, by index."""
    # PyObjC returns reflection only from the call with a completion handler.
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    descriptor = Metal.MTLComputePipelineDescriptor.alloc().init()
    descriptor.setComputeFunction_(function)
    device.newComputePipelineStateWithDescriptor_options_completionHandler_(
        descriptor,
        Metal.MTLPipelineOptionBindingInfo | Metal.MTLPipelineOptionBufferTypeInfo,
        lambda state, reflection, problem: answers.put((reflection, problem)),
    )
    reflection, problem = answers.get()
    if reflection is None:
        raise DeviceError(f"kernel {function.name()} does not compile: {problem}")
    found = [_argument(binding) for binding in reflection.bindings()]
    return sorted(found, key=lambda argument: argument.index)


def _argument(binding: Any) -> KernelArgument:
    name, index, type_ = str(binding.name()), int(binding.index()), binding.type()
    writable = binding.access() != Metal.MTLBindingAccessReadOnly
    if type_ == Metal.MTLBindingTypeBuffer:
        dtype, width = _data_types().get(binding.bufferDataType(), (None, 1))
        size = int(binding.bufferDataSize())
        return KernelArgument(name, ArgumentKind.BUFFER, index, writable, dtype, width, size)
    if type_ == Metal.MTLBindingTypeThreadgroupMemory:
        size = int(binding.threadgroupMemoryDataSize())
        return KernelArgument(name, ArgumentKind.THREADGROUP, index, writable, None, 1, size)
    return KernelArgument(name, ArgumentKind.OTHER, index, writable, None, 1, 0)


@cache
def _data_types() -> dict[int, tuple[Dtype, int]]:
    """Scalars and vectors by MTLDataType."""
    return {
        getattr(Metal, f"MTLDataType{spelling}{'' if width == 1 else width}"): (dtype, width)
        for dtype, spelling in _SPELLING.items()
        for width in (1, 2, 3, 4)
    }
