"""Maps clang's messages to the user's lines, columns and names."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from softmetal.compiler.host_access import UndefinedSymbol
from softmetal.compiler.tokens import Refusal, Token, line_markers, tokenize
from softmetal.compiler.unsupported import construct_of
from softmetal.types import MAX_SOURCE

_MESSAGE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): (?P<text>.*)$")
_QUOTED = re.compile(r"'(?:[\w ]*?\b)?(\w+)(?:<[^']*)?'")
_ENTRIES = ("softmetal_entries", "softmetal_entry")  # as in stages.py
_WORDING = {
    "error: #embed is a Clang extension [-Werror,-Wc23-extensions]": (
        "error: #embed is not supported in Metal"
    ),
    "error: variable length arrays in C++ are a Clang extension [-Werror,-Wvla-cxx-extension]": (
        "error: arrays of variable length are not supported in Metal: give a constant length"
    ),
    "error: declaration requires a global constructor [-Werror,-Wglobal-constructors]": (
        "error: a variable needs a constant initializer: Metal computes none when a library is "
        "loaded"
    ),
    "error: declaration requires a global destructor [-Werror,-Wglobal-constructors]": (
        "error: a variable at program scope cannot have a destructor"
    ),
}
_COUNT = re.compile(r"^\d+ (warnings?|errors?)( and \d+ errors?)? generated\.\n?", re.MULTILINE)
_RENAMED = re.compile(r"_softmetal_overload\d+\b")  # by strict/overloads.py
_LITERAL_ZERO = re.compile(r"[/%]=?\s*\(*\s*0(x0+|\.0*)?[uUlLfFhH]*\b")
_LONG_LINE = 4_000_000
_LONGEST_SHOWN = 1_000  # characters of a line that is printed below its error
_OUR_NOTES = re.compile(r"note: .*(declared here|expanded from macro .*|passing argument .* here)$")
_OUR_ATTRIBUTE = "required by 'require_constant_initialization' attribute"
_OUR_INCLUDE = re.compile(r"^In file included from (<stdin>|.*/softmetal/include/.*):\d+:$")
_REQUIREMENT = re.compile(r"static assertion failed due to requirement '.*?': ")
_NOT_FOUND = "a source can include Metal's headers, and files in the folders given"


class SourceMap:
    """Finds the user's line and column for a place in the rewritten text."""

    def __init__(self, text: str, name: str, source: str, folders: tuple[str, ...] = ()) -> None:
        self.name = name
        self.last_line = max(1, len(source.splitlines()))
        self._folders = [os.path.realpath(folder) for folder in folders]
        self._aligned: dict[tuple[str, int], tuple[list[Token], list[int]]] = {}
        self._sources = {name: source.splitlines()}
        self._rewritten: dict[tuple[str, int], str] = {}
        self._starts: list[tuple[int, str, int]] = []  # offset, file, line
        file, line, offset = name, 1, 0
        for marker in line_markers(text):
            self._add_lines(text[offset : marker.start], offset, file, line)
            file, line, offset = marker.file, marker.line, marker.end
        self._add_lines(text[offset:], offset, file, line)

    def _add_lines(self, text: str, offset: int, file: str, line: int) -> None:
        for row in text.split("\n"):
            place = (file, line)
            self._rewritten[place] = self._rewritten.get(place, "") + row
            self._starts.append((offset, file, line))
            offset += len(row) + 1
            line += 1

    def original(self, file: str, line: int) -> str:
        """The user's line, empty if the file is not a source or header of this library."""
        if file not in self._sources:
            self._sources[file] = self._read(file)
        lines = self._sources[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def _read(self, file: str) -> list[str]:
        """The lines of a header in the user's folders: a `#line` can name any file."""
        try:
            path = Path(os.path.realpath(file))
            known = any(path.is_relative_to(folder) for folder in self._folders)
            if known and path.is_file() and path.stat().st_size <= MAX_SOURCE:
                return path.read_text(errors="replace").splitlines()
        except (OSError, ValueError):  # ValueError: a NUL in the name
            pass
        return []

    def rewritten(self, file: str, line: int) -> str:
        """The line as clang was given it, in which macros are expanded."""
        return self._rewritten.get((file, line), "")

    def column(self, file: str, line: int, column: int) -> int:
        """The column in the user's line for `column` of the rewritten one, token by token."""
        tokens, columns = self._alignment(file, line)
        before = sum(token.start < column for token in tokens)
        if not before or not columns:
            return column
        here = tokens[before - 1]
        # Clang points behind a token where something is missing after it.
        behind = column > here.end
        return columns[before - 1] + (len(here.text) if behind else 0)

    def _alignment(self, file: str, line: int) -> tuple[list[Token], list[int]]:
        """A rewritten line's tokens, and the column of each in the user's line."""
        if (file, line) not in self._aligned:
            tokens = tokenize(self.rewritten(file, line))
            theirs = tokenize(self.original(file, line))
            self._aligned[file, line] = tokens, _align(tokens, theirs) if theirs else []
        return self._aligned[file, line]

    def word(self, file: str, line: int, column: int) -> str:
        """The user's word at a place."""
        found = re.match(r"\w*", self.original(file, line)[column - 1 :])
        return found[0] if found else ""

    def place(self, offset: int) -> tuple[str, int, int]:
        """(file, line, column) of an offset in the text this map was made from."""
        found = bisect_right(self._starts, offset, key=lambda start: start[0])
        start, file, line = self._starts[max(found - 1, 0)]
        return file, line, self.column(file, line, offset - start + 1)

    def render(self, file: str, line: int, column: int, message: str) -> str:
        """A message with its line and a caret, as clang prints it."""
        head = f"{file}:{line}:{column}: {message}"
        text = self.original(file, line).expandtabs(1)
        shown = 0 < len(text) <= _LONGEST_SHOWN
        return f"{head}\n{text}\n{' ' * (column - 1)}^" if shown else head


def _align(ours: list[Token], theirs: list[Token]) -> list[int]:
    """For each token of a rewritten line the column it came from; a macro's is the macro's."""
    columns = [theirs[0].start + 1] * len(ours)
    if len(ours) * len(theirs) > _LONG_LINE:  # a table in one line: too slow
        return columns
    a, b = [t.text for t in ours], [t.text for t in theirs]
    for kind, first, last, start, end in SequenceMatcher(None, a, b, False).get_opcodes():
        paired = kind == "equal" or last - first == end - start
        for index in range(first, last):
            at = start + index - first if paired else start
            columns[index] = theirs[min(at, len(theirs) - 1)].start + 1
    return columns


def explain(stderr: str, source_map: SourceMap) -> str:
    """Clang's stderr, remapped, with unsupported constructs named as such."""
    lines: list[str] = []
    for line in _at_the_users_places(_RENAMED.sub("", _COUNT.sub("", stderr)).splitlines()):
        found = _MESSAGE.match(line)
        if found is None:
            lines.append(line)
            continue
        file, row = found["file"], int(found["line"])
        if _is_our_note(file, found["text"]):
            continue
        if file in _ENTRIES:  # the error is at the end of the user's text
            lines.append(source_map.render(source_map.name, source_map.last_line, 1, found["text"]))
            continue
        column = source_map.column(file, row, int(found["column"]))
        words = [source_map.word(file, row, column), *_QUOTED.findall(found["text"])]
        lines.append(source_map.render(file, row, column, _message(found["text"], words)))
    return "".join(f"{line}\n" for line in lines)


def _at_the_users_places(lines: list[str]) -> Iterator[str]:
    """An error in softmetal's headers moves to where the source asks for it; one that the source
    has no part in is printed only if it is the only one."""
    inside, errors = "", 0
    for line in lines:
        if _OUR_INCLUDE.match(line):
            continue
        found = _MESSAGE.match(line)
        if found and "/softmetal/include/" in found["file"] and "error: " in found["text"]:
            inside = line
        elif inside and found and found["text"].startswith("note: in instantiation of"):
            text = _REQUIREMENT.sub("", _MESSAGE.sub(r"\g<text>", inside))
            yield f"{found['file']}:{found['line']}:{found['column']}: {text}"
            inside, errors = "", errors + 1
        else:
            errors += bool(found and "error: " in found["text"])
            yield line
    if inside and not errors:
        yield inside


def of_the_source(stderr: str, source_map: SourceMap) -> str:
    """Clang's warnings without those that only follow from function constants, which have no
    value when a library is checked: clang takes them for 0."""
    groups = re.split(r"^(?=[^\n]*: warning: )", stderr, flags=re.MULTILINE)  # with their notes
    return "".join(group for group in groups if not _of_a_constant(group, source_map))


def _of_a_constant(group: str, source_map: SourceMap) -> bool:
    found = _MESSAGE.match(group.partition("\n")[0])
    if found is None:
        return False
    if "-Wdivision-by-zero" in found["text"]:
        line = source_map.rewritten(found["file"], int(found["line"]))
        return _LITERAL_ZERO.match(line, int(found["column"]) - 1) is None
    return "no case matching constant switch condition" in found["text"]


def _is_our_note(file: str, text: str) -> bool:
    """Whether a note is about softmetal's headers only."""
    if _OUR_ATTRIBUTE in text:
        return True
    return (file in _ENTRIES and text.startswith("note:")) or (
        "/softmetal/include/" in file and _OUR_NOTES.match(text) is not None
    )


def refusal(error: Refusal, source_map: SourceMap) -> str:
    """A Refusal in the format of clang's errors."""
    return source_map.render(*source_map.place(error.token.start), f"error: {error.message}") + "\n"


def left_out(why: Refusal, source_map: SourceMap) -> str:
    """A warning about a declaration that the library does without."""
    return warning(Refusal(why.token, f"{why.message}; this declaration is left out"), source_map)


def warning(why: Refusal, source_map: SourceMap) -> str:
    return source_map.render(*source_map.place(why.token.start), f"warning: {why.message}") + "\n"


def undefined(error: UndefinedSymbol, text: str, source_map: SourceMap) -> str:
    """An undefined symbol at the first place where the source names it."""
    found = re.search(rf"\b{re.escape(error.name)}\b", text)
    if found is None:
        return error.diagnostics
    return source_map.render(*source_map.place(found.start()), f"error: {error.message}") + "\n"


def _message(text: str, words: list[str]) -> str:
    if "file not found" in text:
        words = re.findall(r"\w+", text)
        text = f"{text}: {_NOT_FOUND}"
    for word in words:
        construct = construct_of(word)
        if construct and text.startswith(("error:", "fatal error:")):
            return f"error: {construct} not supported by softmetal: '{word}'"
    return _WORDING.get(text, text)
