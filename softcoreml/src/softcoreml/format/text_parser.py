"""MIL text, as the `model.mil` of a compiled model has it, back to records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeVar

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.format.program_message import MAX_RANK

MAX_NESTING = 64
_VERSIONS = (1.0, 1.1, 1.2, 1.3)
_TOKENS = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>-?(?:0x[0-9a-fA-F]*\.?[0-9a-fA-F]*(?:p[+-]?\d+)?|\d+\.?\d*(?:[eE][+-]?\d+)?|inf|nan)
      (?![A-Za-z_0-9@]))
  | (?P<name>[A-Za-z_][A-Za-z0-9_@.]*)
  | (?P<sign>->|[()\[\]{}<>=,;?])
    )""",
    re.VERBOSE,
)
_T = TypeVar("_T")


def parse(text: str) -> mil.Program:
    """The program of a text.

    Raises:
        ModelError: the text is not MIL; names the line.
    """
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self.kind = self.token = ""
        self._advance()

    # Tokens

    def _advance(self) -> str:
        previous = self.token
        found = _TOKENS.match(self._text, self._at)
        if found is None:
            if self._text[self._at :].strip():
                self._fail(f"unexpected {self._text[self._at : self._at + 20].strip()!r}")
            self.kind, self.token = "end", ""
            return previous
        self._at = found.end()
        self.kind = found.lastgroup or ""
        self.token = found[self.kind]
        return previous

    def _fail(self, reason: str) -> None:
        line = self._text.count("\n", 0, self._at) + 1
        raise ModelError(f"MIL text, line {line}: {reason}")

    def _take(self, sign: str) -> None:
        if self.token != sign or self.kind == "string":
            self._fail(f"{self.token or 'the end'!r} where {sign!r} is expected")
        self._advance()

    def _is(self, sign: str) -> bool:
        return self.token == sign and self.kind in ("sign", "name")

    def _name(self) -> str:
        # `inf` and `nan` are numbers only where a number is expected.
        if self.kind != "name" and self.token not in ("inf", "nan"):
            self._fail(f"{self.token or 'the end'!r} where a name is expected")
        return self._advance()

    def _listed(self, end: str, item: Callable[[], _T]) -> list[_T]:
        """Items between commas up to the sign `end`, which is taken too."""
        found: list[_T] = []
        while not self._is(end):
            if found:
                self._take(",")
            found.append(item())
        self._take(end)
        return found

    def _nested(self, item: Callable[[], _T]) -> _T:
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail(f"nested more than {MAX_NESTING} deep")
        found = item()
        self._depth -= 1
        return found

    # Program

    def program(self) -> mil.Program:
        self._take("program")
        self._take("(")
        version = self._scalar("fp64")
        if version not in _VERSIONS:
            self._fail(f"version {version} of MIL: softcoreml reads {_VERSIONS}")
        self._take(")")
        attributes = self._attributes()
        self._take("{")
        functions: dict[str, mil.Function] = {}
        while not self._is("}"):
            self._take("func")
            name = self._name()
            if name in functions:
                self._fail(f"a second function {name!r}")
            functions[name] = self._function()
        self._take("}")
        if self.kind != "end":
            self._fail(f"{self.token!r} after the program")
        if not functions:
            self._fail("the program has no function")
        return mil.Program(int(version), functions, attributes)

    def _function(self) -> mil.Function:
        self._take("<")
        opset = self._name()
        self._take(">")
        self._take("(")
        inputs = tuple(self._listed(")", self._parameter))
        attributes = self._attributes()
        block = self._block(())
        self._take(";")
        return mil.Function(inputs, opset, {opset: block}, attributes)

    def _block(self, inputs: tuple[mil.NamedType, ...]) -> mil.Block:
        self._take("{")
        operations = []
        while not self._is("}"):
            operations.append(self._nested(self._operation))
        self._take("}")
        self._take("->")
        self._take("(")
        outputs = tuple(self._listed(")", self._name))
        return mil.Block(inputs, outputs, tuple(operations))

    def _parameter(self) -> mil.NamedType:
        kind = self._nested(self._type)
        return mil.NamedType(self._name(), kind)

    def _operation(self) -> mil.Operation:
        outputs = self._results()
        kind = self._name()
        self._take("(")
        inputs = dict(self._listed(")", self._input))
        attributes = self._attributes()
        blocks = []
        while self._is("("):
            self._advance()
            parameters = tuple(self._listed(")", self._parameter))
            blocks.append(self._block(parameters))
        self._take(";")
        return mil.Operation(kind, inputs, outputs, tuple(blocks), attributes)

    def _results(self) -> tuple[mil.NamedType, ...]:
        """What stands before `=`; an operation without results begins with its name and "("."""
        if self._text[self._at : self._at + 1] == "(":
            return ()
        found = [self._parameter()]
        while self._is(","):
            self._advance()
            found.append(self._parameter())
        self._take("=")
        return tuple(found)

    def _input(self) -> tuple[str, tuple[mil.Binding, ...]]:
        name = self._name()
        self._take("=")
        if self._is("("):
            self._advance()
            return name, tuple(self._listed(")", self._binding))
        return name, (self._binding(),)

    def _binding(self) -> mil.Binding:
        following = self._text[self._at : self._at + 1]
        if self.kind == "name" and following in ("<", "("):
            return self._value()
        return self._name()

    def _attributes(self) -> dict[str, mil.Value]:
        if not self._is("["):
            return {}
        self._advance()
        return dict(self._listed("]", self._attribute))

    def _attribute(self) -> tuple[str, mil.Value]:
        name = self._name()
        self._take("=")
        return name, self._value()

    # Types

    def _type(self) -> mil.ValueType:
        name = self._name()
        if name not in ("tensor", "list", "tuple", "dict", "state"):
            return self._dtype(name, ())
        self._take("<")
        if name == "tensor":
            dtype = self._name()
            self._take(",")
            kind: mil.ValueType = self._dtype(dtype, self._dims())
        elif name == "list":
            element = self._nested(self._type)
            self._take(",")
            kind = mil.ListType(element, self._size())
        elif name == "tuple":
            return mil.TupleType(tuple(self._listed(">", lambda: self._nested(self._type))))
        elif name == "dict":
            key = self._nested(self._type)
            self._take(",")
            kind = mil.DictionaryType(key, self._nested(self._type))
        else:
            wrapped = self._nested(self._type)
            if not isinstance(wrapped, mil.TensorType):
                raise ModelError(f"a state of type {wrapped}: only a tensor can be a state")
            kind = mil.StateType(wrapped)
        self._take(">")
        return kind

    def _dtype(self, name: str, dims: tuple[int | None, ...] | None) -> mil.TensorType:
        if name != "string" and name not in mil.DTYPES:
            self._fail(f"{name!r} is not a type")
        return mil.TensorType(name, dims)

    def _dims(self) -> tuple[int | None, ...] | None:
        if self._is("?"):
            self._advance()
            return None
        self._take("[")
        sizes = tuple(self._listed("]", self._size))
        if len(sizes) > MAX_RANK:
            self._fail(f"a tensor of rank {len(sizes)}")
        return sizes

    def _size(self) -> int | None:
        if self._is("?"):
            self._advance()
            return None
        if not self.token.isdecimal() or len(self.token) > 15:
            self._fail(f"{self.token!r} is not a size")
        return int(self._advance())

    # Values

    def _value(self) -> mil.Value:
        kind = self._nested(self._type)
        self._take("(")
        value = self._literal(kind)
        self._take(")")
        return value

    def _literal(self, kind: mil.ValueType) -> mil.Value:
        if self._is("BLOBFILE"):
            return mil.Value(kind, self._blob())
        if isinstance(kind, mil.TensorType):
            return self._tensor(kind)
        if isinstance(kind, mil.DictionaryType):
            self._take("{")
            return mil.Value(kind, dict(self._listed("}", lambda: self._pair(kind))))
        if isinstance(kind, mil.TupleType):
            elements = iter(kind.elements)
            self._take("(")
            return mil.Value(
                kind, tuple(self._listed(")", lambda: self._nested_literal(self._next(elements))))
            )
        if isinstance(kind, mil.ListType):
            end = "]" if self._is("[") else ")"
            self._advance()
            items = self._listed(end, lambda: self._nested_literal(kind.element))
            return mil.Value(kind, tuple(items))
        raise ModelError(f"a constant of type {kind}")

    def _next(self, elements: Iterator[mil.ValueType]) -> mil.ValueType:
        for element in elements:
            return element
        raise ModelError("a tuple has more values than its type says")

    def _nested_literal(self, kind: mil.ValueType) -> mil.Value:
        return self._nested(lambda: self._literal(kind))

    def _pair(self, kind: mil.DictionaryType) -> tuple[Any, mil.Value]:
        self._take("{")
        key = self._nested_literal(kind.key).data
        self._take(",")
        value = self._nested_literal(kind.value)
        self._take("}")
        return (key.item() if isinstance(key, np.ndarray) and not key.ndim else key), value

    def _blob(self) -> mil.Blob:
        self._take("BLOBFILE")
        self._take("(")
        fields = {}
        for name, value in self._listed(")", self._attribute):
            fields[name] = value.data
        path, offset = fields.get("path"), fields.get("offset")
        if not isinstance(path, str) or not isinstance(offset, np.ndarray):
            raise ModelError("a BLOBFILE without its path or offset")
        return mil.Blob(path, int(offset))

    def _tensor(self, kind: mil.TensorType) -> mil.Value:
        shape: list[int] = []
        flat: list[Any] = []
        self._elements(kind.dtype, 0, shape, flat)
        if (not kind.admits(tuple(shape)) and kind.count != 0) or len(flat) != prod(shape):
            self._fail(f"a constant of shape {tuple(shape)} where the type is {kind}")
        if kind.dtype == "string":
            data: Any = flat[0] if kind.dims == () else np.array(flat, object).reshape(shape)
            return mil.Value(kind, data)
        sizes = shape if kind.dims is None or kind.count != 0 else [d or 0 for d in kind.dims]
        try:
            return mil.Value(kind, np.array(flat, mil.DTYPES[kind.dtype]).reshape(sizes))
        except (ValueError, OverflowError, TypeError) as problem:
            raise ModelError(f"a constant of type {kind}: {problem}") from None

    def _elements(self, dtype: str, axis: int, shape: list[int], flat: list[Any]) -> None:
        if not self._is("["):
            flat.append(self._scalar(dtype))
            return
        if axis >= MAX_RANK:
            self._fail(f"a constant of more than {MAX_RANK} dimensions")
        self._advance()
        if axis == len(shape):
            shape.append(0)
        size = len(self._listed("]", lambda: self._elements(dtype, axis + 1, shape, flat)))
        shape[axis] = max(shape[axis], size)

    def _scalar(self, dtype: str) -> Any:
        token = self.token
        if dtype == "string":
            if self.kind != "string":
                self._fail(f"{token!r} where a string is expected")
            self._advance()
            try:
                return json.loads(token, strict=False)
            except ValueError:
                raise ModelError(f"the string {token[:40]} has an unknown escape") from None
        if dtype == "bool" and token in ("true", "false"):
            return self._advance() == "true"
        if self.kind != "number" and token not in ("inf", "nan"):
            self._fail(f"{token or 'the end'!r} where a number is expected")
        self._advance()
        try:
            if dtype.startswith(("fp", "bf")):
                return float.fromhex(token) if "0x" in token else float(token)
            return int(token, 0)
        except ValueError:
            raise ModelError(f"{token!r} is not a number of type {dtype}") from None
