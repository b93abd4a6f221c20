"""bfloat by integers and float, where a processor has no instructions for it."""

from __future__ import annotations

import re
from itertools import count

from softmetal.compiler.ir import Instruction, Module

_NARROW = re.compile(r"bfloat|<(\d+) x bfloat>")
_WIDE = re.compile(r"float|<(\d+) x float>")
_ARITHMETIC = ("fadd", "fsub", "fmul", "fdiv", "fcmp")
_FROM, _TO = ("sitofp", "uitofp"), ("fptosi", "fptoui")  # integers


def by_integers(module: Module) -> None:
    """Convert bfloat to float and back by integer arithmetic, which vectorises: LLVM would call a
    function to round each element, also in the operations that it narrows to bfloat. It cannot
    select vectors of some of these, such as comparisons for AVX-512 with bfloat instructions."""
    numbers = count()

    def changed(made: Instruction) -> list[str] | None:
        steps = _steps(made, f"%softmetal.bf{next(numbers)}") if "bfloat" in made.text else None
        if steps is None:
            return None
        return [part for step in steps for part in changed(Instruction(step)) or [step]]

    for function in module.functions.values():
        if "bfloat" in function.body:
            function.rewrite(changed, *_ARITHMETIC, *_FROM, *_TO, "fpext", "fptrunc")


def _steps(made: Instruction, n: str) -> list[str] | None:
    """What computes the same without bfloat; None for what has nothing of it."""
    name, kind, to = made.opcode, made.type, made.to
    narrow = _NARROW.fullmatch(to if name in _FROM else kind)
    if name == "fptrunc":
        like = _WIDE.fullmatch(kind)
        return _truncated(made, n, like) if like and _NARROW.fullmatch(to) else None
    if narrow is None:
        return None
    if name == "fpext":
        return _extended(made, n, narrow) if _WIDE.fullmatch(to) else None
    wide = _like("float", narrow)
    if name in _TO:
        first = f"{n}.wide = fpext {kind} {made.values[0]} to {wide}"
        return [first, f"{made.result} = {name} {wide} {n}.wide to {to}"]
    if name in _ARITHMETIC:
        return _widened(made, wide, n)
    if name in _FROM:
        first = f"{n}.wide = {name} {made.flags}{kind} {made.values[0]} to {wide}"
        return [first, f"{made.result} = fptrunc {wide} {n}.wide to {to}"]
    return None


def _widened(made: Instruction, wide: str, n: str) -> list[str]:
    kind, (left, right) = made.type, made.values
    is_comparison = made.opcode == "fcmp"
    result = made.result if is_comparison else f"{n}.wide"
    return [
        f"{n}.left = fpext {kind} {left} to {wide}",
        f"{n}.right = fpext {kind} {right} to {wide}",
        f"{result} = {made.opcode} {made.flags}{wide} {n}.left, {n}.right",
        *([] if is_comparison else [f"{made.result} = fptrunc {wide} {n}.wide to {kind}"]),
    ]


def _extended(made: Instruction, n: str, like: re.Match[str]) -> list[str]:
    i16, i32 = _like("i16", like), _like("i32", like)
    return [
        f"{n}.short = bitcast {made.type} {made.values[0]} to {i16}",
        f"{n}.low = zext {i16} {n}.short to {i32}",
        f"{n}.bits = shl {i32} {n}.low, {_everywhere(16, like)}",
        f"{made.result} = bitcast {i32} {n}.bits to {made.to}",
    ]


def _truncated(made: Instruction, n: str, like: re.Match[str]) -> list[str]:
    """To nearest, ties to even."""
    i1, i16, i32 = (_like(kind, like) for kind in ("i1", "i16", "i32"))
    value = made.values[0]
    return [
        f"{n}.bits = bitcast {made.type} {value} to {i32}",
        f"{n}.high = lshr {i32} {n}.bits, {_everywhere(16, like)}",
        f"{n}.odd = and {i32} {n}.high, {_everywhere(1, like)}",
        f"{n}.half = add {i32} {n}.odd, {_everywhere(0x7FFF, like)}",
        f"{n}.sum = add {i32} {n}.bits, {n}.half",
        f"{n}.quiet = or {i32} {n}.bits, {_everywhere(0x400000, like)}",
        f"{n}.isnan = fcmp uno {made.type} {value}, {value}",
        f"{n}.pick = select {i1} {n}.isnan, {i32} {n}.quiet, {i32} {n}.sum",
        f"{n}.top = lshr {i32} {n}.pick, {_everywhere(16, like)}",
        f"{n}.short = trunc {i32} {n}.top to {i16}",
        f"{made.result} = bitcast {i16} {n}.short to {made.to}",
    ]


def _like(kind: str, found: re.Match[str]) -> str:
    """A type with as many elements as the one found."""
    return f"<{found[1]} x {kind}>" if found[1] else kind


def _everywhere(number: int, like: re.Match[str]) -> str:
    return f"splat (i32 {number})" if like[1] else str(number)
