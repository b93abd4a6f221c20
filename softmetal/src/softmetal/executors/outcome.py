"""What the C code of executors says of a list that has run: sm_outcome of runtime/outcome.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from softmetal.executors import logs
from softmetal.types import Completion, LogMessage

Reader = Callable[[int, int], bytes]  # the bytes at an address, of a length


class Outcome(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("start", "end", "error", "error_bytes", "log", "log_bytes", "log_dropped")
    )

    def text(self, read: Reader) -> str | None:
        """The error."""
        return read(self.error, self.error_bytes).decode(errors="replace") if self.error else None

    def completion(self, error: str | None, read: Reader) -> Completion:
        """With the error as the checking modes have completed it."""
        messages: tuple[LogMessage, ...] = ()
        if self.log or self.log_dropped:
            data = read(self.log, self.log_bytes) if self.log else b""
            messages = logs.read(data, self.log_dropped)
        return Completion(self.start / 1e9, self.end / 1e9, error, messages)
