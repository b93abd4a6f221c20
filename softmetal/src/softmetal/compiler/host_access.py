"""Refuses compiled code that reaches the host or runs outside a dispatch.

The spelling of a source can hide what it does; LLVM's IR and the linked object cannot.
"""

from __future__ import annotations

import re
from pathlib import Path

from softmetal.compiler.elf import Elf
from softmetal.errors import CompileError

# Functions of the runtime, of memory and of arithmetic: all that generated code may call.
_ALLOWED = re.compile(
    r"softmetal_\w+|(__wrap_)?__tls_get_addr|mem(cpy|move|set|cmp)"
    r"|(fmod|fmax|fmin|fma|ldexp|frexp|modf|a?(sin|cos|tan)h?|sincos|atan2|exp(2|10|m1)?"
    r"|log(2|10|1p|b)?|pow|cbrt|hypot|sqrt|erfc?|[lt]gamma|remainder|nextafter|copysign|fabs|fdim"
    r"|ceil|floor|trunc|round(even)?|rint|nearbyint|l?l(round|rint)|scalbl?n|ilogb)f?"
    r"|__[a-z]+([hsdtx]f|bf|[sdt]i|hi|qi|ti)[a-z]*\d?"  # compiler-rt: __truncsfbf2, __udivti3
    r"|__aarch64_(cas|swp|ldadd|ldset|ldclr|ldeor)\d+_\w+"
)
_INSTRUMENTATION = "__asan_"  # declared before `instrument` replaces the calls
_DECLARED = re.compile(r'^declare [^\n]*?@"?([\w.$]+)"?\(', re.MULTILINE)
_EXTERNAL = re.compile(
    r'^@"?([\w.$]+)"? = (?:[\w()]+ )*(?:external|extern_weak) [^\n]*$', re.MULTILINE
)
_ASSEMBLY = "inline assembly is not supported in Metal"
_INLINE = re.compile(r' asm (?:[a-z]+ )*"([^"]*)"')
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


def check_ir(ir: str, assembly: frozenset[str] = frozenset()) -> None:
    """Raise CompileError for assembly, initialisation at load, and calls that leave the kernel.

    `assembly` is what our own headers contain.
    """
    for pattern, message in _PATTERNS:
        if pattern.search(ir):
            raise CompileError(f"error: {message}\n")
    if set(_INLINE.findall(ir)) - assembly - {""}:
        raise CompileError(f"error: {_ASSEMBLY}\n")
    for name in (*_DECLARED.findall(ir), *_EXTERNAL.findall(ir)):
        if not name.startswith(("llvm.", _INSTRUMENTATION)):
            _require_allowed(name)


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
        _require_allowed(name)
    exported = {n for n in elf.symbols() if n and not n.startswith("softmetal_")} - undefined
    if exported:
        raise CompileError(f"error: a kernel cannot export the symbol {min(exported)}\n")


def _require_allowed(symbol: str) -> None:
    if symbol == _GUARDED:
        raise CompileError("error: a static local variable needs a constant initializer\n")
    if not _ALLOWED.fullmatch(symbol):
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
