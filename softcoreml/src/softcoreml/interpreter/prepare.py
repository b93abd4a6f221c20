"""From a function of a program to steps that run: names are resolved once, operations are found.

Each result has a slot in the frame of a call, so that a nested block sees the values around it and
a loop reuses the slots of its body. A value's slot is cleared after its last use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from softcoreml import mil
from softcoreml.errors import ModelError, UnsupportedOperation
from softcoreml.format.weights import Weights
from softcoreml.interpreter import control
from softcoreml.interpreter.constants import Constant, Decompressed, constant
from softcoreml.interpreter.rounding import Precision, conform
from softcoreml.interpreter.run import Argument, Body, Prepared, Slot, Step
from softcoreml.operations import registry

_MAX_BLOCK_DEPTH = 32
_CALCULATED_ONCE = "constexpr_"
_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def opset_of(function: mil.Function) -> str:
    """The opset of a function by iOS version: "ios15" to "ios26"."""
    name = mil.OPSETS.get(function.opset, function.opset.lower())
    name = mil.OLD_OPSET_NAMES.get(name, name)
    if name not in registry.OPSETS:
        raise ModelError(f"the opset {function.opset!r} is not known: softcoreml has CoreML5 to 9")
    return name


def missing_operations(program: mil.Program) -> list[str]:
    """The operations of a program that softcoreml does not have, sorted."""
    missing = set()
    for function in program.functions.values():
        opset = opset_of(function)
        for operation in mil.walk(function.block):
            own = operation.type == "const" or operation.type in control.OPERATIONS
            if not own and registry.find(operation.type, opset) is None:
                missing.add(operation.type)
    return sorted(missing)


def check_operations(program: mil.Program) -> None:
    """Refuse a program that needs operations which are not there.

    Raises:
        UnsupportedOperation: names all of them.
    """
    if missing := missing_operations(program):
        raise UnsupportedOperation(f"softcoreml does not have: {', '.join(missing)}")


def prepare(
    function: mil.Function, weights: Weights, precision: Precision = "declared"
) -> Prepared:
    """Resolve and check a function.

    Raises:
        ModelError: a name is used before it is defined, a weight is not in its file, or an
            operation has the wrong form.
    """
    return _Preparation(opset_of(function), weights, precision).function(function)


class _Scope:
    """The names that a block sees: its own, then those around it."""

    def __init__(self, around: _Scope | None) -> None:
        self.names: dict[str, Slot | Constant] = {}
        self.around = around
        self.depth: int = 0 if around is None else around.depth + 1

    def find(self, name: str) -> Slot | Constant | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.around
        return None


class _Preparation:
    def __init__(self, opset: str, weights: Weights, precision: Precision) -> None:
        self._opset = opset
        self._weights = weights
        self._precision = precision
        self._slots = 0
        self._decompressed = Decompressed()

    def function(self, function: mil.Function) -> Prepared:
        scope = _Scope(None)
        inputs = tuple(
            (one, self._define(scope, one.name, f"input {one.name!r}")) for one in function.inputs
        )
        body = self.block(function.block, scope, bound=())
        return Prepared(inputs, body, self._slots, function.block.outputs, self._precision)

    def block(self, block: mil.Block, scope: _Scope, bound: tuple[mil.NamedType, ...]) -> Body:
        if scope.depth > _MAX_BLOCK_DEPTH:
            raise ModelError(f"blocks are nested more than {_MAX_BLOCK_DEPTH} deep")
        parameters = tuple(self._define(scope, one.name, "a block's input") for one in bound)
        steps = [step for one in block.operations if (step := self._operation(one, scope))]
        outputs = tuple(self._argument(name, scope, "the block's output") for name in block.outputs)
        _free(steps, {one.index for one in outputs if isinstance(one, Slot)})
        return Body(parameters, tuple(steps), outputs)

    def _define(self, scope: _Scope, name: str, where: str) -> Slot:
        if name in scope.names:
            raise ModelError(f"{where} defines {name!r} a second time")
        slot = Slot(self._slots)
        self._slots += 1
        scope.names[name] = slot
        return slot

    def _operation(self, one: mil.Operation, scope: _Scope) -> Step | None:
        where = f"operation {one.name!r} ({one.type})"
        for out in one.outputs:
            _check_size(out.type, where)
        if one.type == "const":
            self._const(one, scope, where)
            return None
        arguments = self._arguments(one, scope, where)
        if one.type.startswith(_CALCULATED_ONCE):
            self._constexpr(one, arguments, scope, where)
            return None
        bodies = tuple(self._nested(block, scope) for block in one.blocks)
        execute = self._find(one, where, len(bodies))
        slots = tuple(self._define(scope, out.name, where) for out in one.outputs)
        return Step(one, where, execute, arguments, bodies, slots)

    def _nested(self, block: mil.Block, around: _Scope) -> Body:
        return self.block(block, _Scope(around), block.inputs)

    def _find(self, one: mil.Operation, where: str, bodies: int) -> Callable[..., Any] | None:
        """The NumPy definition, or None for an operation of the interpreter's own."""
        if one.type in control.OPERATIONS:
            needed = control.BLOCKS.get(one.type)
            wanted = 0 if needed is None else 2
            if bodies != wanted:
                raise ModelError(f"{where} has {bodies} blocks instead of {wanted}")
            if needed is not None and needed not in one.inputs:
                raise ModelError(f"{where} has no input {needed!r}")
            return None
        if bodies:
            raise ModelError(f"{where} has {bodies} blocks, and {one.type} takes none")
        definition = registry.find(one.type, self._opset)
        if definition is None:
            raise UnsupportedOperation(f"softcoreml does not have: {one.type}")
        return definition.function

    def _arguments(
        self, one: mil.Operation, scope: _Scope, where: str
    ) -> Mapping[str, Argument | tuple[Argument, ...]]:
        found: dict[str, Argument | tuple[Argument, ...]] = {}
        for name, bindings in one.inputs.items():
            several = tuple(self._argument(each, scope, where) for each in bindings)
            variadic = (one.type, name) in control.VARIADIC
            found[name] = several if variadic or len(several) != 1 else several[0]
        for name, value in one.attributes.items():
            if name != "name":
                found.setdefault(name, constant(value, self._weights))
        return found

    def _argument(self, binding: mil.Binding, scope: _Scope, where: str) -> Argument:
        if isinstance(binding, mil.Value):
            return constant(binding, self._weights)
        found = scope.find(binding)
        if found is None:
            raise ModelError(f"{where} uses {binding!r} before it is defined")
        return found

    def _const(self, one: mil.Operation, scope: _Scope, where: str) -> None:
        value = one.attributes.get("val")
        if value is None or len(one.outputs) != 1:
            raise ModelError(f"{where} has no value")
        self._constant(scope, one.outputs[0].name, constant(value, self._weights), where)

    def _constexpr(
        self,
        one: mil.Operation,
        arguments: Mapping[str, Argument | tuple[Argument, ...]],
        scope: _Scope,
        where: str,
    ) -> None:
        definition = registry.find(one.type, self._opset)
        if definition is None:
            raise UnsupportedOperation(f"softcoreml does not have: {one.type}")
        if not all(isinstance(given, Constant) for given in arguments.values()):
            raise ModelError(f"{where} has an argument that is not a constant")
        compute = _decompression(one, definition.function, arguments, self._precision, where)
        for number, out in enumerate(one.outputs):
            value = Constant(compute=self._kept(one, compute, number))
            self._constant(scope, out.name, value, where)

    def _kept(
        self, key: object, compute: Callable[[], tuple[Any, ...]], number: int
    ) -> Callable[[], Any]:
        kept = self._decompressed
        return lambda: kept.get(key, compute)[number]

    def _constant(self, scope: _Scope, name: str, value: Constant, where: str) -> None:
        if name in scope.names:
            raise ModelError(f"{where} defines {name!r} a second time")
        scope.names[name] = value


def _check_size(kind: mil.ValueType, where: str) -> None:
    """A file may declare a result that no machine could hold; it is refused before it is made."""
    size = kind.nbytes if isinstance(kind, mil.TensorType) else None
    if size is not None and size > _MEMORY:
        raise ModelError(f"{where} has a result of {size} bytes, and this machine has {_MEMORY}")


def _decompression(
    one: mil.Operation,
    definition: Callable[..., Any],
    arguments: Mapping[str, Any],
    precision: Precision,
    where: str,
) -> Callable[[], tuple[Any, ...]]:
    def compute() -> tuple[Any, ...]:
        result = definition(**{name: given.get() for name, given in arguments.items()})
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(one.outputs):
            raise ModelError(f"{where} gives {len(results)} values for {len(one.outputs)} names")
        found = []
        for value, out in zip(results, one.outputs, strict=True):
            array = conform(value, out.type, precision, where)
            array.flags.writeable = False
            found.append(array)
        return tuple(found)

    return compute


def _free(steps: list[Step], outputs: set[int]) -> None:
    """Tell each step which slots of this block's own results no later step reads."""
    own = {slot.index for step in steps for slot in step.slots} - outputs
    seen: set[int] = set()
    for step in reversed(steps):
        dead = (step.reads() | {slot.index for slot in step.slots}) & own - seen
        step.frees = tuple(sorted(dead))
        seen |= dead
