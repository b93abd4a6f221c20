"""Errors as text and as JSON."""

from __future__ import annotations

import json
import re
import sys

from lbrx.errors import printable

# Errors are "problem: remedy". Not all have a remedy; one begins with what is to be done.
_REMEDY = re.compile(
    r"(?P<problem>.+): (?P<remedy>(?:add|call|cast|change|check|choose|compare|convert|correct|"
    r"create|cut|declare|decode|delete|did you mean|download|draw|encode|expand|free|generate|"
    r"give|install|leave|make|merge|move|name|open|pass|pip|put|quantize|read|refer|remove|"
    r"reshape|resize|return|save|set|shorten|slice|split|start|stay|take|transpose|try|unset|"
    r"use|wait|write)\b.*)",
    re.DOTALL,
)


def as_json(problem: str) -> str:
    """An object with the message of an error and its remedy, null if it names none."""
    found = _REMEDY.fullmatch(problem)
    message, remedy = (found["problem"], found["remedy"]) if found else (problem, None)
    return json.dumps({"error": {"message": message, "remedy": remedy}}, indent=2)


def report(problem: str) -> None:
    """Print a note or an error on standard error."""
    print(f"lbrx: {printable(problem)}", file=sys.stderr, flush=True)
