"""Overloads that differ in address spaces only and have different bodies.

Code generation erases address spaces, which makes such overloads one function. Clang says which of
them each call means, in the source with real address spaces; then all but one get other names.
"""

from __future__ import annotations

import re
from collections import defaultdict

from softmetal.compiler.frontend import Pass
from softmetal.compiler.strict.check import FLAGS, QUIET, run_clang
from softmetal.compiler.strict.spelling import after_template, respell
from softmetal.compiler.tokens import Refusal, apply_edits, line_markers
from softmetal.errors import CompileError

SUFFIX = "_softmetal_overload"
_MARK = "softmetal overload "
_USE = re.compile(rf"^([^\n]+):(\d+):(\d+): warning: {_MARK}(\d+) ", re.MULTILINE)


def renamed(parsed: Pass) -> str:
    """The preprocessed source, in which overloads with different bodies have different names."""
    numbers = {  # by the token of a definition's name
        declaration.parameters - 1: number
        for bodies in parsed.overloads
        for number, declarations in enumerate(bodies)
        for declaration in declarations
    }
    marks = {
        after_template(parsed.syntax, declaration.start): (
            f'__attribute__((diagnose_if(1, "{_MARK}{number}", "warning"))) '
        )
        for bodies in parsed.overloads
        for number, declarations in enumerate(bodies)
        for declaration in declarations
    }
    text = respell(parsed, swapped=False, before=marks)
    for token, number in _uses(parsed, text):
        if numbers.setdefault(token, number) != number:
            name = parsed.tokens[token]
            raise Refusal(
                name,
                f"the overloads of '{name.text}' for this call differ between instances of a "
                "template, which softmetal does not support: give them different names",
            )
    edits = [
        (parsed.tokens[i].start, parsed.tokens[i].end, f"{parsed.tokens[i].text}{SUFFIX}{number}")
        for i, number in numbers.items()
        if number
    ]
    return apply_edits(parsed.source, edits)


def _uses(parsed: Pass, text: str) -> list[tuple[int, int]]:
    """(token of a call's name, number of the overload that it means)."""
    flags = [flag for flag in FLAGS if flag != "-w"]
    wanted = ["-Wno-everything", "-Wuser-defined-warnings", "-fsyntax-only"]
    try:
        said = run_clang([*flags, *QUIET, *wanted], text, swapped=False)
    except CompileError as error:  # other errors are reported by the check
        said = error.diagnostics
    tokens = _tokens_by_place(parsed, text)
    return [
        (token, int(number))
        for file, line, column, number in _USE.findall(said)
        for token in tokens[file, int(line), int(column)]
    ]


def _tokens_by_place(parsed: Pass, text: str) -> dict[tuple[str, int, int], list[int]]:
    """Words of the source by the file, line and column that clang says of the respelled `text`.

    Both have the same words of the source in the same order on each line.
    """
    found: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    ours, theirs = _lines(parsed.source), _lines(text)
    at = 0
    starts = [token.start for token in parsed.tokens]
    for (place, begin, line), (_, _, other) in zip(ours, theirs[1:], strict=False):
        while at < len(starts) and starts[at] < begin:
            at += 1
        seen: dict[str, int] = defaultdict(int)
        end = begin + len(line)
        index = at
        while index < len(starts) and starts[index] < end:
            token = parsed.tokens[index]
            if token.kind == "word":
                columns = [m.start() + 1 for m in re.finditer(rf"\b{token.text}\b", other)]
                if seen[token.text] < len(columns):
                    found[(*place, columns[seen[token.text]])].append(index)
                seen[token.text] += 1
            index += 1
    return found


def _lines(text: str) -> list[tuple[tuple[str, int], int, str]]:
    """((file, line number), offset, line) of each line of a preprocessed text."""
    lines, file, number, offset = [], "<stdin>", 1, 0
    markers = {marker.start: marker for marker in line_markers(text)}
    for line in text.split("\n"):
        if (marker := markers.get(offset)) is not None:
            file, number = marker.file, marker.line
            lines.append(((file, 0), offset, ""))
        else:
            lines.append(((file, number), offset, line))
            number += 1
        offset += len(line) + 1
    return lines
