"""Signatures as the native library reads them.

A signature is the kind of the result and of each argument, separated by spaces:

    v  @  Q  q  I  i  Z  C  d  f    nothing, an object, numbers as Objective-C encodes them
    {3}                             a structure of three 8-byte members
    ^                               an address
    ?@Q                             a block that is called with an object and a number
    o@  oQ                          a pointer to a result
    *1v  *2@  *2Q                   a pointer to as many bytes, objects, numbers as an argument says
    &1v                             bytes that Python keeps
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from softmetal.native import signatures

_SIMPLE = {
    "void": "v",
    "BOOL": "Z",
    "NSUInteger": "Q",
    "NSInteger": "q",
    "uint64_t": "Q",
    "uint32_t": "I",
    "uint8_t": "C",
    "CFTimeInterval": "d",
    "float": "f",
    "MTLGPUAddress": "Q",
    "MTLTimestamp": "Q",
    "void*": "^",
    "bytes*": "^",
    **signatures.ENUMERATIONS,
}
STRUCTURES = {
    "MTLSize": 3,
    "MTLOrigin": 3,
    "MTLSizeAndAlign": 2,
    "MTLResourceID": 1,
    "NSRange": 2,
}
# Methods that Apple's headers do not have, or have in NSObject.
_OWN = {
    "alloc": ("id",),
    "new": ("id",),
    "init": ("id",),
    "copy": ("id",),
    "copyWithZone:": ("id", "void*"),
    "description": ("NSString",),
    "isEqual:": ("BOOL", "id"),
    "libraryDataContents": ("NSData",),
}

Types = tuple[str, ...]


@cache
def table() -> dict[tuple[str, str], Types]:
    """The types of each class and selector."""
    rows = (line.split() for line in signatures.ROWS.splitlines())
    return {(owner, selector.removeprefix("+")): tuple(types) for owner, selector, *types in rows}


@cache
def _by_selector() -> dict[str, Types]:
    return {selector: types for (_, selector), types in table().items()}


def find(owners: Iterable[str], selector: str) -> Types | None:
    """The types for the first of these classes, the most derived one first; a class of softmetal's
    may have a method that Apple's has further up or down."""
    for owner in owners:
        if (found := table().get((owner, selector))) is not None:
            return found
    return _OWN.get(selector) or _by_selector().get(selector)


def encoded(types: Types, selector: str) -> str:
    return " ".join(kind(each, keeps="NoCopy" in selector) for each in types)


def kind(type_: str, keeps: bool = False) -> str:
    """One type; `keeps`: the method keeps the memory that it is given."""
    if type_ in _SIMPLE:
        return _SIMPLE[type_]
    if type_ in STRUCTURES:
        return f"{{{STRUCTURES[type_]}}}"
    if type_.startswith("^("):
        return f"?{''.join(map(kind, type_[2:-1].split(',')))}"
    if type_ in signatures.BLOCKS:
        return f"?{''.join(map(kind, signatures.BLOCKS[type_].split()))}"
    pointer = re.fullmatch(r"(\w+)\*\[([\d?o])\]", type_)
    if pointer is None:
        return "@"
    of = "v" if pointer[1] == "bytes" else kind(pointer[1])
    if pointer[2] == "?":
        return "^"
    if pointer[2] == "o":
        return f"o{of}"
    return f"{'&' if keeps else '*'}{pointer[2]}{of}"
