"""An interpreter for PyTorch's pickles that imports and calls nothing.

Where Python's unpickler would import a name and call it, this one looks the name up in a short list
and makes a plain record. Any other name or instruction is an error that names it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.files.formats.checks import bad, shown

MAX_PICKLE = 16 << 20
_MAX_INSTRUCTIONS = 1 << 19  # those of ten thousand tensors
_MARK = object()


@dataclass(frozen=True)
class PickledName:
    """A class or function that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class PickledCall:
    """A call that a pickle asks for: the function and its arguments. It is never made."""

    name: PickledName
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class PickledReference:
    """A reference to an object outside of the pickle: a storage of PyTorch."""

    value: Any


class PickleMachine:
    """Runs one pickle. `allowed` tells which names it may contain."""

    def __init__(self, path: Path, allowed: Callable[[PickledName], bool]) -> None:
        self.path = path
        self.allowed = allowed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """The object that the pickle describes."""
        if len(data) > MAX_PICKLE:
            raise bad(self.path, f"{len(data):,} bytes, at most {MAX_PICKLE:,}", field="pickle")
        try:
            for count, (name, argument) in enumerate(_instructions(data)):
                if count == _MAX_INSTRUCTIONS:
                    problem = f"more than {_MAX_INSTRUCTIONS:,} instructions: write safetensors"
                    raise bad(self.path, problem, field="pickle")
                if name == "STOP":
                    return self.stack.pop()
                self._step(name, argument)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            if type(error).__module__.startswith("lbrx"):
                raise
            raise bad(self.path, f"is damaged ({str(error)[:100]})", field="pickle") from None
        raise bad(self.path, "has no end", field="pickle")

    def _step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif action := _ACTIONS.get(name):
            action(self, argument)
        else:
            raise bad(self.path, f"the instruction {name} is not supported", field="pickle")

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _drop(self) -> None:
        self.stack.pop()

    def _drop_marked(self) -> None:
        self._since_mark()

    def _memoize(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.stack[-1]

    def _name(self, module: str, name: str) -> None:
        found = PickledName(str(module), str(name))
        if not self.allowed(found):
            raise bad(
                self.path,
                f"asks for {shown(str(found))}, which no tensor needs; nothing was executed: "
                "save a state dict instead, or do not trust this file",
                field="pickle",
            )
        self.stack.append(found)

    def _stack_name(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._name(module, name)

    def _call(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, PickledName) or not isinstance(arguments, tuple):
            raise bad(self.path, "calls an object that is not a function", field="pickle")
        is_dict = function == PickledName("collections", "OrderedDict") and not arguments
        self.stack.append({} if is_dict else PickledCall(function, arguments))

    def _tuple(self, count: int | None) -> None:
        if count is None:
            self.stack.append(tuple(self._since_mark()))
        else:
            items = tuple(self.stack[-count:])
            if len(items) != count:
                raise IndexError("too few values for a tuple")
            self.stack[-count:] = [items]

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("items for an object that is not a dict")
        keys = items[::2]
        # Python hashes a nested tuple once for each reference to it, which may be 2**60 times.
        if not all(key is None or isinstance(key, (str, int, float, bytes)) for key in keys):
            raise TypeError("a key of a dict is neither a string nor a number")
        target.update(zip(keys, items[1::2], strict=True))

    def _set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("elements for an object that is not a list")
        target.extend(items)


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    return ((op.name, argument) for op, argument, _ in pickletools.genops(data))


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
}
_LITERALS = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 INT LONG BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE "
    "BINUNICODE8 UNICODE BINSTRING SHORT_BINSTRING STRING BINBYTES SHORT_BINBYTES".split()
)
_Action = Callable[[PickleMachine, Any], None]
# The table belongs to the machine, so it uses private methods.
_ACTIONS: dict[str, _Action] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda m, _: None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), PickleMachine._memoize),
    "MEMOIZE": lambda m, _: m._memoize(None),
    **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), lambda m, i: m.stack.append(m.memo[int(i)])),
    "GLOBAL": lambda m, text: m._name(*text.split(" ", 1)),
    "STACK_GLOBAL": PickleMachine._stack_name,
    "REDUCE": PickleMachine._call,
    "TUPLE": lambda m, _: m._tuple(None),
    "TUPLE1": lambda m, _: m._tuple(1),
    "TUPLE2": lambda m, _: m._tuple(2),
    "TUPLE3": lambda m, _: m._tuple(3),
    "SETITEM": PickleMachine._set_item,
    "SETITEMS": lambda m, _: m._set_items(m._since_mark()),
    "APPEND": lambda m, _: m._append([m.stack.pop()]),
    "APPENDS": lambda m, _: m._append(m._since_mark()),
    "ADDITEMS": lambda m, _: m._drop_marked(),
    "POP": lambda m, _: m._drop(),
    "POP_MARK": lambda m, _: m._drop_marked(),
    "BINPERSID": lambda m, _: m.stack.append(PickledReference(m.stack.pop())),
    # The state of an object, such as _metadata of a state dict, contains no tensors.
    "BUILD": lambda m, _: m._drop(),
}
