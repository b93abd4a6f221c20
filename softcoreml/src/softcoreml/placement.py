"""Which compute unit an operation would prefer on a Mac, and why not the Neural Engine. Modelled.

The rules are those that measurements of an M4 through Core ML show; nothing here was asked of
Apple's compiler, which also weighs the cost of changing units. Costs are estimates from the sizes
of an operation's values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from softcoreml import mil

UNITS = ("cpu", "gpu", "neural-engine")
MAX_AXIS = 65536
MAX_RANK = 5
MAX_CONTRACTION = 32768
MAX_POOL = 8
STATE_WIDTH = 32
WORTH_A_LAUNCH = 75e6
"""Multiplications below which the launch of the Neural Engine costs more than it saves: on an M4
one convolution of 38 million stays on the CPU, four of them do not."""

_CPU_ONLY = {
    "lstm gru rnn": "recurrent cells run on the CPU",
    "cond while_loop make_list list_read list_write list_gather list_scatter list_length": (
        "control flow and lists run on the CPU"
    ),
    "classify": "the classifier's labels are made on the CPU",
}
_NOT_NEURAL_ENGINE = {
    "asin acos tan sinh cosh atanh mod reduce_prod cumsum": "the Neural Engine does not have it",
    "band_part one_hot non_zero range_1d sliding_windows crop_resize": (
        "the Neural Engine does not have it"
    ),
    "random_bernoulli random_categorical random_normal random_uniform": (
        "the Neural Engine makes no random numbers"
    ),
}
CPU_ONLY = {name: why for names, why in _CPU_ONLY.items() for name in names.split()}
NOT_NEURAL_ENGINE = CPU_ONLY | {
    name: why for names, why in _NOT_NEURAL_ENGINE.items() for name in names.split()
}
"""Operations that are never placed on the Neural Engine, and why."""

_CONTRACTIONS = {"matmul", "linear", "einsum", "scaled_dot_product_attention"}
_INTEGERS = {"int32", "int64", "uint32", "uint64"}
_WIDE = {"fp32", "fp64"}


class Names:
    """What a function's names stand for: the type of each, and the value of each constant."""

    def __init__(self, function: mil.Function) -> None:
        self._types = {one.name: one.type for one in function.inputs}
        self._values: dict[str, mil.Value] = {}
        self._constants: set[str] = set()
        self._made_by: dict[str, mil.Operation] = {}
        for operation in mil.walk(function.block):
            self._types |= {out.name: out.type for out in operation.outputs}
            for block in operation.blocks:
                self._types |= {one.name: one.type for one in block.inputs}
            if is_constant(operation):
                self._constants |= {out.name for out in operation.outputs}
                self._made_by |= {out.name: operation for out in operation.outputs}
            if operation.type == "const" and "val" in operation.attributes:
                self._values[operation.outputs[0].name] = operation.attributes["val"]

    def tensor(self, binding: mil.Binding) -> mil.TensorType | None:
        """The type of a tensor or of a state's tensor, None for anything else."""
        kind = binding.type if isinstance(binding, mil.Value) else self._types.get(binding)
        if isinstance(kind, mil.StateType):
            return kind.wrapped
        return kind if isinstance(kind, mil.TensorType) else None

    def first(self, operation: mil.Operation, *inputs: str) -> mil.TensorType | None:
        """The tensor of the first of these inputs that the operation has."""
        for name in inputs:
            for binding in operation.inputs.get(name, ()):
                return self.tensor(binding)
        return None

    def known(self, binding: mil.Binding) -> bool:
        """Whether a value is a constant, compressed or not."""
        return isinstance(binding, mil.Value) or binding in self._constants

    def decompression(self, binding: mil.Binding) -> mil.Operation | None:
        """The operation that decompresses a constant, None where nothing does."""
        maker = self._made_by.get(binding) if isinstance(binding, str) else None
        return None if maker is None or maker.type == "const" else maker

    def integers(self, operation: mil.Operation, name: str) -> list[int]:
        """The numbers of a parameter, empty where they are not known."""
        found: list[int] = []
        for binding in operation.inputs.get(name, ()):
            value = binding if isinstance(binding, mil.Value) else self._values.get(binding)
            data: Any = None if value is None else value.data
            if isinstance(data, np.ndarray):
                found += [int(one) for one in data.reshape(-1)]
        return found


def is_constant(operation: mil.Operation) -> bool:
    """Whether an operation runs nowhere, because its results are known when a model is loaded."""
    return operation.type == "const" or operation.type.startswith("constexpr_")


@dataclass(frozen=True)
class Placement:
    """Where one operation would run: `reason` is empty where that is the Neural Engine."""

    preferred: str
    supported: tuple[str, ...]
    reason: str


def place(
    function: mil.Function, allowed: frozenset[str] = frozenset(UNITS)
) -> dict[mil.Operation, Placement]:
    """The placement of every operation that runs, on the allowed units.

    What the Neural Engine can do it does. Where it does something, the rest is the CPU's: a change
    to the GPU costs as much and gains little. Where it does nothing, the GPU takes what it can.
    """
    names = Names(function)
    reasons = {
        operation: refusal(operation, names)
        for operation in mil.walk(function.block)
        if not is_constant(operation)
    }
    engine = "neural-engine" in allowed and not all(reasons.values())
    order = ("neural-engine", "cpu", "gpu") if engine else ("gpu", "cpu")
    found = {}
    for operation, reason in reasons.items():
        fits = {"cpu": True, "gpu": operation.type not in CPU_ONLY, "neural-engine": not reason}
        supported = tuple(unit for unit in UNITS if fits[unit] and unit in allowed)
        preferred = next((unit for unit in order if unit in supported), "cpu")
        if "neural-engine" not in allowed:
            reason = reason or "the configuration does not allow the Neural Engine"
        found[operation] = Placement(preferred, supported, reason)
    return found


def refusal(operation: mil.Operation, names: Names) -> str:
    """Why an operation cannot run on the Neural Engine, or ""."""
    if operation.type in NOT_NEURAL_ENGINE:
        return NOT_NEURAL_ENGINE[operation.type]
    results = [out.type for out in operation.outputs if isinstance(out.type, mil.TensorType)]
    given = []
    for bindings in operation.inputs.values():
        given += [names.tensor(one) for one in bindings if not names.known(one)]
    for kind in (*results, *given):
        if kind is not None and (reason := _bad_tensor(kind)):
            return reason
    return _bad_operation(operation, names) or _bad_weights(operation, names)


def _bad_tensor(kind: mil.TensorType) -> str:
    if kind.dtype in _WIDE:
        return f"{kind.dtype} values: the Neural Engine computes in fp16"
    if kind.dtype in _INTEGERS:
        return f"{kind.dtype} values: the Neural Engine has no such integers"
    if kind.dims is None or None in kind.dims:
        return "a shape that is not known before it runs"
    if len(kind.dims) > MAX_RANK:
        return f"rank {len(kind.dims)}: at most {MAX_RANK}"
    longest = max((size or 0 for size in kind.dims), default=0)
    return f"a dimension of {longest}: at most {MAX_AXIS}" if longest > MAX_AXIS else ""


def _bad_operation(operation: mil.Operation, names: Names) -> str:
    """Limits of single operations."""
    if operation.type in _CONTRACTIONS:
        inner = _inner(operation, names)
        return (
            f"a contraction of {inner}: at most {MAX_CONTRACTION}"
            if inner > MAX_CONTRACTION
            else ""
        )
    if operation.type == "conv":
        return _bad_kernel(names.first(operation, "weight"))
    if operation.type == "max_pool":
        longest = max(names.integers(operation, "kernel_sizes"), default=0)
        return f"a pool of {longest}: at most {MAX_POOL}" if longest > MAX_POOL else ""
    if operation.type in ("read_state", "write_state"):
        kind = names.first(operation, "input")
        width = (kind.dims[-1] or 0) if kind is not None and kind.dims else 0
        if width % STATE_WIDTH:
            return f"a state of width {width}: give a multiple of {STATE_WIDTH}"
    return ""


def _bad_weights(operation: mil.Operation, names: Names) -> str:
    """The Neural Engine takes one scale for a tensor or for each output channel."""
    for bindings in operation.inputs.values():
        for binding in bindings:
            maker = names.decompression(binding)
            if maker is None or "blockwise_shift_scale" not in maker.type:
                continue
            scale = names.first(maker, "scale")
            if scale is not None and any(size != 1 for size in (scale.dims or ())[1:]):
                return "weights with a scale for each block: give one for each output channel"
    return ""


def _inner(operation: mil.Operation, names: Names) -> int:
    """Length of the axis that a matrix product sums over; 1 where it is not known."""
    left = names.first(operation, "x", "query", "values")
    return (left.dims[-1] or 1) if left is not None and left.dims else 1


def _bad_kernel(weight: mil.TensorType | None) -> str:
    if weight is None or weight.dims is None or len(weight.dims) < 4:
        return ""
    high, wide = weight.dims[-2] or 0, weight.dims[-1] or 0
    limit = (1, 15) if high == 1 else (31, 1) if wide == 1 else (16, 16)
    if high > limit[0] or wide > limit[1]:
        return f"a kernel of {high}x{wide}: at most {limit[0]}x{limit[1]}"
    return ""


def cost(operation: mil.Operation, names: Names) -> float:
    """Work of an operation in multiplications or moved elements; relative, and modelled."""
    moved = float(sum(_elements(out.type) for out in operation.outputs))
    if operation.type in _CONTRACTIONS:
        return moved * _inner(operation, names)
    if operation.type.startswith("conv"):
        weight = names.first(operation, "weight")
        dims = weight.dims if weight is not None and weight.dims else ()
        return moved * prod(size or 1 for size in dims[1:])
    return moved


def _elements(kind: mil.ValueType) -> int:
    if not isinstance(kind, mil.TensorType) or kind.dims is None:
        return 0
    return prod(size or 1 for size in kind.dims)
