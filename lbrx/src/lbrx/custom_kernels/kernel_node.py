"""Custom kernels within `lbrx.compile`: a call is a node of the graph, recorded with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array
from lbrx.custom_kernels.kernel import Launch
from lbrx.errors import DeviceError
from lbrx.kernels.registry import Call, computes
from lbrx.metal import Context
from lbrx.metal.reflection import KernelArgument
from lbrx.ops import TABLE, Attributes, OpFamily, rules
from lbrx.ops.table import op
from lbrx.tensors import placement as devices
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.tensors.operands import number_array
from lbrx.tensors.traced_number import TracedNumber


@dataclass(frozen=True, eq=False)
class NodeLaunch:
    """A launch with its constants; the operands of the node are its tensors, in this order."""

    launch: Launch
    constants: Mapping[str, Any]
    tensors: tuple[str, ...]


def _shapes(_: rules.Shapes, attributes: Attributes) -> list[Shape]:
    return [spec.shape for spec in attributes["call"].launch.specs.values()]


def _dtypes(_: Dtype, attributes: Attributes) -> tuple[Dtype, ...]:
    return tuple(spec.dtype for spec in attributes["call"].launch.specs.values())


@op(OpFamily.CUSTOM, _shapes, _dtypes)
def custom_kernel(*codes: Any, call: NodeLaunch) -> Any:
    """What a kernel of `lbrx.kernel` writes."""
    raise DeviceError(f"{call.launch.kernel} runs on metal only: move its tensors there")


@computes("custom_kernel")
def run_custom_kernel(call: Call) -> tuple[Array, ...]:
    """Add the kernel with the operands in memory."""
    node: NodeLaunch = call.attributes["call"]
    arrays = [Tensor(array) for array in call.inputs if array is not None]
    values = {**node.constants, **dict(zip(node.tensors, arrays, strict=True))}
    return tuple(result.array for result in node.launch.run(call.builder, values))


def recorded(launch: Launch, gpu: Context, given: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The results of a call while a function is traced."""
    arguments = launch.signature.arguments
    operands = {name: _operand(launch, arguments[name], value) for name, value in given.items()}
    tensors = {name: value for name, value in operands.items() if isinstance(value, Tensor)}
    constants = {name: value for name, value in operands.items() if name not in tensors}
    if not tensors:  # it depends on nothing that a replay changes
        return launch.computed(gpu, constants)
    call = NodeLaunch(launch, constants, tuple(tensors))
    results = devices.get("metal").run(
        TABLE["custom_kernel"], [value.array for value in tensors.values()], {"call": call}
    )
    return tuple(map(Tensor, results))


def _operand(launch: Launch, argument: KernelArgument, value: Any) -> Any:
    """A tensor as the kernel will read it, a number that a replay may change as a scalar tensor,
    and any other value as it is."""
    if isinstance(value, TracedNumber):
        plain = argument.dtype is not None and argument.dtype.is_float and argument.width == 1
        if not plain or argument.writable:
            return float(value)  # the trace is then valid for this value only
        assert argument.dtype is not None
        return Tensor(number_array(value, argument.dtype))
    spec = launch.specs.get(argument.name)
    if isinstance(value, np.ndarray) or (spec and isinstance(value, list | tuple)):
        value = tensor(value, device="metal")
    if not isinstance(value, Tensor) or (value.device == "cpu" and value.ndim == 0):
        return value
    if spec is not None:
        return value.to_device("metal").astype(spec.dtype)
    return value.contiguous() if launch.kernel.contiguous else value
