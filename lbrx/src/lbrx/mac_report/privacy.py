"""Removes what identifies a person or a machine from everything that a report says."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Accounts that say nothing about a person; as words of their own they stay.
_IMPERSONAL = {"admin", "metal", "root", "runner", "user"}
_SHORTEST_NAME = 3
_PATTERNS = (
    (re.compile(r"(/Users|/home)/[^/\s:\"']+"), r"\1/<user>"),
    (re.compile(r"/(private/)?var/folders/[^\s:\"']*"), "<temporary>"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"), "<address>"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\.)"), "<address>"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<identifier>"),
)


@dataclass(frozen=True)
class Secrets:
    """What this machine is called, by what replaces it."""

    folders: tuple[tuple[str, str], ...]  # longest first
    names: tuple[tuple[str, str], ...]


def secrets_of_this_machine() -> Secrets:
    folders = {
        str(Path.cwd()): "<here>",
        sys.prefix: "<environment>",
        sys.base_prefix: "<python>",
        tempfile.gettempdir(): "<temporary>",
        str(Path.home()): "<home>",
    }
    resolved = {os.path.realpath(folder): text for folder, text in folders.items()}
    users = {getpass.getuser(), *_full_names(), *map(os.environ.get, ("USER", "LOGNAME"))}
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    return Secrets(
        tuple(sorted((folders | resolved).items(), key=lambda item: -len(item[0]))),
        (*_named(hosts, "<host>"), *_named(users, "<user>")),
    )


def _full_names() -> Iterable[str]:
    try:
        import pwd

        gecos = pwd.getpwuid(os.getuid()).pw_gecos.split(",")[0]
    except (ImportError, KeyError):
        return ()
    return (gecos, *gecos.split())


def _named(names: Iterable[str | None], text: str) -> list[tuple[str, str]]:
    kept = {name for name in names if name and len(name) >= _SHORTEST_NAME}
    plain = {name for name in kept if name.lower() not in _IMPERSONAL}
    return [(name, text) for name in sorted(plain, key=len, reverse=True)]


def cleaned(value: Any, secrets: Secrets) -> Any:
    """The same data with all texts cleaned."""
    if isinstance(value, str):
        return _clean(value, secrets)
    if isinstance(value, dict):
        return {cleaned(k, secrets): cleaned(v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, secrets) for item in value]
    return value


def _clean(text: str, secrets: Secrets) -> str:
    for folder, replacement in secrets.folders:
        if len(folder) > 1:
            text = text.replace(folder, replacement)
    for name, replacement in secrets.names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", replacement, text, flags=re.IGNORECASE)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text
