"""The kernels of a stem, each by itself: Apple's compiler takes long for hundreds at once.

A stem's own file instantiates templates by macros at its top level, such as `INSTANTIATE(float32,
float)`. They are expanded here until each explicit instantiation is found with its `host_name`;
what is left of macros within one is the compiler's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DEFINITION = re.compile(r"#\s*define\s+(\w+)(\(([^)]*)\))?(.*)", re.DOTALL)
_UNDEFINED = re.compile(r"#\s*undef\s+(\w+)")
_LINE = re.compile(r'#line (\d+) "([^"]*)"')
_TOKEN = re.compile(r'\s*##\s*|#\s*\w+|\w+|"(?:\\.|[^"\\])*"|\s+|.', re.DOTALL)
_NAME = re.compile(r'host_name\(((?:\s*"[^"]*")+)\s*\)')
_LITERAL = re.compile(r'"([^"]*)"')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_REST = "__VA_ARGS__"


@dataclass(frozen=True)
class Macro:
    """A macro of the preprocessor; without parameters it stands for its body alone."""

    parameters: tuple[str, ...] | None
    body: str

    def with_arguments(self, arguments: list[str]) -> str:
        """Its body for an invocation, by the rules of C for `#`, `##` and `__VA_ARGS__`."""
        parameters = self.parameters or ()
        named = [name for name in parameters if name != "..."]
        values = dict(zip(named, arguments, strict=False))
        if len(named) < len(parameters):
            values[_REST] = ", ".join(arguments[len(named) :])
        pieces = []
        for token in _TOKEN.findall(self.body):
            stripped = token.strip()
            if stripped == "##":
                continue
            if stripped.startswith("#") and stripped[1:].strip() in values:
                pieces.append(f'"{values[stripped[1:].strip()]}"')
            else:
                pieces.append(values.get(token, token))
        return "".join(pieces)


@dataclass(frozen=True)
class StemParts:
    """A stem without its instantiations, and these by the names of their kernels."""

    base: str
    instances: dict[str, str]

    def text_of(self, kernel: str) -> str:
        """The source of one kernel; without a name, of those that are no templates."""
        return self.base + self.instances.get(kernel, "")


def split(text: str, file: str) -> StemParts:
    """The parts of a stem's text whose own file has this name.

    >>> from lbrx.metal.instances import split
    >>> parts = split('#line 1 "k.metal"\\n#define K(t) template [[host_name("k_" #t)]] kernel '
    ...               'void k<t>(device t*);\\nK(int)\\nK(uint)\\n', "k.metal")
    >>> list(parts.instances)
    ['k_int', 'k_uint']
    """
    macros: dict[str, Macro] = {}
    base: list[str] = []
    instances: dict[str, str] = {}
    here, number = "", 0
    for line in _whole_lines(text):
        start = number
        number += line.count("\n")
        plain = _COMMENT.sub("", line.replace("\\\n", " ")).strip()
        if found := _LINE.match(line):
            here, number = found[2], int(found[1])
        elif plain.startswith("#"):
            _direct(plain, macros)
        elif here == file and (word := re.match(r"\w+", plain)) and word[0] in macros:
            for statement in _statements(plain, macros):
                name = _kernel_of(statement)
                instances[name] = f'#line {start} "{file}"\n{statement}\n'
            line = "\n" * line.count("\n")
        base.append(line)
    return StemParts("".join(base), instances)


def _whole_lines(text: str) -> Iterator[str]:
    """Lines with those that continue them, by a backslash or an open parenthesis of a macro's."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if line.endswith("\\\n"):
            continue
        begins = re.match(r"[A-Z_0-9]+\(", pending)
        if begins and pending.count("(") > pending.count(")"):
            continue
        yield pending
        pending = ""
    if pending:
        yield pending


def _direct(directive: str, macros: dict[str, Macro]) -> None:
    if found := _DEFINITION.match(directive):
        names = None
        if found[2] is not None:
            names = tuple(name.strip() for name in found[3].split(",") if name.strip())
        macros[found[1]] = Macro(names, found[4].strip())
    elif found := _UNDEFINED.match(directive):
        macros.pop(found[1], None)


def _statements(text: str, macros: dict[str, Macro]) -> Iterator[str]:
    """The instantiations that invocations of macros become."""
    while text := text.strip():
        if text.startswith("template"):
            statement, _, text = text.partition(";")
            yield statement + ";"
            continue
        word = re.match(r"\w+", text)
        macro = macros.get(word[0]) if word else None
        if word is None or macro is None:
            raise ValueError(f"{text[:60]!r} is neither an instantiation nor a macro")
        rest, arguments = text[word.end() :].lstrip(), list[str]()
        if macro.parameters is not None:
            arguments, rest = _arguments(rest)
        yield from _statements(macro.with_arguments(arguments), macros)
        text = rest


def _arguments(text: str) -> tuple[list[str], str]:
    """The arguments of an invocation, and what follows it."""
    depth, start, found = 0, 1, list[str]()
    for place, sign in enumerate(text):
        if sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
        if (sign == "," and depth == 1) or (sign == ")" and depth == 0):
            found.append(" ".join(text[start:place].split()))
            start = place + 1
        if depth == 0:
            return found, text[place + 1 :]
    raise ValueError(f"{text[:60]!r} has no closing parenthesis")


def _kernel_of(statement: str) -> str:
    name = _NAME.search(statement)
    if name is None:
        raise ValueError(f"{statement[:60]!r} has no host_name")
    return "".join(_LITERAL.findall(name[1]))
