"""How PyObjC converts a Python argument to an Objective-C type, and what it refuses.

The rules are those of pyobjc-core 12.2 (libffi_support.m and objc_support.m). Each function returns
the reason for a refusal, or "" for an argument that is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

from softmetal.bridge.signatures import Argument

_SIGNED = {"c": 8, "z": 8, "s": 16, "i": 32, "l": 64, "q": 64}
_UNSIGNED = {"C": 8, "S": 16, "I": 32, "L": 64, "Q": 64}
_RANGES = {
    **{code: (-(1 << bits - 1), (1 << bits - 1) - 1) for code, bits in _SIGNED.items()},
    **{code: (0, (1 << bits) - 1) for code, bits in _UNSIGNED.items()},
}
_MEMBER = re.compile(r"\{[^{}=]*=((?:[^{}]|\{[^{}]*\})*)\}")
_VARARGS, _VARKEYWORDS = 4, 8  # CO_VARARGS and CO_VARKEYWORDS of code objects


Check = Callable[[Any, Sequence[Any]], str]
"""Takes an argument, and all of the call, of which one may hold the length of an array."""


def check(kind: Argument) -> Check:
    """The function that says why PyObjC would not take a value as an argument of this kind."""
    if kind.out:
        text = "pass None: the value comes back in the result"
        return lambda value, _: "" if value is None else text
    if (block := kind.block) is not None:
        return lambda value, _: "" if value is None else _block(value, block)
    if (count := kind.count) is not None:
        return _array(kind.code[1:], count)
    plain = _plain(kind)
    return lambda value, _: plain(value)


def _plain(kind: Argument) -> Callable[[Any], str]:
    code = kind.code
    if code in _RANGES:
        lowest, highest = _RANGES[code]
        return lambda value: (
            ""
            if type(value) is int and lowest <= value <= highest
            else _number(value, lowest, highest)
        )
    if code[0] == "@":
        return lambda value: _object(kind, value)
    if code[0] == "{":
        return _struct(code)
    if code in "fd":
        return _float
    if code in "ZB":
        return _truth
    return _address if code == "^v" else _pointer


def _address(value: Any) -> str:
    if value is None or not _number(value, *_RANGES["Q"]):
        return ""
    return "pass an address as an int, such as ctypes.addressof(value), or None"


def _pointer(value: Any) -> str:
    return "" if value is None else "pass None: PyObjC has no conversion for this pointer"


def _given(value: Any) -> str:
    return f"{value!r}"[:80] if isinstance(value, int | float | str) else type(value).__name__


def _number(value: Any, lowest: int, highest: int) -> str:
    if isinstance(value, str | bytes | bytearray):
        return f"{_given(value)} is not a number"
    try:
        number = value if type(value) is int else int(value)
    except (TypeError, ValueError):
        return f"{_given(value)} is not a number"
    if not lowest <= number <= highest:
        return f"{number} is outside {lowest} to {highest}, the range of its type"
    return ""


def _float(value: Any) -> str:
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError(value)
        float(value)
    except (TypeError, ValueError):
        return f"{_given(value)} is not a number"
    return ""


def _truth(value: Any) -> str:
    try:
        bool(value)
    except (TypeError, ValueError) as problem:
        return f"{_given(value)} is neither true nor false: {problem}"
    return ""


def _struct(code: str) -> Callable[[Any], str]:
    """Any sequence of as many members; nested structures are sequences too."""
    found = _MEMBER.fullmatch(code)
    members = [_plain(Argument(m)) for m in re.findall(r"\{[^{}]*\}|\w", found[1] if found else "")]
    name = code[1:].partition("=")[0]

    def judge(value: Any) -> str:
        try:
            if isinstance(value, str):
                raise TypeError(value)
            given = tuple(value)
        except TypeError:
            return f"{_given(value)} is not a sequence of the {len(members)} members of {name}"
        if len(given) != len(members):
            return f"{len(given)} values for the {len(members)} members of {name}"
        for member, each in zip(members, given, strict=True):
            if reason := member(each):
                return f"a member of {name}: {reason}"
        return ""

    return judge


def _object(kind: Argument, value: Any) -> str:
    if value is None:
        return "" if kind.nil else "nil (None) where an object is required"
    if not kind.names or type(value).__name__ in kind.names:
        return ""
    if any(base.__name__ in kind.names for base in type(value).__mro__):
        return ""
    if "list" in kind.names and isinstance(value, tuple):
        return ""
    return f"a {type(value).__name__} where Objective-C expects {' or '.join(kind.names)}"


def _length(value: Any) -> int:
    """A count, or the length of an NSRange."""
    try:
        return int(value) if not isinstance(value, Sequence) else int(value[1])
    except (TypeError, ValueError, IndexError):
        return 0  # another refusal says so


def _array(code: str, count: int) -> Check:
    if code == "v":
        return lambda value, arguments: _buffer(value, _length(arguments[count]))
    element = _plain(Argument(code))

    def judge(value: Any, arguments: Sequence[Any]) -> str:
        length = _length(arguments[count])
        try:
            if isinstance(value, str | bytes):
                raise TypeError(value)
            items = tuple(value)
        except TypeError:
            return f"{_given(value)} is not a sequence"
        if len(items) < length:
            return f"{len(items)} items where the count is {length}"
        reasons = (element(item) for item in items[:length])
        return next((f"an item: {reason}" for reason in reasons if reason), "")

    return judge


def _buffer(value: Any, length: int) -> str:
    if type(value) is bytes and len(value) >= length:
        return ""
    try:
        view = memoryview(value)
    except TypeError:
        return f"{_given(value)} has no bytes: pass bytes, an array or a ctypes object"
    with view:
        if not view.c_contiguous:
            return "the memory is not contiguous"
        if view.nbytes < length:
            return f"a buffer of {view.nbytes} bytes where the length is {length}"
    return ""


def _block(value: Any, wanted: int) -> str:
    """PyObjC counts the positional parameters of the function before it makes a block."""
    function = value
    if not isinstance(function, FunctionType | MethodType):
        function = getattr(value, "__call__", None)  # noqa: B004 (of the instance, as PyObjC)
    if not isinstance(function, FunctionType | MethodType):
        return f"PyObjC makes no block of a {type(value).__name__}: pass a Python function"
    plain: Callable[..., Any] = function.__func__ if isinstance(function, MethodType) else function
    code, defaults = plain.__code__, plain.__defaults__ or ()
    if code.co_kwonlyargcount != len(plain.__kwdefaults__ or ()):
        return "the block has keyword-only parameters without defaults"
    count = code.co_argcount - isinstance(function, MethodType)
    varied = bool(code.co_flags & _VARARGS)
    exact = count - len(defaults) <= wanted <= count
    if (exact and not varied and not code.co_flags & _VARKEYWORDS) or (varied and count <= 1):
        return ""
    return f"PyObjC's block has {wanted} arguments, and the function takes {count}"
