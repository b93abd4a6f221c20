"""A module of LLVM IR as clang prints it: parts that can be read, changed and printed again.

A part is read when it is asked for, and what is not changed is printed as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, takewhile

from softmetal.compiler.ir.instruction import Instruction
from softmetal.compiler.ir.reading import NAME, Line, Operand, unquoted

_LABEL = re.compile(rf"^({NAME}):[^\n]*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^(define [^\n]*)\n(?:[^}\n][^\n]*\n|\n)*+\}$", re.MULTILINE)
_CALLED = re.compile(rf"\bcall [^\n]*?@({NAME})\(")
_PLACE = re.compile(r",? !dbg !\d+")
_VARIABLE = re.compile(rf"@{NAME} = ((?:[\w()]+ )*?(?:global|constant)) (.*)")
_KINDS = ("declare", "attributes #", "@", "%", "!", "$")
_DEFINED = re.compile(rf"define [^@\n]*@({NAME})\(")
_NAMED = re.compile(rf"(declare) [^@\n]*@({NAME})\(|(attributes #|[@%!$])({NAME}) = ")
Change = Callable[[Instruction], Sequence[str] | None]
"""What an instruction becomes: lines without their indentation; None keeps it."""


@dataclass(slots=True)
class Entry:
    """A line outside functions; None as its text removes it."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Variable:
    """A global variable."""

    name: str
    words: tuple[str, ...]  # before its type, such as `internal`, `addrspace(3)` and `global`
    type: str
    value: str  # '' if it is defined elsewhere
    align: int  # 0 if it is not given


@dataclass(frozen=True, slots=True)
class Node:
    """Metadata: a tuple of elements, or a kind such as DILocation with fields."""

    kind: str
    elements: tuple[str, ...]
    fields: dict[str, str]


class Block:
    """A basic block: the line of its label, '' for a first one without, and instructions."""

    def __init__(self, text: str) -> None:
        found = _LABEL.match(text)
        self.name = found[1] if found else ""  # as labels of other blocks spell it
        self.label = found[0] if found else ""
        body = text[len(self.label) :]
        self.instructions = [Instruction(each[0]) for each in _search(()).finditer(body)]
        self._after = "\n" if body.endswith("\n\n") else ""

    def __str__(self) -> str:
        return "".join((self.label, *(f"{each.text}\n" for each in self.instructions), self._after))

    @property
    def successors(self) -> list[str]:
        return [label.value[1:] for label in self.instructions[-1].labels]

    @property
    def phis(self) -> list[Instruction]:
        return list(takewhile(lambda each: each.opcode == "phi", self.instructions))


class Function:
    """A function that is defined: the line with its name, and the text of its body."""

    def __init__(self, header: str, body: str) -> None:
        self.header = header
        self.body = body

    @property
    def text(self) -> str:
        return f"{self.header}\n{self.body}}}"

    @cached_property
    def name(self) -> str:
        found = _DEFINED.match(self.header)
        return unquoted(found[1]) if found else ""

    @property
    def parameters(self) -> list[Operand]:
        line, first, last = self._parameters()
        found = (line.typed(*each)[0] for each in line.parts(first + 1, last))
        return [each for each in found if each is not None]

    @property
    def attributes(self) -> list[str]:
        """Words after the parameters, such as `#0` and `!dbg`."""
        line, _, last = self._parameters()
        return line.tokens[last + 1 :]

    def _parameters(self) -> tuple[Line, int, int]:
        line = Line(self.header)
        name = next(i for i, token in enumerate(line.tokens) if token.startswith("@"))
        return line, name + 1, line.partner(name + 1)

    def add_attributes(self, text: str) -> None:
        """Put attributes before the group of those that it has."""
        line, _, last = self._parameters()
        groups = (i for i in range(last, line.size) if line.tokens[i].startswith("#"))
        at = line.start(next(groups, line.size - 1))  # the last token is the bracket of the body
        self.header = f"{self.header[:at]}{text} {self.header[at:]}"

    @property
    def blocks(self) -> list[Block]:
        """What the body consists of; it is changed by giving it other blocks."""
        labels = list(_LABEL.finditer(self.body))
        starts = [0, *(found.start() for found in labels), len(self.body)]
        texts = [self.body[a:b] for a, b in pairwise(starts)]
        return [Block(text) for text in texts if text]

    @blocks.setter
    def blocks(self, blocks: Iterable[Block]) -> None:
        self.body = "".join(map(str, blocks))

    def instructions(self, *opcodes: str) -> Iterator[Instruction]:
        """All of them, or those with an opcode."""
        return (Instruction(found[0]) for found in _search(opcodes).finditer(self.body))

    def called(self) -> set[str]:
        """The names of the functions that it calls."""
        return {unquoted(name) for name in _CALLED.findall(self.body)}

    def rewrite(self, change: Change, *opcodes: str) -> None:
        """Change the instructions with an opcode."""

        def changed(found: re.Match[str]) -> str:
            lines = change(Instruction(found[0]))
            return found[0] if lines is None else "\n".join(f"  {line}" for line in lines)

        self.body = _search(opcodes).sub(changed, self.body)


@cache
def _search(opcodes: tuple[str, ...]) -> re.Pattern[str]:
    """Finds instructions: one search of a body is much faster than reading each of them."""
    names = "|".join(map(re.escape, opcodes)) if opcodes else r"#?\w+"
    return re.compile(
        rf"^  (?:  (?=#dbg))?(?:%{NAME} = )?(?:(?:tail|musttail|notail) )?(?:{names})(?!\w)[^\n]*"
        r"(?:\n(?:    (?!#dbg)|  \])[^\n]*)*",
        re.MULTILINE,
    )


class Module:
    """A module. Its dictionaries are by name, without @, %, ! or quotes."""

    def __init__(self, text: str) -> None:
        self._parts: list[Entry | Function] = []
        self.functions: dict[str, Function] = {}
        self.append(text)

    def __str__(self) -> str:
        return "\n".join(part.text for part in self._parts if part.text is not None)

    def append(self, text: str) -> None:
        """Add functions, declarations or other lines after the last."""
        self.__dict__.pop("_named", None)
        position = 0
        for found in _FUNCTION.finditer(text):
            if position < found.start():
                self._parts += map(Entry, text[position : found.start() - 1].split("\n"))
            made = Function(found[1], text[found.end(1) + 1 : found.end() - 1])
            self.functions[made.name] = made
            self._parts.append(made)
            position = found.end() + 1
        if position <= len(text):
            self._parts += map(Entry, text[position:].split("\n"))

    @cached_property
    def _named(self) -> dict[str, dict[str, Entry]]:
        named: dict[str, dict[str, Entry]] = {kind: {} for kind in _KINDS}
        for part in self._parts:
            if part.text and isinstance(part, Entry) and (found := _NAMED.match(part.text)):
                named[found[1] or found[3]][unquoted(found[2] or found[4])] = part
        return named

    def strip_places(self) -> None:
        """Remove the places in the source, and what says that there are some."""
        for function in self.functions.values():
            function.header = _PLACE.sub("", function.header)
            function.body = _PLACE.sub("", function.body)
        if units := self.metadata.get("llvm.dbg.cu"):
            units.text = None

    @property
    def declarations(self) -> dict[str, Entry]:
        return self._named["declare"]

    @property
    def attributes(self) -> dict[str, Entry]:
        """Groups of attributes, by number."""
        return self._named["attributes #"]

    @property
    def globals(self) -> dict[str, Entry]:
        """Variables, aliases and the like."""
        return self._named["@"]

    @property
    def types(self) -> dict[str, Entry]:
        return self._named["%"]

    @property
    def metadata(self) -> dict[str, Entry]:
        """Nodes by number or name; `node` reads one."""
        return self._named["!"]

    def variables(self, *words: str) -> list[Variable]:
        """The variables that have all of these words."""
        found = ((n, _VARIABLE.match(each.text)) for n, each in self.globals.items() if each.text)
        return [_variable(n, f) for n, f in found if f and set(words) <= set(f[1].split())]

    def variable(self, name: str) -> Variable | None:
        """The variable of a name; None for aliases and what is not defined."""
        entry = self.globals.get(name)
        found = _VARIABLE.match(entry.text) if entry and entry.text else None
        return _variable(name, found) if found else None

    def node(self, name: str) -> Node | None:
        """The node of a number or a name; None if there is none, and for inline ones."""
        entry = self.metadata.get(name)
        return _node(Line(entry.text)) if entry and entry.text else None


def _variable(name: str, found: re.Match[str]) -> Variable:
    line = Line(found[2])
    after = line.after_type(0)
    parts = line.parts(after, line.size)
    value = line.between(*parts[0]) if parts and parts[0][0] == after else ""
    aligns = [int(line.tokens[p + 1]) for p, _ in parts if line.tokens[p] == "align"]
    return Variable(name, tuple(found[1].split()), line.between(0, after), value, *aligns or [0])


def _node(line: Line) -> Node:
    position = 3 if line.tokens[2] == "distinct" else 2
    kind = line.tokens[position][1:]
    ranges = line.parts(position + 2, line.partner(position + 1))
    if not kind:
        return Node("", tuple(line.between(*each) for each in ranges), {})
    named = [each for each in ranges if line.tokens[each[0] + 1 : each[0] + 2] == [":"]]
    return Node(
        kind, (), {line.tokens[first]: line.between(first + 2, last) for first, last in named}
    )
