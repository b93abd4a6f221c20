"""Integer operations that C++ leaves undefined and Metal does not.

A shift takes its count modulo the width. Dividing by zero, or the smallest integer by -1, gives
some number and has no other effect; x86 would trap, and LLVM assumes that it never happens.
"""

from __future__ import annotations

import re
from itertools import count

from softmetal.compiler.ir import Instruction, Module

_SHIFTS = ("shl", "lshr", "ashr")
_DIVISIONS = ("sdiv", "udiv", "srem", "urem")
_BITS = re.compile(r"i(\d+)")  # of an integer, or of a vector's elements


def defined(ir: str) -> str:
    """The IR with such operations replaced, for IR that no optimisation has seen yet."""
    module, numbers = Module(ir), count()

    def replaced(operation: Instruction) -> list[str] | None:
        temporary, bits = f"%softmetal.int{next(numbers)}", int(_BITS.findall(operation.type)[0])
        if _is_defined(operation, bits):
            return None
        steps = _shift if operation.opcode in _SHIFTS else _division
        return [f"{step}{operation.attached}" for step in steps(operation, temporary, bits)]

    for function in module.functions.values():
        function.rewrite(replaced, *_SHIFTS, *_DIVISIONS)
    return str(module)


def _is_defined(operation: Instruction, bits: int) -> bool:
    """Whether the right operand is a number with which nothing is undefined."""
    right = operation.values[1]
    if not right.removeprefix("-").isdigit():
        return False
    number = int(right)
    return 0 <= number < bits if operation.opcode in _SHIFTS else number not in (0, -1)


def _shift(shift: Instruction, temporary: str, bits: int) -> list[str]:
    kind, (left, right) = shift.type, shift.values
    return [
        f"{temporary} = and {kind} {right}, {_everywhere(kind, bits - 1)}",
        f"{shift.result} = {shift.opcode} {shift.flags}{kind} {left}, {temporary}",
    ]


def _division(division: Instruction, t: str, bits: int) -> list[str]:
    """By 1 instead of 0. What -1 divides is negated: the smallest integer stays itself."""
    kind, (left, right), name = division.type, division.values, division.opcode
    truth = _BITS.sub("i1", kind)
    zero, one, minus = (_everywhere(kind, number) for number in (0, 1, -1))
    steps = [f"{t}.bad = icmp eq {kind} {right}, {zero}"]
    if name in ("sdiv", "srem"):
        steps = [
            f"{t}.zero = icmp eq {kind} {right}, {zero}",
            f"{t}.minus = icmp eq {kind} {right}, {minus}",
            f"{t}.bad = or {truth} {t}.zero, {t}.minus",
        ]
    steps.append(f"{t} = select {truth} {t}.bad, {kind} {one}, {kind} {right}")
    result = f"{t}.quotient" if name == "sdiv" else division.result
    steps.append(f"{result} = {name} {division.flags}{kind} {left}, {t}")
    if name == "sdiv":
        steps += [
            f"{t}.negative = sub {kind} {zero}, {left}",
            f"{division.result} = select {truth} {t}.minus, {kind} {t}.negative, {kind} {result}",
        ]
    return steps


def _everywhere(kind: str, number: int) -> str:
    """A constant, in every element of a vector."""
    return f"splat (i{_BITS.findall(kind)[0]} {number})" if kind[0] == "<" else str(number)
