"""A griffe extension for docstrings: examples, and the comments above softmetal's methods.

Examples with `>>>` become code blocks, since Markdown would take them for quotes. `# MTL:`, the
selector that a method stands for, and `# DEVIATION:` become sentences. Names of `__all__` that a
package imports when they are used are found too.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)
NOTE = re.compile(r"(MTL|DEVIATION): (.*)", re.DOTALL)
SENTENCES = {"MTL": "Metal's `{}`.", "DEVIATION": "**Differs from Apple's:** {}"}


class ReadableDocstrings(griffe.Extension):
    """Changes every docstring before it is shown."""

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Let `import *` take what `__all__` lists and only type checkers import."""
        for name in mod.exports or ():
            if isinstance(name, str) and name in mod.members:
                mod.members[name].runtime = True

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        text = EXAMPLE.sub(_fenced, obj.docstring.value) if obj.docstring else ""
        if obj.is_function:
            text = "\n\n".join([text, *_notes(obj)]).strip()
        if text:
            obj.docstring = griffe.Docstring(text, parent=obj)


def _fenced(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0].rstrip()}\n```\n"


def _notes(function: griffe.Object) -> list[str]:
    """What the comments right above a function say, as sentences."""
    lines = function.lines_collection[function.filepath]
    at = min([function.lineno or 1, *(each.lineno for each in function.decorators)]) - 1
    comments: list[str] = []
    while at > 0 and lines[at - 1].strip().startswith("# "):
        at -= 1
        comments.insert(0, lines[at].strip()[2:])
    notes = re.split(r"\n(?=MTL: |DEVIATION: )", "\n".join(comments))
    found = (NOTE.fullmatch(note) for note in notes)
    return [SENTENCES[each[1]].format(" ".join(each[2].split())) for each in found if each]
