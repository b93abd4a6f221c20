"""Words of a line of LLVM IR, and types and values made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

NAME = r'(?:"[^"]*"|[-\w.$]+)'  # after % or @, and of a label; quotes are escaped in them
_TOKEN = re.compile(rf'[%@$]{NAME}|!(?:"[^"]*"|[-\w.$]*)|c?"[^"]*"|#\w+|[-+\w.$]+|\S')
_TYPES = frozenset(
    "half bfloat float double fp128 x86_fp80 ppc_fp128 x86_amx ptr void label token metadata "
    "opaque target".split()
)
_OPENS, _CLOSES = frozenset("([{<"), frozenset(")]}>")
# Words that are values, alone or with what stands in parentheses after them.
_VALUES = frozenset(
    "null true false undef poison zeroinitializer none splat blockaddress dso_local_equivalent "
    "no_cfi asm ptrauth getelementptr ptrtoint ptrtoaddr inttoptr bitcast addrspacecast trunc add "
    "sub mul xor extractelement insertelement shufflevector".split()
)
_ALIGN = re.compile(r"\balign (\d+)")
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2}|\\)")


@dataclass(frozen=True, slots=True)
class Operand:
    """A value and where it is in the text of its line. Its type is '' where the one before it
    holds for both."""

    type: str
    value: str
    start: int
    end: int
    words: str = ""  # attributes between type and value

    @property
    def align(self) -> int:
        """The alignment among its attributes, 0 if there is none."""
        found = _ALIGN.search(self.words)
        return int(found[1]) if found else 0


class Line:
    """The tokens of a line; a position is the index of one."""

    def __init__(self, text: str, start: int = 0) -> None:
        self.text = text
        self._found = list(_TOKEN.finditer(text, start))
        self.tokens = [match[0] for match in self._found]
        self.size = len(self.tokens)

    def between(self, first: int, last: int) -> str:
        """The text of tokens from `first` up to `last`, which is not in it."""
        return self.text[self.start(first) : self.end(last - 1)] if first < last else ""

    def start(self, position: int) -> int:
        return self._found[position].start()

    def end(self, position: int) -> int:
        return self._found[position].end()

    @cached_property
    def _partners(self) -> dict[int, int]:
        """The closing bracket of each opening one."""
        opened: list[int] = []
        partners = {}
        for position, token in enumerate(self.tokens):
            if token in _OPENS:
                opened.append(position)
            elif token in _CLOSES and opened:
                partners[opened.pop()] = position
        return partners

    def partner(self, position: int) -> int:
        """Where the bracket closes that opens here; the end of the line if it does not."""
        return self._partners.get(position, self.size - 1)

    def parts(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges between commas outside brackets."""
        found, begin, position = [], first, first
        while position < last:
            token = self.tokens[position]
            if token in _OPENS:
                position = self.partner(position)
            elif token == ",":
                found.append((begin, position))
                begin = position + 1
            position += 1
        return [each for each in (*found, (begin, last)) if each[0] < each[1]]

    def starts_type(self, position: int, last: int) -> bool:
        """Whether a type is here and not a value: something follows it."""
        token = self.tokens[position]
        if token in _OPENS:
            return self.partner(position) + 1 < last
        return _is_type(token) or (token[0] == "%" and position + 1 < last)

    def after_type(self, position: int) -> int:
        position = self._after_unit(position)
        while position < self.size and self.tokens[position] in ("addrspace", "*"):
            position = self._after_unit(position)
        return position

    def after_words(self, position: int, last: int) -> int:
        """After flags and attributes, such as `nsw`, `align 4`, `range(i32 0, 9)`, `"key"="v"`."""
        while position < last:
            token = self.tokens[position]
            if token[0] == '"' or token == "=":
                position += 1
            elif not token[0].isalpha() or token in _VALUES or _is_type(token):
                break
            elif token == "align" and self.tokens[position + 1] != "(":
                position += 2
            else:
                position = self._after_unit(position)
        return position

    def after_value(self, position: int) -> int:
        token = self.tokens[position]
        if token not in _VALUES:
            return self._after_unit(position)
        position += 1
        while position < self.size and self.tokens[position].isalpha():  # flags, or sideeffect
            position += 1
        if token == "asm":
            return position + 3  # text, comma, constraints
        if position < self.size and self.tokens[position] == "(":
            return self.partner(position) + 1
        return position + (token in ("dso_local_equivalent", "no_cfi"))

    def _after_unit(self, position: int) -> int:
        """After a bracket, or a word with what is in parentheses after it."""
        token = self.tokens[position]
        if token in _OPENS:
            return self.partner(position) + 1
        position += 1
        follows = self.tokens[position] if position < self.size else ""
        if (follows == "(" and (token[0].isalpha() or token[0] == "!")) or (
            follows == "{" and token[0] == "!"
        ):
            return self.partner(position) + 1
        return position

    def typed(self, position: int, last: int) -> tuple[Operand | None, int]:
        """The value in a range, with its type if it has one, and the position after it; None for a
        type alone."""
        kind = ""
        if self.starts_type(position, last):
            after = self.after_type(position)
            kind, position = self.between(position, after), after
        first, position = position, self.after_words(position, last)
        if position >= last:
            return None, position
        after = min(self.after_value(position), last)
        start, end = self.start(position), self.end(after - 1)
        words = self.between(first, position)
        return Operand(kind, self.text[start:end], start, end, words), after


def _is_type(token: str) -> bool:
    return token in _TYPES or (token[0] == "i" and token[1:].isdigit())


def unquoted(text: str) -> str:
    """A name or a string without its quotes and escapes."""
    if not text.endswith('"'):
        return text
    inner = text[text.index('"') + 1 : -1]
    if "\\" not in inner:
        return inner
    return _ESCAPED.sub(_byte, inner.encode()).decode(errors="replace")


def _byte(match: re.Match[bytes]) -> bytes:
    return b"\\" if match[1] == b"\\" else bytes([int(match[1], 16)])
