"""Signatures of selectors as PyObjC's bridge has them.

A type is Objective-C's encoding, after PyObjC's metadata:

    @  Q  Z  {MTLSize=QQQ}   an object, a number, a BOOL, a structure
    @MTLFunction  @NSURL?    an object of this class; `?` allows nil (in our own table only)
    n^v[1]                   a pointer to as many bytes (elements) as argument 1 says
    ^v[*]                    a result of unknown length: objc.varlist
    o^@                      a result: None is passed, and the value is returned in a tuple
    @?(@,@)                  a block that is called with these arguments
    .                        PyObjC takes the type from the Objective-C runtime
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from softmetal.bridge import pyobjc, runtime

_TYPE = re.compile(
    r"(?P<modifier>[onNr]?)(?P<code>@\?|@|\^?(?:\{.*\}|[a-zA-Z@.]))"
    r"(?P<name>[A-Z]\w*|str|list|dict)?(?P<nil>\?)?(?:\[(?P<count>\d+|\*)\])?(?:\((?P<block>.*)\))?"
)


@dataclass(frozen=True, slots=True)
class Argument:
    """The type of an argument or of a result."""

    code: str
    modifier: str = ""
    count: int | None = None  # index of the argument that holds the length of an array
    block: int | None = None  # number of arguments that a block is called with
    names: tuple[str, ...] = ()  # classes of an object, empty where any is accepted
    nil: bool = True

    @property
    def out(self) -> bool:
        return self.modifier == "o"


@dataclass(frozen=True, slots=True)
class Signature:
    result: Argument
    arguments: tuple[Argument, ...]

    @property
    def outs(self) -> int:
        return sum(argument.out for argument in self.arguments)


def argument(text: str) -> Argument:
    """One type, as the docstring of this module describes it."""
    found = _TYPE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a type of a signature")
    count, block, name = found["count"], found["block"], found["name"]
    return Argument(
        code=found["code"],
        modifier=found["modifier"].replace("r", ""),
        count=int(count) if count and count != "*" else None,
        block=None if block is None else len(block.split(",")) if block else 0,
        names=(name,) if name else (),
        nil=name is None or found["nil"] is not None,
    )


def signature(text: str) -> Signature:
    result, *arguments = map(argument, text.split())
    return Signature(result, tuple(arguments))


@cache
def _table() -> dict[tuple[str, str], Signature]:
    lines = f"{pyobjc.ROWS}\n{runtime.ROWS}".splitlines()
    rows = (line.split(" ", 2) for line in lines if line)
    merged: dict[tuple[str, str], str] = {}
    for owner, selector, text in rows:
        known = merged.get((owner, selector), "").split()
        given = text.split()
        # PyObjC's types come first; ours are for those that it takes from the runtime.
        pairs = zip(known or given, given, strict=True)
        merged[owner, selector] = " ".join(ours if old == "." else old for old, ours in pairs)
    return {key: signature(text) for key, text in merged.items()}


def registered(metadata: Mapping[str, Any], selector: str, known: Signature) -> Signature:
    """The signature after `objc.registerMetaDataForSelector`."""
    given = metadata.get("arguments", {})
    types = list(known.arguments)
    for place in range(selector.count(":")):
        if (meta := given.get(place + 2)) is not None and "type" in meta:
            modifier, code = meta.get("type_modifier", b"").decode(), meta["type"].decode()
            callable_ = meta.get("callable")
            count = meta.get("c_array_length_in_arg")
            types[place] = Argument(
                code=code,
                modifier=modifier,
                count=None if count is None else count - 2,
                block=None if callable_ is None else len(callable_["arguments"]) - 1,
                names=types[place].names if code == "@" else (),
                nil=types[place].nil,
            )
    return Signature(known.result, tuple(types))


def find(owners: tuple[str, ...], selector: str) -> Signature | None:
    """The signature for the first of these classes, the most derived one first."""
    for owner in (*owners, "NSObject"):
        if (found := _table().get((owner, selector))) is not None:
            return found
    return None
