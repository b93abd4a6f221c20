"""The base classes of all objects: methods of NSObject, and descriptors built from tables."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self

from softmetal.api.missing import reason
from softmetal.api.structs import Struct, integer
from softmetal.errors import ValidationError


class Object:
    """What PyObjC gives every Metal object. Lifetime is Python's: retain and release do nothing."""

    __slots__ = ()

    # Methods of Apple's class that are missing here.
    _absent: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for name in vars(cls).get("_absent", ()):
            setattr(cls, name, _Absent(name))
        for name, method in list(vars(cls).items()):
            if name.endswith("_") and not name.startswith("_") and isinstance(method, FunctionType):
                places = _number_arguments(method)
                if places and name not in cls._converts:
                    setattr(cls, name, _converting(method, places))

    # Methods that convert their numbers themselves, because programs call them very often.
    _converts: ClassVar[frozenset[str]] = frozenset()

    def retain(self) -> Self:
        return self

    def autorelease(self) -> Self:
        return self

    # DEVIATION: `release` does not free. Python's references keep an object alive, so a program
    # that releases too often (PyObjC itself releases too) never uses freed memory.
    def release(self) -> None:
        return None

    def isEqual_(self, other: object) -> bool:
        return self == other

    def description(self) -> str:
        return repr(self)

    def isKindOfClass_(self, kind: type) -> bool:
        return isinstance(self, kind)

    def respondsToSelector_(self, selector: str | bytes) -> bool:
        """`selector` as Objective-C spells it, such as "setLabel:"."""
        name = selector.decode() if isinstance(selector, bytes) else selector
        return callable(getattr(self, name.replace(":", "_"), None))

    def conformsToProtocol_(self, protocol: Any) -> bool:
        """A class here has the name of the protocol that Apple's object conforms to."""
        names = {base.__name__ for base in type(self).__mro__}
        return protocol.__name__ == "NSObject" or protocol.__name__ in names


def _missing(kind: type, name: str, item: object) -> AttributeError:
    why = f": {reason(name)}" if not name.startswith("_") else ""
    message = f"softmetal's {kind.__name__} has no {name!r}{why}"
    return AttributeError(message, name=name, obj=item)


class _Absent:
    """A method that is missing: reading it raises AttributeError with the reason."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, item: object, kind: type) -> Never:
        raise _missing(kind, self._name, item)


class Explaining(Object):
    """Gives the reason for every name that is missing. Python finds all attributes of such objects
    more slowly, so those that programs use most list what is `_absent` instead."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:  # called only for a name that does not exist
            raise _missing(type(self), name, self)


def _number_arguments(method: FunctionType) -> tuple[tuple[int, type], ...]:
    """(position without `self`, type) of the parameters that are integers or sequences of them."""
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    types = {"int": int, "Sequence[int]": Struct}
    declared = method.__annotations__
    return tuple(
        (place, types[declared[name]])
        for place, name in enumerate(names)
        if declared.get(name) in types
    )


def _converting(method: FunctionType, places: tuple[tuple[int, type], ...]) -> Callable[..., Any]:
    """The method with numbers of other types, such as numpy's, converted as PyObjC does."""

    @wraps(method)
    def convert(self: object, *arguments: Any) -> Any:
        for place, wanted in places:
            if not isinstance(arguments[place], wanted):
                return method(self, *_converted(arguments, places))
        return method(self, *arguments)

    return convert


def _converted(arguments: tuple[Any, ...], places: tuple[tuple[int, type], ...]) -> list[Any]:
    converted = list(arguments)
    for place, wanted in places:
        value = converted[place]
        if not isinstance(value, wanted):
            with suppress(TypeError):  # not a number: the method's own checks refuse it
                converted[place] = integer(value) if wanted is int else [*map(integer, value)]
    return converted


class Allocated(Object):
    """An object that programs make themselves, with `alloc().init()` or `new()`."""

    __slots__ = ()

    @classmethod
    def alloc(cls) -> Self:
        return cls()

    @classmethod
    def new(cls) -> Self:
        return cls()

    def init(self) -> Self:
        return self


class Labelled(Object):
    """An object with a `label` property."""

    __slots__ = ("_label",)

    def __init__(self) -> None:
        self._label: str | None = None

    # MTL: -label
    def label(self) -> str | None:
        return self._label

    # MTL: -setLabel:
    def setLabel_(self, label: str | None) -> None:
        self._label = label

    def __repr__(self) -> str:
        label = f" label={self._label!r}" if self._label else ""
        return f"<{type(self).__name__}{label} at {id(self):#x}>"


class Property:
    """The default of a descriptor's property, and the check that a new value passes."""

    __slots__ = ("check", "default")

    def __init__(self, default: Any, check: Callable[[Any], Any] = lambda value: value) -> None:
        self.default = default
        self.check = check


def flag(default: bool = False) -> Property:
    return Property(default, bool)


def number(default: int = 0) -> Property:
    return Property(default, _integer)


def anything(default: Any = None) -> Property:
    return Property(default)


def table(**properties: Property) -> Mapping[str, Property]:
    return properties


def _integer(value: Any) -> int:
    try:
        return integer(value)
    except (TypeError, ValueError):
        raise ValidationError(f"{value!r} is not an integer: pass an int") from None


class Descriptor(Allocated):
    """Properties listed in a table, each with PyObjC's getter `x()` and setter `setX_()`."""

    __slots__ = ("_values",)
    properties: ClassVar[Mapping[str, Property]] = {}

    def __init__(self) -> None:
        self._values = {name: copying.copy(p.default) for name, p in self.properties.items()}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, rule in cls.properties.items():
            setter = f"set{name[0].upper()}{name[1:]}_"
            if name not in cls.__dict__:
                setattr(cls, name, _getter(name))
            if setter not in cls.__dict__:
                setattr(cls, setter, _setter(name, rule))

    def copy(self) -> Self:
        twin = type(self)()
        twin._values = dict(self._values)
        return twin

    def __getattr__(self, name: str) -> Any:  # called only for a name that does not exist
        raise AttributeError(f"{type(self).__name__} has no property {name!r}")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"<{type(self).__name__} {values}>"


def _getter(name: str) -> Callable[[Descriptor], Any]:
    def get(self: Descriptor) -> Any:
        return self._values[name]

    get.__name__ = name
    return get


def _setter(name: str, rule: Property) -> Callable[[Descriptor, Any], None]:
    def put(self: Descriptor, value: Any) -> None:
        self._values[name] = rule.check(value)

    return put
