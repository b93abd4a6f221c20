"""The few classes of Foundation that Core ML programs need, with PyObjC's names.

A program may use another package's: every URL is asked for its `path()` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlparse

NSLocalizedDescriptionKey = "NSLocalizedDescription"


class NSURL:
    """A URL of a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    # NS: +fileURLWithPath:
    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        return cls(str(Path(path).expanduser().absolute()))

    # NS: +fileURLWithPath:isDirectory:
    @classmethod
    def fileURLWithPath_isDirectory_(cls, path: str, directory: bool) -> NSURL:
        del directory
        return cls.fileURLWithPath_(path)

    # NS: +fileURLWithPath:relativeToURL:
    @classmethod
    def fileURLWithPath_relativeToURL_(cls, path: str, base: Any) -> NSURL:
        return cls.fileURLWithPath_(path if base is None else str(Path(base.path()) / path))

    # NS: +URLWithString:
    @classmethod
    def URLWithString_(cls, text: str) -> NSURL | None:
        parts = urlparse(text)
        return cls(unquote(parts.path)) if parts.scheme in ("", "file") else None

    # NS: -path
    def path(self) -> str:
        return self._path

    # NS: -absoluteString
    def absoluteString(self) -> str:
        return f"file://{quote(self._path)}"

    # NS: -lastPathComponent
    def lastPathComponent(self) -> str:
        return Path(self._path).name

    # NS: -pathExtension
    def pathExtension(self) -> str:
        return Path(self._path).suffix[1:]

    # NS: -isFileURL
    def isFileURL(self) -> bool:
        return True

    # NS: -URLByAppendingPathComponent:
    def URLByAppendingPathComponent_(self, name: str) -> NSURL:
        return NSURL(str(Path(self._path) / name))

    # NS: -URLByDeletingLastPathComponent
    def URLByDeletingLastPathComponent(self) -> NSURL:
        return NSURL(str(Path(self._path).parent))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NSURL) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return self.absoluteString()


class NSError:
    """Why a call failed: the second item of the tuples that `..._error_` methods return."""

    def __init__(self, domain: str, code: int, info: Mapping[str, Any]) -> None:
        self._domain = domain
        self._code = code
        self._info = dict(info)

    @classmethod
    def described(cls, domain: str, code: int, description: str) -> NSError:
        return cls(domain, code, {NSLocalizedDescriptionKey: description})

    # NS: -domain
    def domain(self) -> str:
        return self._domain

    # NS: -code
    def code(self) -> int:
        return self._code

    # NS: -userInfo
    def userInfo(self) -> dict[str, Any]:
        return dict(self._info)

    # NS: -localizedDescription
    def localizedDescription(self) -> str:
        return str(self._info.get(NSLocalizedDescriptionKey, ""))

    def __repr__(self) -> str:
        return f"Error Domain={self._domain} Code={self._code} {self.localizedDescription()!r}"


def url_path(url: Any) -> Path:
    """The path of a URL object of any package."""
    path = getattr(url, "path", None)
    if not callable(path):
        raise TypeError(f"{url!r} is not an NSURL: give NSURL.fileURLWithPath_(path)")
    return Path(str(path()))
