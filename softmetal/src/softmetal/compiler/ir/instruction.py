"""An instruction of LLVM IR, or a constant expression."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from softmetal.compiler.ir.reading import NAME, Line, Operand
from softmetal.errors import CompileError

_HEAD = re.compile(rf"\s*(?:(%{NAME}) = )?((?:(?:tail|musttail|notail) )?)(#?\w+)|")
_TYPE_FIRST = ("load", "alloca", "getelementptr", "phi")  # a type without a value of it
_EXPRESSION = re.compile(r"(\w+(?: \w+)*) \((.*)\)")


class Instruction:
    """One instruction, which is read when it is asked for a part.

    It is its text: another instruction is made by `with_value`, or written anew.
    """

    text: str
    result: str  # the value that it defines, with %; '' for none
    opcode: str
    flags: str  # before the type, with a space after each: nsw, volatile, eq, noundef
    type: str  # the first: of the operands, or of what is loaded, called, stepped over
    operands: list[Operand]  # a call's arguments; what comes into a phi
    labels: list[Operand]  # blocks that it goes to, or that a phi's operands come from, with %
    callee: str  # a name with @, a value, or assembly
    to: str  # the type that a conversion leads to
    align: int  # of an access; 0 if it is not given
    metadata: dict[str, str]  # what is attached, such as dbg: !5
    attached: str  # the same as it is written, with the comma before it

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def values(self) -> list[str]:
        return [operand.value for operand in self.operands]

    @property
    def debug(self) -> str:
        """The place in the source, as it is attached to another instruction."""
        place = self.metadata.get("dbg")
        return f", !dbg {place}" if place else ""

    def with_value(self, operand: Operand, value: str) -> Instruction:
        """The same with another value for an operand or a label."""
        return Instruction(f"{self.text[: operand.start]}{value}{self.text[operand.end :]}")

    if not TYPE_CHECKING:  # which knows the attributes

        def __getattr__(self, name: str) -> Any:
            head = _HEAD.match(self.text)
            self.result, prefix, self.opcode = (each or "" for each in head.groups())
            if name not in ("result", "opcode"):
                try:
                    self._read(prefix, Line(self.text, head.end()))
                except (IndexError, ValueError):
                    raise CompileError(
                        f"error: cannot read the compiler's output {self.text.strip()[:200]!r}\n"
                    ) from None
            return object.__getattribute__(self, name)

    def _read(self, prefix: str, line: Line) -> None:
        self.type, self.callee, self.to, self.align, self.attached = "", "", "", 0, ""
        self.operands, self.labels, self.metadata = [], [], {}
        # Of these `add` and `true` are flags.
        position = line.after_words(int(self.opcode in ("atomicrmw", "fcmp")), line.size)
        while self.opcode == "atomicrmw" and not line.starts_type(position, line.size):
            position += 1
        flags = f"{prefix}{line.between(0, position)}".strip()
        self.flags = f"{flags} " if flags else ""
        if self.opcode == "call" and position < line.size:
            position = self._read_call(line, position)
        elif self.opcode in _TYPE_FIRST and position < line.size:
            after = line.after_type(position)
            self.type, position = line.between(position, after), after
        for first, last in line.parts(position, line.size):
            self._read_part(line, first, last)
        if not self.type and self.operands:
            self.type = self.operands[0].type

    def _read_call(self, line: Line, position: int) -> int:
        """Type, callee and arguments; the position after them."""
        after = line.after_type(position)
        arguments = line.after_value(after)
        last = line.partner(arguments)
        self.type, self.callee = line.between(position, after), line.between(after, arguments)
        found = (line.typed(*each)[0] for each in line.parts(arguments + 1, last))
        self.operands += [each for each in found if each is not None]
        return line.after_words(last + 1, line.size)

    def _read_part(self, line: Line, first: int, last: int) -> None:
        """What is between two commas."""
        token = line.tokens[first]
        if token[0] == "!" and last - first > 1:
            self.attached = self.attached or self.text[line.start(first - 1) :]
            self.metadata[token[1:]] = line.between(first + 1, last)
        elif token == "align":
            self.align = int(line.tokens[first + 1])
        elif self.opcode == "phi":
            value, label = (line.typed(*each)[0] for each in line.parts(first + 1, last - 1))
            self.operands += [value] if value else []
            self.labels += [label] if label else []
        elif not (token[0] == "#" or (token == "[" and self.opcode == "call")):
            self._read_operand(line, first, last)

    def _read_operand(self, line: Line, first: int, last: int) -> None:
        operand, position = line.typed(first, last)
        if operand is None:
            self.type = self.type or line.between(first, last)
            return
        (self.labels if operand.type == "label" else self.operands).append(operand)
        follows = line.tokens[position] if position < last else ""
        if follows == "to":
            self.to = line.between(position + 1, last)
        elif follows == "[":  # the cases of a switch: type, number, comma, label, name
            position += 1
            while position < last - 1:
                position = line.after_value(line.after_type(position)) + 1
                label, position = line.typed(position, position + 2)
                self.labels += [label] if label else []


def expression(value: str) -> Instruction | None:
    """A constant expression, such as `ptrtoint (ptr @x to i64)`, as the instruction it computes."""
    found = _EXPRESSION.fullmatch(value)
    return Instruction(f"{found[1]} {found[2]}") if found else None
