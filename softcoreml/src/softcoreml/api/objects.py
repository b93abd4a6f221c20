"""The base of all classes here, their properties from tables, and out-arguments for errors."""

from __future__ import annotations

import copy as copying
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from softcoreml.api.foundation import NSError
from softcoreml.errors import InputError, SoftCoreMLError, UnreadableModel

_T = TypeVar("_T")
MLModelErrorDomain = "com.apple.CoreML"
MLModelErrorGeneric = 0
MLModelErrorFeatureType = 1
MLModelErrorIO = 3
MLModelErrorCustomLayer = 4
MLModelErrorCustomModel = 5
MLModelErrorUpdate = 6
MLModelErrorParameters = 7
MLModelErrorModelDecryptionKeyFetch = 8
MLModelErrorModelDecryption = 9
MLModelErrorModelCollection = 10
MLModelErrorPredictionCancelled = 11


class Object:
    """What PyObjC gives every object. Lifetime is Python's.

    `_properties` are read as `name()` and written as `setName_(value)`; `_readonly` have no setter.
    """

    _properties: ClassVar[Mapping[str, Any]] = {}
    _readonly: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        for name in (*cls._properties, *cls._readonly):
            if name not in vars(cls):
                setattr(cls, name, _getter(name))
        for name in cls._properties:
            setter = f"set{name[0].upper()}{name[1:]}_"
            if setter not in vars(cls):
                setattr(cls, setter, _setter(name))

    def __init__(self, **values: Any) -> None:
        known = {**self._readonly, **self._properties}
        self._values = {
            name: values[name] if name in values else copying.copy(default)
            for name, default in known.items()
        }

    @classmethod
    def alloc(cls) -> Self:
        return cls.__new__(cls)

    @classmethod
    def new(cls) -> Self:
        return cls.alloc().init()

    def init(self) -> Self:
        self.__init__()  # type: ignore[misc]
        return self

    def retain(self) -> Self:
        return self

    def release(self) -> None:
        return None

    def autorelease(self) -> Self:
        return self

    def isKindOfClass_(self, kind: type) -> bool:
        return isinstance(self, kind)

    def respondsToSelector_(self, selector: str | bytes) -> bool:
        """`selector` as Objective-C spells it, such as "setComputeUnits:"."""
        name = selector.decode() if isinstance(selector, bytes) else selector
        return callable(getattr(self, name.replace(":", "_"), None))

    def description(self) -> str:
        return repr(self)

    def copy(self) -> Self:
        """A copy whose properties can be set without changing this object."""
        other = copying.copy(self)
        other._values = {name: copying.copy(value) for name, value in self._values.items()}
        return other


def _getter(name: str) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self._values[name]

    get.__name__ = name
    return get


def _setter(name: str) -> Callable[[Any, Any], None]:
    def put(self: Any, value: Any) -> None:
        self._values[name] = value

    put.__name__ = f"set{name[0].upper()}{name[1:]}_"
    return put


def caught(error: Any, call: Callable[[], _T]) -> tuple[_T | None, NSError | None]:
    """What a method with an out-argument for its error gives: (result, None) or (None, error)."""
    if error is not None:
        raise ValueError("pass None for `error`: the error comes back in the result")
    try:
        return call(), None
    except SoftCoreMLError as problem:
        return None, as_error(problem)


def as_error(problem: Exception) -> NSError:
    """The NSError for an error of this package."""
    code = MLModelErrorGeneric
    if isinstance(problem, InputError):
        code = MLModelErrorFeatureType
    elif isinstance(problem, UnreadableModel):
        code = MLModelErrorIO
    return NSError.described(MLModelErrorDomain, code, str(problem))


@cache
def _queue() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="softcoreml")


def in_background(call: Callable[[], Any], handler: Callable[[Any, Any], Any]) -> None:
    """Run `call` on another thread; `handler` gets (result, None) or (None, error)."""
    if not callable(handler):
        raise TypeError(f"a completion handler is a function of two arguments, not {handler!r}")

    def work() -> None:
        result, error = caught(None, call)
        handler(result, error)

    _queue().submit(_reported, work)


def _reported(work: Callable[[], None]) -> None:
    """An exception of a handler is shown: no one waits for the result of the thread."""
    try:
        work()
    except BaseException as problem:
        given = (type(problem), problem, problem.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(given))
