"""Refuses compiled code that reaches the host or runs outside a dispatch.

The spelling of a source can hide what it does; LLVM's IR and the linked object cannot. The IR is
searched as text, not read: what a reader overlooks would run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from softmetal.compiler import builtins
from softmetal.compiler.elf import Elf
from softmetal.errors import CompileError

_MATHS = (  # of these LLVM makes calls; those that store through a pointer are not among them
    r"(fmod|fmax|fmin|fma|ldexp|a?(sin|cos|tan)h?|atan2|exp(2|10|m1)?|log(2|10|1p|b)?|pow|cbrt|sqrt"
    r"|hypot|erfc?|[lt]gamma|remainder|nextafter|copysign|fabs|fdim|ceil|floor|trunc|round(even)?"
    r"|rint|nearbyint|l?l(round|rint)|scalbl?n|ilogb)f?"
)
_FLOAT, _INTEGER = r"(bf|[hsdtx]f)", r"[sdt]i"
# What the code generator calls besides: for memory, arithmetic in parts, thread-local storage.
_GENERATED = (
    r"(__wrap_)?__tls_get_addr|mem(cpy|move|set|cmp)|(frexp|modf|sincos)f?"
    rf"|__(extend|trunc){_FLOAT}{_FLOAT}2|__fix(uns)?{_FLOAT}{_INTEGER}|__float(un)?{_INTEGER}{_FLOAT}"
    rf"|__(u?(div|mod)|mul|ashl|lshr|ashr){_INTEGER}3|__(clz|ctz|popcount|parity|bswap){_INTEGER}2"
    rf"|__(add|sub|mul|div|neg){_FLOAT}[23]|__powi{_FLOAT}2|__(eq|ne|lt|le|gt|ge|unord|cmp){_FLOAT}2"
    r"|__aarch64_(cas|swp|ldadd|ldset|ldclr|ldeor)\d+_\w+"
)
_RUNTIME = (
    r"softmetal_(barrier|collective|lane|log|check_(barrier|simd_barrier|fence|thread|first))"
)
_CHECKS = r"softmetal_check_(access|slots|mem(cpy|move|set))"
_OBJECT = re.compile(rf"{_RUNTIME}|{_CHECKS}|{_MATHS}|{_GENERATED}")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the IR of a kernel may contain: it is everything that our headers need."""

    functions: re.Pattern[str]
    intrinsics: re.Pattern[str]
    assembly: frozenset[str] = frozenset()
    address_spaces: bool = False  # numbered ones, which threads of a CPU use for segments


CPU = Allowed(re.compile(rf"{_RUNTIME}|{_MATHS}"), builtins.intrinsics())
_INSTRUMENTATION = "__asan_"  # declared before `instrument` replaces the calls
_NAME = r'@"?((?<=")[^"]*|[\w.$-]+)"?'
_DECLARED = re.compile(rf"^declare [^\n]*?{_NAME}\(", re.MULTILINE)
_EXTERNAL = re.compile(rf"^{_NAME} = (?:[\w()]+ )*(?:external|extern_weak) [^\n]*$", re.MULTILINE)
_ASSEMBLY = "inline assembly is not supported in Metal"
_INLINE = re.compile(r' asm (?:[a-z]+ )*"([^"]*)"')
_SPACE = re.compile(r"\baddrspace\((?!0\))")
_REFUSED = (
    (r"^module asm ", _ASSEMBLY),
    (
        r"^@llvm\.global_[cd]tors = (?!appending global \[0 x )",  # the sanitizer's list is empty
        "code that runs when a library is loaded is not supported in Metal: a variable needs a "
        "constant initializer, and functions cannot be constructors or destructors",
    ),
    (r"^@\S+ = (?:[\w()]+ )*ifunc ", "attribute 'ifunc' is not supported in Metal"),
    (
        r'^(?:@|define )[^\n]*? section "(?!llvm\.metadata")[^"\n]+"',
        "attribute 'section' is not supported in Metal",
    ),
    (
        r"^  %\S+ = alloca [^\n]*, i\d+ %",
        "arrays of variable length are not supported in Metal: give a constant length",
    ),
    (r"^  (indirectbr|callbr) ", "jumps to computed addresses are not supported in Metal"),
)
_PATTERNS = [(re.compile(pattern, re.MULTILINE), message) for pattern, message in _REFUSED]
_GUARDED = "__cxa_guard_acquire"
# Dynamic tags that make the loader run code, change it, or load other libraries.
_LOADING = {
    1: "NEEDED",
    12: "INIT",
    13: "FINI",
    22: "TEXTREL",
    25: "INIT_ARRAY",
    26: "FINI_ARRAY",
    32: "PREINIT_ARRAY",
    0x7FFFFFFD: "AUXILIARY",
    0x7FFFFFFF: "FILTER",
}


class UndefinedSymbol(CompileError):
    """A function or variable that neither the source nor the runtime defines."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"error: {message}\n")
        self.name = name
        self.message = message


def check_ir(ir: str, allowed: Allowed = CPU) -> None:
    """Raise CompileError for assembly, initialisation at load, and what is not allowed."""
    for pattern, message in _PATTERNS:
        if pattern.search(ir):
            raise CompileError(f"error: {message}\n")
    if set(_INLINE.findall(ir)) - allowed.assembly - {""}:
        raise CompileError(f"error: {_ASSEMBLY}\n")
    if not allowed.address_spaces and _SPACE.search(ir):
        raise CompileError("error: attribute 'address_space' is not supported in Metal\n")
    for name in (*_DECLARED.findall(ir), *_EXTERNAL.findall(ir)):
        if name.startswith("llvm."):
            _require_intrinsic(name, allowed)
        elif not name.startswith(_INSTRUMENTATION):
            _require_allowed(name, allowed.functions)


def _require_intrinsic(name: str, allowed: Allowed) -> None:
    if not allowed.intrinsics.fullmatch(name):
        raise CompileError(
            f"error: the builtin behind '{name}' is not supported in Metal: kernels can use "
            "Metal's functions, and builtins that compute values\n"
        )


def check_object(path: Path) -> None:
    """Raise CompileError if loading the object would run code, or it needs other libraries."""
    elf = Elf.read(path)
    if tags := sorted(_LOADING.keys() & elf.dynamic_tags()):
        raise CompileError(
            f"error: loading the kernel would run other code ({_LOADING[tags[0]]}), which is not "
            "supported in Metal\n"
        )
    undefined = elf.undefined()
    for name in sorted(undefined):
        _require_allowed(name, _OBJECT)
    exported = {n for n in elf.symbols() if n and not n.startswith("softmetal_")} - undefined
    if exported:
        raise CompileError(f"error: a kernel cannot export the symbol {min(exported)}\n")


def _require_allowed(symbol: str, allowed: re.Pattern[str]) -> None:
    if symbol == _GUARDED:
        raise CompileError("error: a static local variable needs a constant initializer\n")
    if not allowed.fullmatch(symbol):
        name = demangle(symbol)
        raise UndefinedSymbol(
            name,
            f"undefined symbol: {name} has no definition: kernels can use functions of their "
            "source and of Metal, not of the host",
        )


def demangle(name: str) -> str:
    """The last component of an Itanium name, enough to recognise a function."""
    parts = re.findall(r"(\d+)([A-Za-z_]\w*)", name) if name.startswith("_Z") else []
    return parts[-1][1][: int(parts[-1][0])] if parts else name
