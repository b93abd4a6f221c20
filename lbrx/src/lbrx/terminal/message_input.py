"""The messages that a user gives to a conversation: lines, or text that was pasted."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

PROMPT = "> "
PASTE_SECONDS = 0.05  # between parts of a text that a terminal pastes


class MessageInput:
    """Reads standard input: a message is a line, or all lines that a terminal gives at once.

    GNU readline asks terminals to mark pasted text, whose line breaks then do not end a message.
    Other terminals and libedit give the lines of such a text one after the other.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        self._is_edited = self.is_terminal and sys.stdout.isatty()
        self._ended = False
        if self._is_edited:
            _prepare_editing()

    def read(self) -> str:
        """The next message. Raises EOFError at the end."""
        if self._ended:
            raise EOFError
        lines = [input(PROMPT if self._is_edited else "").removesuffix("\r")]
        while self.is_terminal and _more_is_waiting():
            try:
                lines.append(input().removesuffix("\r"))
            except EOFError:
                self._ended = True
                break
        return "\n".join(lines)


def _prepare_editing() -> None:
    with suppress(ImportError):
        import readline  # importing it lets `input` edit lines

        if "libedit" not in (readline.__doc__ or "") and os.environ.get("TERM") != "dumb":
            readline.parse_and_bind("set enable-bracketed-paste on")  # off before readline 8.1


def _more_is_waiting() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], PASTE_SECONDS)
    return bool(readable)
