"""The Foundation types that Metal programs use, with PyObjC's names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlparse

from softmetal.api import host
from softmetal.api.objects import Allocated, Object
from softmetal.api.structs import NSMakeRange, NSRange

__all__ = [
    "NSURL",
    "NSArray",
    "NSAutoreleasePool",
    "NSData",
    "NSDictionary",
    "NSError",
    "NSLocalizedDescriptionKey",
    "NSLog",
    "NSMakeRange",
    "NSNotFound",
    "NSNumber",
    "NSObject",
    "NSRange",
    "NSString",
    "file_path",
]

NSLocalizedDescriptionKey = "NSLocalizedDescription"
NSNotFound = 0x7FFFFFFFFFFFFFFF


# PyObjC bridges objects of the next four to Python's own types, and so do their factories here.


class NSString(str):
    """Text."""

    @classmethod
    def stringWithString_(cls, text: str) -> str:
        return str(text)

    @classmethod
    def stringWithUTF8String_(cls, text: bytes) -> str:
        return text.decode()


class NSArray(list[Any]):
    """A list."""

    @classmethod
    def array(cls) -> list[Any]:
        return []

    @classmethod
    def arrayWithArray_(cls, items: Iterable[Any]) -> list[Any]:
        return list(items)

    @classmethod
    def arrayWithObject_(cls, item: Any) -> list[Any]:
        return [item]


class NSDictionary(dict[Any, Any]):
    """A dictionary."""

    @classmethod
    def dictionary(cls) -> dict[Any, Any]:
        return {}

    @classmethod
    def dictionaryWithDictionary_(cls, items: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(items)

    @classmethod
    def dictionaryWithObject_forKey_(cls, item: Any, key: Any) -> dict[Any, Any]:
        return {key: item}

    @classmethod
    def dictionaryWithObjects_forKeys_(
        cls, items: Iterable[Any], keys: Iterable[Any]
    ) -> dict[Any, Any]:
        return dict(zip(keys, items, strict=True))


class NSNumber(int):
    """A number: its factories give Python's own."""

    @classmethod
    def numberWithBool_(cls, value: bool) -> bool:
        return bool(value)

    @classmethod
    def numberWithInt_(cls, value: int) -> int:
        return int(value)

    @classmethod
    def numberWithInteger_(cls, value: int) -> int:
        return int(value)

    @classmethod
    def numberWithUnsignedInt_(cls, value: int) -> int:
        return int(value)

    @classmethod
    def numberWithUnsignedLongLong_(cls, value: int) -> int:
        return int(value)

    @classmethod
    def numberWithFloat_(cls, value: float) -> float:
        return float(value)

    @classmethod
    def numberWithDouble_(cls, value: float) -> float:
        return float(value)


class NSObject(Allocated):
    """The base class of a program's own classes, such as delegates."""


class NSAutoreleasePool(Allocated):
    """A pool that `drain` or `release` ends; see `objc.autorelease_pool`."""

    __slots__ = ("_pool",)

    def __init__(self) -> None:
        self._pool = ExitStack()
        if host.played():
            self._pool.enter_context(host.AutoreleasePool())

    def drain(self) -> None:
        self._pool.close()

    def release(self) -> None:
        self.drain()


def NSLog(text: str, *values: object) -> None:
    """Write a line to standard error. `%@` stands for a value."""
    line = text.replace("%@", "%s")
    print(line % values if values else line.replace("%%", "%"), file=sys.stderr)


class NSError(Object):
    """Why a call failed: the second item of the tuples that `..._error_` methods return."""

    __slots__ = ("_code", "_domain", "_info")

    def __init__(self, domain: str, code: int, info: Mapping[str, Any] | None = None) -> None:
        self._domain = domain
        self._code = code
        self._info = dict(info or {})

    @classmethod
    def described(cls, domain: str, code: int, description: str) -> NSError:
        return cls(domain, code, {NSLocalizedDescriptionKey: description})

    @classmethod
    def errorWithDomain_code_userInfo_(
        cls, domain: str, code: int, info: Mapping[str, Any] | None
    ) -> NSError:
        return cls(domain, code, info)

    def domain(self) -> str:
        return self._domain

    def code(self) -> int:
        return self._code

    def userInfo(self) -> dict[str, Any]:
        return self._info

    def localizedDescription(self) -> str:
        text = self._info.get(NSLocalizedDescriptionKey)
        return str(text) if text is not None else f"{self._domain} error {self._code}"

    def localizedFailureReason(self) -> str | None:
        return self._info.get("NSLocalizedFailureReason")

    def __str__(self) -> str:
        return f'Error Domain={self._domain} Code={self._code} "{self.localizedDescription()}"'

    __repr__ = __str__


class NSData(bytes):
    """Immutable bytes. dispatch_data_t is bridged to it too."""

    @classmethod
    def dataWithBytes_length_(cls, data: Any, length: int) -> Self:
        return cls(memoryview(data).cast("B")[:length])

    @classmethod
    def dataWithContentsOfFile_(cls, path: str) -> Self | None:
        try:
            return cls(Path(path).read_bytes())
        except OSError:
            return None

    @classmethod
    def dataWithContentsOfURL_(cls, url: NSURL) -> Self | None:
        return cls.dataWithContentsOfFile_(url.path())

    def bytes(self) -> memoryview:
        return memoryview(self)

    def length(self) -> int:
        return len(self)

    def writeToFile_atomically_(self, path: str, atomically: bool) -> bool:
        try:
            Path(path).write_bytes(self)
        except OSError:
            return False
        return True


class NSURL(Object):
    """A file URL; other schemes are not supported."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def fileURLWithPath_(cls, path: str | os.PathLike[str]) -> NSURL:
        return cls(Path(path).absolute().as_uri())

    @classmethod
    def URLWithString_(cls, text: str) -> NSURL:
        return cls(text)

    def path(self) -> str:
        return unquote(urlparse(self._text).path)

    def absoluteString(self) -> str:
        return self._text

    def isFileURL(self) -> bool:
        return urlparse(self._text).scheme == "file"

    def lastPathComponent(self) -> str:
        return Path(self.path()).name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NSURL) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def file_path(url: NSURL | str | os.PathLike[str]) -> Path:
    """The file that a URL or a plain path names."""
    return Path(url.path()) if isinstance(url, NSURL) else Path(url)
