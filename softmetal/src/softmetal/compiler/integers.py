"""Integer operations that C++ leaves undefined and Metal does not.

A shift takes its count modulo the width. Dividing by zero, or the smallest integer by -1, gives
some number and has no other effect; x86 would trap, and LLVM assumes that it never happens.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

_OPERAND = r"(?:<[^>]*>|splat \([^)]*\)|[^\s,<]+)"
_OPERATION = re.compile(
    r"^  (?P<result>%\S+) = (?P<name>shl|lshr|ashr|sdiv|udiv|srem|urem) (?P<flags>(?:[a-z]+ )*)"
    rf"(?P<type>i\d+|<\d+ x i\d+>) (?P<left>{_OPERAND}), (?P<right>{_OPERAND})(?P<rest>.*)$",
    re.M,
)
_SHIFTS = ("shl", "lshr", "ashr")


def defined(ir: str) -> str:
    """The IR with such operations replaced, for IR that no optimisation has seen yet."""
    numbers = itertools.count()

    def replaced(match: re.Match[str]) -> str:
        operation = _Operation(**match.groupdict(), temporary=f"%softmetal.int{next(numbers)}")
        if operation.is_defined():
            return match[0]
        steps = operation.shift() if operation.name in _SHIFTS else operation.division()
        return "\n".join(f"  {step}{operation.rest}" for step in steps)

    return _OPERATION.sub(replaced, ir)


@dataclass(frozen=True, slots=True)
class _Operation:
    """One instruction in parts; `rest` is its metadata."""

    result: str
    name: str
    flags: str
    type: str
    left: str
    right: str
    rest: str
    temporary: str

    @property
    def bits(self) -> int:
        return int(re.findall(r"i(\d+)", self.type)[0])

    @property
    def truth(self) -> str:
        """The type of a comparison."""
        return re.sub(r"i\d+", "i1", self.type)

    def is_defined(self) -> bool:
        """Whether the right operand is a number with which nothing is undefined."""
        if not re.fullmatch(r"-?\d+", self.right):
            return False
        number = int(self.right)
        return 0 <= number < self.bits if self.name in _SHIFTS else number not in (0, -1)

    def everywhere(self, number: int) -> str:
        return str(number) if self.type == f"i{self.bits}" else f"splat (i{self.bits} {number})"

    def with_right(self, result: str) -> str:
        """The operation itself, with the temporary as its right operand."""
        return f"{result} = {self.name} {self.flags}{self.type} {self.left}, {self.temporary}"

    def shift(self) -> list[str]:
        count = f"{self.temporary} = and {self.type} {self.right}, {self.everywhere(self.bits - 1)}"
        return [count, self.with_right(self.result)]

    def division(self) -> list[str]:
        """By 1 instead of 0. What -1 divides is negated: the smallest integer stays itself."""
        t, kind, right = self.temporary, self.type, self.right
        one, signed = self.everywhere(1), self.name in ("sdiv", "srem")
        steps = [f"{t}.bad = icmp eq {kind} {right}, {self.everywhere(0)}"]
        if signed:
            steps = [
                f"{t}.zero = icmp eq {kind} {right}, {self.everywhere(0)}",
                f"{t}.minus = icmp eq {kind} {right}, {self.everywhere(-1)}",
                f"{t}.bad = or {self.truth} {t}.zero, {t}.minus",
            ]
        steps.append(f"{t} = select {self.truth} {t}.bad, {kind} {one}, {kind} {right}")
        if self.name != "sdiv":
            return [*steps, self.with_right(self.result)]
        return [
            *steps,
            self.with_right(f"{t}.quotient"),
            f"{t}.negative = sub {kind} {self.everywhere(0)}, {self.left}",
            f"{self.result} = select {self.truth} {t}.minus, {kind} {t}.negative, "
            f"{kind} {t}.quotient",
        ]
