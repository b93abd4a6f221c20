"""Keys of a configuration's document, read one by one; those that are left over are mistakes."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from lbrx.errors import FormatError


class Fields:
    """A mapping of a document, and the place in the document for errors."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            raise wrong(place, value, "keys and values")
        if not_text := [key for key in value if not isinstance(key, str)]:
            raise wrong(f"{place}: the key", not_text[0], "text: put it in quotes")
        self._left: dict[str, Any] = dict(value)
        self._known: list[str] = []
        self._place = place

    @property
    def names(self) -> list[str]:
        """The keys that have not been taken."""
        return list(self._left)

    def place(self, key: str) -> str:
        return f"{self._place}.{key}".strip(".")

    def take(self, key: str) -> Any:
        """The value of a key; None if it is not there."""
        self._known.append(key)
        return self._left.pop(key, None)

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise wrong(self.place(key), value, "text")
        return value

    def finish(self) -> None:
        """Raise FormatError if a key was not taken."""
        for key in self._left:
            remedy = suggestion(key, self._known)
            raise FormatError(f"{self.place(key)} is not a key of a merge's configuration{remedy}")


def wrong(place: str, value: object, wanted: str) -> FormatError:
    """An error about a value of the wrong kind."""
    found = "missing" if value is None else _shown(value)
    return FormatError(f"{place} is {found}: give {wanted}")


def _shown(value: object) -> str:
    """A value for a message. YAML's aliases make small texts that stand for huge values."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    return short.repr(value)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known name, or all of them."""
    import difflib  # few runs need it

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f": did you mean {near[0]}?" if near else f": the known ones are {', '.join(names)}"
