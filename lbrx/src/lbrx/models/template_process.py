"""Renders chat templates, which are not trusted, in a process of its own with limits.

A template runs as Python code, and a single operation of it can take any time and memory: only
the operating system can stop it. The process is started once and kept for further templates.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.extras import install

MAX_SECONDS = 2.0
"""Processor time of a template."""
MAX_MEMORY = 1 << 29
"""Bytes of the process, with Python and jinja2."""
MAX_CHARACTERS = 4_000_000
"""Of the text."""
MAX_WAIT = 60.0
"""Seconds until an answer; a busy machine may need more than the processor time."""
WATCHED = sys.platform == "darwin"
"""Whether this process watches the memory, since macOS does not limit what a process uses."""
_LOOK = 0.1  # seconds between two looks
_LENGTH_BYTES, _OUT_OF_MEMORY = 8, 3  # as in template_sandbox, which this process does not import
_MAX_ANSWER = 12 * MAX_CHARACTERS + 100  # JSON takes up to 12 bytes for a character
_START = "import sys; sys.path += sys.argv[1:]; import template_sandbox; template_sandbox.main({})"


class _Process:
    """Answers requests, one at a time, until a limit ends it."""

    def __init__(self) -> None:
        limits = f"{MAX_SECONDS}, {0 if WATCHED else MAX_MEMORY}, {MAX_CHARACTERS}"
        self._path = _interpreter()
        command = [self._path, "-I", "-S", "-c", _START.format(limits), *_folders()]
        self._is_ready = False
        self._connection, theirs = socket.socketpair()
        with theirs:
            # In a session of its own, where Ctrl-C does not reach it.
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as problem:
                self._connection.close()
                raise self._not_started(str(problem.strerror)) from None

    def is_running(self) -> bool:
        return self._process.poll() is None

    def answer(self, request: bytes) -> dict[str, str]:
        """Raises FormatError if a limit is exceeded; the process must not be used afterwards."""
        end = time.monotonic() + MAX_WAIT
        try:
            if not self._is_ready:
                self._message(end)
                self._is_ready = True
            self._connection.settimeout(MAX_WAIT)
            self._connection.sendall(len(request).to_bytes(_LENGTH_BYTES, "big") + request)
            answer: dict[str, str] = json.loads(self._message(end))
        except (OSError, json.JSONDecodeError):  # the connection ends with the process
            raise self._failure() from None
        return answer

    def _message(self, end: float) -> bytes:
        length = int.from_bytes(self._received(_LENGTH_BYTES, end), "big")
        return self._received(min(length, _MAX_ANSWER), end)

    def _received(self, count: int, end: float) -> bytes:
        data = bytearray()
        self._connection.settimeout(_LOOK)
        while len(data) < count:
            try:
                part = self._connection.recv(count - len(data))
            except TimeoutError:
                if WATCHED and _memory(self._process.pid) > MAX_MEMORY:
                    raise _too_much_memory() from None
                if time.monotonic() > end:
                    raise _failed(f"it takes longer than {MAX_WAIT:g} seconds") from None
                continue
            if not part:
                raise ConnectionError
            data += part
        return bytes(data)

    def _failure(self) -> LbrxError:
        """Why the process has ended."""
        status = self.stop()
        if not self._is_ready:
            return self._not_started(f"status {status}")
        if status == -signal.SIGPROF:
            return _failed(f"it takes longer than {MAX_SECONDS:g} seconds of processor time")
        if status == _OUT_OF_MEMORY:
            return _too_much_memory()
        return _failed(f"Python crashes with it (status {status})")

    def _not_started(self, reason: str) -> LbrxError:
        return LbrxError(
            f"{self._path} does not start as a Python interpreter, which chat templates need "
            f"({reason}): give the prompt as text"
        )

    def stop(self) -> int:
        self._connection.close()
        self._process.kill()
        return self._process.wait()

    def abandon(self) -> None:
        """In a forked process, whose parent goes on using it."""
        self._connection.close()
        self._process.returncode = 0  # or Popen would wait for it


class _Current:
    """The process of this program, if there is one, and who may use it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.process: _Process | None = None

    def started(self) -> _Process:
        if self.process is None or not self.process.is_running():
            self.stop()
            self.process = _Process()
        return self.process

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.stop()

    def after_fork(self) -> None:
        if self.process is not None:
            self.process.abandon()
        self.lock, self.process = Lock(), None


_current = _Current()
atexit.register(_current.stop)
os.register_at_fork(after_in_child=_current.after_fork)


def start() -> None:
    """Start the process if it is not running, so that it gets ready meanwhile."""
    with _current.lock:
        _current.started()


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The text of a template. Raises FormatError if it fails or exceeds a limit, and LbrxError for
    variables that cannot be JSON, or where the process cannot be started."""
    request = _encoded({"template": template, "variables": variables})
    with _current.lock:
        try:
            answer = _current.started().answer(request)
        except BaseException:  # also Ctrl-C: an answer may be on its way
            _current.stop()
            raise
    if "limit" in answer:
        raise _failed(answer["limit"])
    if "problem" in answer:
        raise FormatError(f"the model's chat template failed: {answer['problem']}")
    return answer["text"]


def _encoded(request: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(request, default=_as_dict).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise LbrxError(
            f"a message cannot be written as JSON ({problem!s:.200}): give texts, numbers, "
            "booleans, None, lists and dictionaries"
        ) from None


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {value!r:.80}")


def _interpreter() -> str:
    """The path of a Python interpreter."""
    if sys.executable and not getattr(sys, "frozen", False):
        return sys.executable
    # Where Python is part of another program, its installation may have an interpreter.
    path = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    if not path.is_file():
        raise LbrxError(
            "chat templates need a Python interpreter for a process of their own, and this program "
            f"has none ({path} does not exist): give the prompt as text"
        )
    return str(path)


def _folders() -> list[str]:
    """The folders of the modules that the process imports, wherever this process found them."""
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    if len(origins) < len(found):
        raise LbrxError(f"chat templates need the package jinja2: {install('models')}")
    return [*(str(Path(origin).parents[1]) for origin in origins), str(Path(__file__).parent)]


def _memory(process: int) -> int:
    """Bytes of another process in memory."""
    command = ["ps", "-o", "rss=", "-p", str(process)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return 1024 * int(shown) if shown.isdecimal() else 0


def _failed(limit: str) -> FormatError:
    remedy = "correct the template, or give the prompt as text"
    return FormatError(f"the model's chat template failed: {limit}: {remedy}")


def _too_much_memory() -> FormatError:
    return _failed(f"it needs more than {MAX_MEMORY >> 20} MiB of memory, or is nested too deeply")
