"""Lets Python programs that load macOS's libraries with ctypes find softmetal's native library."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import platform
from functools import cache, wraps
from typing import Any

from softmetal.native import building

_find_library = ctypes.util.find_library
_open_library = ctypes.CDLL.__init__


def install() -> None:
    """Nothing is built before a program asks for one of the libraries."""
    ctypes.util.find_library = _find
    setattr(ctypes.CDLL, "__init__", _open)  # noqa: B010 (it is a method)
    platform.mac_ver = _mac_version


@cache
def _folder() -> str:
    """The library's folder; programs that search folders, and child processes, find it too."""
    folder = str(building.build())
    known = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{folder}{os.pathsep}{known}" if known else folder
    _prepare_children()
    return folder


_CHILD = "import softmetal.native.loading as s; s.install(); "


def _prepare_children() -> None:
    """Processes that multiprocessing spawns are new interpreters, which do not run this module."""
    from multiprocessing import spawn

    original = spawn.get_command_line

    def command_line(**named: Any) -> list[str]:
        return [f"{_CHILD}{each}" if str(each).startswith("from multiprocessing") else each
                for each in original(**named)]  # fmt: skip

    spawn.get_command_line = command_line


def _find(name: str) -> str | None:
    return f"{_folder()}/lib{name}.so" if name in building.NAMES else _find_library(name)


def apple_name(path: str) -> str | None:
    """The name of the library at a path of macOS's, such as /usr/lib/libobjc.A.dylib."""
    if not path.startswith(("/usr/lib/", "/System/Library/")):
        return None
    if not path.endswith(".dylib") and ".framework/" not in path:
        return None
    name = path.rpartition("/")[2].removeprefix("lib").partition(".")[0]
    return name if name in building.NAMES else None


@wraps(_open_library)
def _open(library: ctypes.CDLL, name: Any, *arguments: Any, **named: Any) -> None:
    apple = apple_name(name) if isinstance(name, str) else None
    path = f"{_folder()}/lib{apple}.so" if apple else name
    _open_library(library, path, *arguments, **named)


def _mac_version(*arguments: Any, **named: Any) -> tuple[str, tuple[str, str, str], str]:
    return building.MACOS, ("", "", ""), "arm64"
