"""Wraps the methods of softmetal's classes with the judgement of each call."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from types import FunctionType
from typing import Any, NoReturn

import softmetal
from softmetal import env
from softmetal.api import objc, structs
from softmetal.api.objects import Descriptor
from softmetal.bridge import runtime, signatures
from softmetal.bridge.classes import bridged_classes
from softmetal.bridge.conversions import Check, check
from softmetal.bridge.signatures import Argument, Signature
from softmetal.errors import BridgeError

_OWN = "softmetal."  # modules whose calls do not cross the bridge


@dataclass
class Judge:
    """What was called, and what was refused."""

    macos: int
    active: bool = False
    called: set[tuple[str, str]] = field(default_factory=set)  # (module of the caller, selector)
    refused: list[str] = field(default_factory=list)

    def refuse(self, text: str) -> NoReturn:
        self.refused.append(text)
        raise BridgeError(text)


_installed: list[Judge] = []


def install() -> Judge:
    """Judge all calls of this process from now on; every call returns the same object."""
    if not _installed:
        _installed.append(Judge(env.macos() or runtime.NEWEST))
        for owner in bridged_classes():
            _wrap_class(owner, _installed[0])
        for name, count in runtime.FUNCTIONS.items():
            made = _judged_function(name, getattr(structs, name), count, _installed[0])
            setattr(softmetal, name, made)
    _installed[0].active = True
    return _installed[0]


def check_name(name: str) -> None:
    """PyObjC's modules have classes, and softmetal's also the protocols of Metal's objects."""
    if name in objc.PROTOCOLS:
        raise AttributeError(
            f"PyObjC's Metal has no {name}, which is a protocol: use objc.protocolNamed({name!r})"
        )


@contextmanager
def judging() -> Iterator[Judge]:
    """Judge the calls within the block, on every thread."""
    before = any(judge.active for judge in _installed)
    judge = install()
    try:
        yield judge
    finally:
        judge.active = before


def _wrap_class(owner: type, judge: Judge) -> None:
    for name, member in list(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            judged = _judged(name, member, judge)
            first = runtime.since(_owners(owner), name.replace("_", ":"))
            newer = first > judge.macos
            setattr(owner, name, _Newer(name, judged, first, judge) if newer else judged)
        elif isinstance(member, classmethod):
            setattr(owner, name, classmethod(_judged(name, member.__func__, judge)))


def _judged_function(
    name: str, function: Callable[..., Any], count: int, judge: Judge
) -> Callable[..., Any]:
    number = check(Argument("Q"))

    def call(*arguments: Any, **named: Any) -> Any:
        if not judge.active:
            return function(*arguments, **named)
        if named or len(arguments) != count:
            given = len(arguments) + len(named)
            judge.refuse(
                f"{name}: {count} arguments without names are expected, {given} were given"
            )
        for place, value in enumerate(arguments):
            if reason := number(value, arguments):
                judge.refuse(f"{name}, argument {place}: {reason}")
        return function(*arguments)

    return call


class _Newer:
    """A method that a program does not find, because its version of macOS has no such selector."""

    def __init__(self, name: str, function: Any, first: int, judge: Judge) -> None:
        self._selector = name.replace("_", ":")
        self._function = function
        self._first = first
        self._judge = judge

    def __get__(self, instance: object, owner: type) -> Any:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if instance is None or not self._judge.active or caller.startswith(_OWN):
            return self._function.__get__(instance, owner)
        raise AttributeError(
            f"{owner.__name__} has {self._selector} since macOS {self._first}, and SOFTMETAL_MACOS "
            f"is {self._judge.macos}: look for it with getattr"
        )


def _owners(owner: type) -> tuple[str, ...]:
    return tuple(base.__name__ for base in owner.__mro__)


@dataclass(slots=True)
class _Call:
    """What is known of calls of one method of one class."""

    what: str
    registrations: int  # when this was made
    checks: tuple[Check, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()  # (place, number of arguments)
    parts: int = 0  # of the tuple that is returned, 0 without out-parameters


def _judged(name: str, method: Callable[..., Any], judge: Judge) -> Callable[..., Any]:
    selector = name.replace("_", ":")
    count = selector.count(":")
    known: dict[type, _Call] = {}

    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if not judge.active or caller.startswith(_OWN):
            return method(self, *arguments, **named)
        judge.called.add((caller, selector))
        owner = self if isinstance(self, type) else type(self)
        made = known.get(owner)
        if made is None or made.registrations != len(objc.registrations):
            made = known[owner] = _call(owner, name, method)
        if named:
            judge.refuse(f"{made.what}: PyObjC takes no named arguments")
        if len(arguments) != count:
            given = len(arguments)
            judge.refuse(f"{made.what}: {count} arguments are expected, {given} were given")
        for place, each in enumerate(made.checks):
            if reason := each(arguments[place], arguments):
                judge.refuse(f"{made.what}, argument {place}: {reason}")
        for place, number in made.blocks:
            if (function := arguments[place]) is not None:
                block = _block(function, number)
                arguments = (*arguments[:place], block, *arguments[place + 1 :])
        result = method(self, *arguments)
        if made.parts > 1 and not (isinstance(result, tuple) and len(result) == made.parts):
            text = f"{made.what} returned {result!r}"
            judge.refuse(f"{text}: PyObjC returns a tuple of {made.parts} values")
        return result

    return call


def _call(owner: type, name: str, method: Callable[..., Any]) -> _Call:
    what = f"{owner.__name__} {name.replace('_', ':')}"
    signature = _signature(owner, name, method)
    if signature is None:
        return _Call(what, len(objc.registrations))
    blocks = ((i, kind.block) for i, kind in enumerate(signature.arguments))
    return _Call(
        what,
        len(objc.registrations),
        tuple(map(check, signature.arguments)),
        tuple((place, block) for place, block in blocks if block is not None),
        signature.outs + (signature.result.code != "v") if signature.outs else 0,
    )


def _block(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The program's function, called with as many arguments as PyObjC passes."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments[:count])

    return call


def _signature(owner: type, name: str, method: Callable[..., Any]) -> Signature | None:
    """PyObjC's signature or ours, with the classes of objects from softmetal's annotations."""
    selector, owners = name.replace("_", ":"), _owners(owner)
    found = signatures.find(owners, selector) or _property(owner, selector)
    if found is None:
        return None
    for class_ in ("NSObject", *reversed(owners)):
        if (metadata := objc.registrations.get((class_, selector))) is not None:
            found = signatures.registered(metadata, selector, found)
    hints = _annotations(method)
    arguments = map(_with_class, found.arguments, (*hints, *[""] * len(found.arguments)))
    return Signature(found.result, tuple(arguments))


def _annotations(method: Callable[..., Any]) -> list[str]:
    inner: Any = method
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    names = inner.__code__.co_varnames[1 : inner.__code__.co_argcount]
    return [str(inner.__annotations__.get(name, "")) for name in names]


def _with_class(kind: Argument, hint: str) -> Argument:
    """An argument `@` with the classes that its annotation names."""
    if kind.code != "@" or kind.names or not hint:
        return kind
    words = [word.strip() for word in re.sub(r"\[.*?\]", "", hint).split("|")]
    if {"Any", "object", "Callable", "Sequence", "Mapping", "Allocation"} & set(words):
        return kind
    # softmetal also takes paths where Objective-C has a URL.
    classes = ["NSURL"] if "NSURL" in words else [word for word in words if word != "None"]
    return replace(kind, names=tuple(classes), nil="None" in words)


def _property(owner: type, selector: str) -> Signature | None:
    """The signature of a descriptor's getter or setter, by the default of the property."""
    properties: Mapping[str, Any] = owner.properties if issubclass(owner, Descriptor) else {}
    for name, rule in properties.items():
        code = {bool: "Z", int: "Q"}.get(type(rule.default), "@")
        if selector == name:
            return Signature(Argument(code), ())
        if selector == f"set{name[0].upper()}{name[1:]}:":
            return Signature(Argument("v"), (Argument(code),))
    return None
