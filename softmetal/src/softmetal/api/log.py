"""MTLLogState: the destination of lines that kernels log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable

from softmetal.api import enums
from softmetal.api.objects import Descriptor, Object, number, table
from softmetal.types import LogMessage

log = logging.getLogger("softmetal")

LogHandler = Callable[[str, str, int, str], object]


class MTLLogStateDescriptor(Descriptor):
    __slots__ = ()
    properties = table(level=number(enums.MTLLogLevelDebug), bufferSize=number(1024))


class MTLLogState(Object):
    """Handlers for printed lines; without one they go to standard error."""

    __slots__ = ("_handlers", "_level")

    def __init__(self, descriptor: MTLLogStateDescriptor) -> None:
        self._level: int = descriptor.level()
        self._handlers: list[LogHandler] = []

    # MTL: -addLogHandler:
    def addLogHandler_(self, handler: LogHandler) -> None:
        """handler(subsystem, category, level, text) for each line."""
        self._handlers.append(handler)


def deliver(messages: Iterable[LogMessage], state: MTLLogState | None) -> None:
    """Pass logged lines to the handlers, in their order."""
    for message in messages:
        if state is not None and message.level < state._level:
            continue
        if state is None or not state._handlers:
            # DEVIATION: lines that kernels log go to standard error, as there is no system log.
            print(message.text.rstrip("\n"), file=sys.stderr)
            continue
        for handler in state._handlers:
            try:
                handler(message.subsystem, message.category, message.level, message.text)
            except Exception:
                log.exception("a log handler failed")
