"""Runs clang over a source with real address spaces and reports what Apple's compiler refuses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from softmetal.compiler import diagnostics
from softmetal.compiler.frontend import Pass
from softmetal.compiler.identity import INCLUDE, fingerprint
from softmetal.compiler.strict.spelling import TOO_LARGE, respell
from softmetal.compiler.tokens import MAX_NESTING
from softmetal.errors import CompileError, ToolchainError
from softmetal.toolchain import clang, disk_cache
from softmetal.types import Program

_HEADERS = Path(__file__).parent / "include"
FLAGS = (
    *("-x", "clcpp", "-cl-std=CLC++2021", "-cl-no-stdinc", "-fdeclspec", "-fno-exceptions"),
    *("-nostdinc", "-nostdlibinc", "-fno-rtti", "-w", "--target=x86_64-linux-gnu"),
    *("-Xclang", "-cl-ext=+all", "-fsigned-char", "-DSM_STRICT"),
    *(f"-isystem{_HEADERS}", f"-isystem{INCLUDE}"),
)
QUIET = (
    *("-fno-caret-diagnostics", "-fno-color-diagnostics", "-ferror-limit=0"),
    f"-fbracket-depth={MAX_NESTING}",
)
_GROUP = re.compile(r"^(?=[^\n]*: (?:fatal )?error: )", re.MULTILINE)  # an error and its notes
_PLACE = re.compile(r"^([^\n]*:\d+):\d+: error: ", re.MULTILINE)
_SPACE = re.compile(r"__(private|local|global_device|global|generic|constant)\b")
# The space of an operand is not known: it is a pointer or reference in our own headers, or `this`
# in a constructor.
_UNKNOWN_SPACE = re.compile(
    r"(?m)"
    r"object is in (address space '__generic'|default)|conversion from '[^']*__generic"
    r"|bind reference in (address space '__generic'|default)"
    r"|adjusted type '[^']*__generic|: substitution failure \[with [^\n]*\]$"
)
# A temporary has no space in clang, and is in thread memory in Metal.
_TEMPORARY = re.compile(
    r"(?:with an expression|to value) of type '(?![^']*__(?:private|local|global))"
    r"|cannot bind to a temporary object because of address space mismatch"
)
_NOISE = re.compile(r"^In file included|^<scratch space>|/include/\S+ note: expanded from macro")
_ABOUT_SPACES = (
    *("changes address space", "mismatching address spaces", "initialize object parameter"),
    *("non-overlapping address spaces", "qualified with an address space"),
    *("bind reference in address space", "object is in address space"),
    *("pointer to address space", "cannot be qualified with address space"),
    "function variable cannot be declared in local address space",
)
_WORDING = {
    r"non-kernel function variable cannot be declared in local address space": (
        "automatic variable qualified with an address space"
    ),
    rf"static assertion failed[^\n]*: {re.escape(TOO_LARGE)}": TOO_LARGE,
}
# Deleted overloads of member functions stand for spaces that these are not for.
_DELETED = {
    r"call to deleted member function ('[^']*'): ": r"no matching member function for call to \1: ",
    r"overload resolution selected deleted operator ('[^']*'): ": r"no viable overloaded \1: ",
    r"conversion function (from '[^']*' to '[^']*') invokes a deleted function: ": (
        r"no viable conversion \1: "
    ),
}
_BOTH = {
    "__private": "thread",
    "const __global": "constant",
    "__global": "constant",
    "softmetal_half": "half",
}
_WORDS = {
    False: {"__local": "device", "__global_device": "threadgroup"},
    True: {"__local": "threadgroup", "__global_device": "device"},
}


def address_spaces(program: Program, parsed: Pass, limits: bool = False) -> str:
    """Errors in clang's format about address spaces, empty if there are none; with `limits` also
    about plain kernels that take more threadgroup memory than there is."""
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(_run, program, parsed, False, limits)
        if not any(token.text == "threadgroup" for token in parsed.tokens):
            return plain.result()
        swapped = pool.submit(_run, program, parsed, True, limits)
        groups = _GROUP.split(swapped.result())
        return joined(plain.result(), "".join(group for group in groups if "threadgroup" in group))


def joined(told: str, more: str) -> str:
    """Errors, and more errors in lines that have none yet."""
    lines = set(_PLACE.findall(told))
    new = (group for group in _GROUP.split(more) if not lines & set(_PLACE.findall(group)))
    return told + "".join(new)


def _run(program: Program, parsed: Pass, swapped: bool, limits: bool) -> str:
    text = respell(parsed, swapped, limits)
    places = diagnostics.SourceMap(
        text, program.options.file_name, program.source, program.options.include_dirs
    )
    try:
        run_clang([*FLAGS, *QUIET, "-fsyntax-only"], text, swapped)
    except CompileError as error:
        return diagnostics.explain(_about_spaces(error.diagnostics, swapped), places)
    return ""


def run_clang(flags: Sequence[str], source: str, swapped: bool) -> str:
    """Clang's warnings for a respelled source; raises CompileError."""
    header = _header(swapped)
    given = ["-include-pch", str(header), "-Xclang", "-fno-validate-pch", "-"]
    _, said = clang.run("clang", [*flags, *given], source, (_HEADERS, INCLUDE, header))
    return said


def _about_spaces(stderr: str, swapped: bool) -> str:
    """The errors that Apple's compiler has too, in its words for the address spaces."""
    lines = [line for line in stderr.splitlines() if not _NOISE.search(line)]
    groups = _judged(_GROUP.split("\n".join(lines)))
    kept = "\n".join(map(_without_deleted, groups))
    for clangs, ours in (*_WORDS[swapped].items(), *_BOTH.items()):
        kept = re.sub(rf"{clangs}\b", ours, kept)
    kept = re.sub(r"(?<=\*) ?thread(?=['\]])", "", kept)
    for clangs, ours in (*_DELETED.items(), *_WORDING.items()):
        kept = re.sub(clangs, ours, kept)
    return kept


def _without_deleted(group: str) -> str:
    """An error without notes about the overloads that `spelling` added."""
    lines = group.rstrip("\n").split("\n")
    if any(re.search(text, lines[0]) for text in _DELETED):
        ours = ("note: candidate function", "marked deleted here")
        lines[1:] = [line for line in lines[1:] if not any(text in line for text in ours)]
    return "\n".join(lines)


def _judged(groups: list[str]) -> list[str]:
    """The errors, each with its notes, that are Apple's too and not of C++ for OpenCL alone."""
    errors = [group for group in groups if ": error: " in group.partition("\n")[0]]
    if not errors:  # clang was stopped
        raise CompileError("".join(groups))
    known = [group for group in errors if not _is_unknown(group)]
    # What follows from an error that does not count may look like a mistake in overloading.
    cascades = len(known) < len(errors)
    return [g for g in known if _is_certain(g) or (not cascades and _is_overload(g))]


def _is_unknown(group: str) -> bool:
    """Whether clang's space of an operand says nothing, or Metal copies where C++ does not."""
    head = group.partition("\n")[0]
    if "incompatible operand types" in head:  # `c ? a : b` of a class copies where that is needed
        return "*" not in head
    if "attempt to use a deleted function" in head:  # the same, by a conversion of the class
        return True
    if "OpenCL" in head or "__constant" in group:  # the latter is a string's, and has no other use
        return True
    return "__generic" in head or bool(_TEMPORARY.search(head) or _UNKNOWN_SPACE.search(group))


def _is_certain(group: str) -> bool:
    head = group.partition("\n")[0]
    return TOO_LARGE in head or "in address space '" in head or _mixes_spaces(head)


def _is_overload(group: str) -> bool:
    """Whether no function fits because of address spaces."""
    return any(": note: " in line and _mixes_spaces(line) for line in group.split("\n"))


def _mixes_spaces(line: str) -> bool:
    """Whether a message is about two address spaces."""
    if any(text in line for text in _ABOUT_SPACES):
        return True
    resolved = re.sub(r"'[^']*' \(aka ('[^']*')\)", r"\1", line)
    types = [text for text in re.findall(r"'([^']*)'", resolved) if _SPACE.search(text)][:2]
    if not re.search(r"[*&\[]", "".join(types)):
        return False
    # clang's operators on pointers take no class that converts to an integer, as Metal's do.
    if "invalid operands to binary expression" in line and not all("*" in t for t in types):
        return False
    if "no known conversion from" in line and not _one_kind(types):
        return False
    return len({found[0] for found in map(_SPACE.search, types) if found is not None}) > 1


def _one_kind(types: list[str]) -> bool:
    """Whether types are the same but for address spaces, references, and arrays that decay."""
    plain = (re.sub(r"\b(const|volatile)\b|[&()\s]", "", _SPACE.sub("", text)) for text in types)
    kinds = {re.sub(r"\[\w*\]", "*", text) for text in plain}
    return len(kinds) == 1 or any(kind.startswith("void") for kind in kinds)


def _header(swapped: bool) -> Path:
    name = "swapped" if swapped else "plain"
    key = disk_cache.key_of("strict", name, fingerprint(), str(INCLUDE))

    def build(folder: Path) -> None:
        source = _HEADERS / "softmetal" / "strict_unit.h"
        flags = [*FLAGS, *(["-DSM_SWAPPED_SPACES"] if swapped else [])]
        output = str(folder / "unit.pch")
        try:
            clang.run("clang", [*flags, str(source), "-Xclang", "-emit-pch", "-c", "-o", output])
        except CompileError as error:  # not an error of the program
            raise ToolchainError(f"headers cannot be read for strict checks:\n{error}") from error

    return disk_cache.default().get("header", key, build) / "unit.pch"
