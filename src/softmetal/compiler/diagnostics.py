"""Clang's messages in the user's coordinates and words."""

from __future__ import annotations

import re
from pathlib import Path

from softmetal.compiler.tokens import tokenize
from softmetal.compiler.unsupported import Refusal, construct_of

_MESSAGE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): (?P<text>.*)$")
_QUOTED = re.compile(r"'(?:[\w ]*?\b)?(\w+)(?:<[^']*)?'")
_MARKER = re.compile(r'^# (\d+) "([^"]*)"')


class SourceMap:
    """Finds the user's line and column for a place in the rewritten text."""

    def __init__(self, text: str, name: str, source: str) -> None:
        self._sources = {name: source.splitlines()}
        self._rewritten: dict[tuple[str, int], str] = {}
        self._starts: list[tuple[int, str, int]] = []  # offset, file, line
        file, line, offset = name, 1, 0
        for row in text.split("\n"):
            if marker := _MARKER.match(row):
                file, line = marker[2], int(marker[1])
            else:
                place = (file, line)
                self._rewritten[place] = self._rewritten.get(place, "") + row
                self._starts.append((offset, file, line))
                line += 1
            offset += len(row) + 1

    def original(self, file: str, line: int) -> str:
        """The user's line, empty where it cannot be had."""
        if file not in self._sources:
            try:
                self._sources[file] = Path(file).read_text().splitlines()
            except OSError:
                self._sources[file] = []
        lines = self._sources[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def column(self, file: str, line: int, column: int) -> int:
        """The column in the user's line for `column` of the rewritten one, token by token."""
        text, original = self._rewritten.get((file, line), ""), self.original(file, line)
        tokens = [token for token in tokenize(text) if token.start < column]
        if not tokens or not original:
            return column
        here = tokens[-1]
        ordinal = sum(token.text == here.text for token in tokens) - 1
        same = [token for token in tokenize(original) if token.text == here.text]
        if not same:  # it came out of a macro
            return len(original) - len(original.lstrip()) + 1
        found = same[min(ordinal, len(same) - 1)]
        # Clang points behind a token where something is missing after it.
        return found.end + 1 if column > here.end else found.start + 1

    def word(self, file: str, line: int, column: int) -> str:
        """The user's word at a place."""
        found = re.match(r"\w*", self.original(file, line)[column - 1 :])
        return found[0] if found else ""

    def place(self, offset: int) -> tuple[str, int, int]:
        """(file, line, column) of an offset in the text this map was made from."""
        start, file, line = max(s for s in self._starts if s[0] <= offset)
        return file, line, self.column(file, line, offset - start + 1)

    def render(self, file: str, line: int, column: int, message: str) -> str:
        """A message with its line and a caret, as clang prints it."""
        head = f"{file}:{line}:{column}: {message}"
        text = self.original(file, line).expandtabs(1)
        return f"{head}\n{text}\n{' ' * (column - 1)}^" if text else head


def explain(stderr: str, source_map: SourceMap) -> str:
    """Clang's stderr, remapped, with unsupported constructs named as such."""
    lines = []
    for line in stderr.splitlines():
        found = _MESSAGE.match(line)
        if found is None:
            lines.append(line)
            continue
        file, row = found["file"], int(found["line"])
        if file in ("softmetal_entries", "softmetal_entry") and "note:" in line:
            continue
        column = source_map.column(file, row, int(found["column"]))
        words = [source_map.word(file, row, column), *_QUOTED.findall(found["text"])]
        lines.append(source_map.render(file, row, column, _message(found["text"], words)))
    return "\n".join(lines) + "\n"


def address_space_warnings(stderr: str, source_map: SourceMap) -> str:
    """The errors of the address-space check that are about address spaces, as warnings."""
    groups = re.split(
        r"^(?=[^\n]*: (?:fatal )?error:)", stderr, flags=re.MULTILINE
    )  # with their notes
    lines = [
        group.splitlines()[0].replace("error:", "warning: address spaces:", 1)
        for group in groups
        if "error:" in group and ("__global" in group or "__local" in group)
    ]
    text = explain("\n".join(lines), source_map) if lines else ""
    return text.replace("__global", "device").replace("__local", "threadgroup")


def refusal(error: Refusal, source_map: SourceMap) -> str:
    """A refusal of ours in the form of clang's errors."""
    return source_map.render(*source_map.place(error.token.start), f"error: {error.message}") + "\n"


def _message(text: str, words: list[str]) -> str:
    for word in words:
        construct = construct_of(word)
        if construct and text.startswith(("error:", "fatal error:")):
            return f"error: {construct} not supported by softmetal: '{word}'"
    return text
