"""What became of a command buffer, and which waits are told.

A failure concerns the results of the command buffer, and what was computed from them: every wait
for those raises it. If no such wait comes first, the next wait of the thread that encoded the work
raises it once. Other threads are not told.
"""

from __future__ import annotations

import logging

from lbrx.errors import DeviceError

log = logging.getLogger("lbrx")


class Outcome:
    """Of one command buffer, known after it has ended."""

    __slots__ = ("__weakref__", "_cause", "ended", "error", "findings", "reported", "sources")

    def __init__(self) -> None:
        self.ended = False
        self.error: DeviceError | None = None
        self.reported = False  # whether a wait has raised the error
        self.findings: list[Exception] = []  # of checks, not raised yet; the results are right
        self.sources: set[Outcome] = set()  # of work that computes operands, and has not ended
        # Failed work because of which this failed, too; itself would be a cycle of references.
        self._cause: Outcome | None = None

    def end(self, error: DeviceError | None, findings: list[Exception]) -> None:
        """Note how the work ended. Work on operands that failed has failed for the same reason,
        also where it has an error of its own: after a fault a GPU refuses everything."""
        for source in self.sources:
            if source.error is not None:
                self._cause, error = source._cause or source, source.error
                self.reported = True  # the thread that encoded the cause is told, not this one
                break
        self.error, self.findings, self.ended = error, findings, True
        self.sources.clear()

    @property
    def wrong(self) -> bool:
        """Whether the work failed or a checking mode found something."""
        return self.error is not None or bool(self.findings)

    @property
    def unreported(self) -> bool:
        """Whether the thread that submitted the work has still to be told."""
        return bool(self.findings) or (self.error is not None and not self.reported)

    def check(self) -> None:
        """Raise the error, every time, or what a check found, once."""
        if self.error is not None:
            self.reported = True
            if self._cause is not None:
                self._cause.reported = True
            raise DeviceError(*self.error.args)
        if self.findings:
            raise self.findings.pop(0)


class Inbox(list[Outcome]):
    """The outcomes that the next wait of one thread has to report."""

    def check(self) -> None:
        """Raise the first that has not been reported."""
        while self:
            if self[0].unreported:
                self[0].check()
            self.pop(0)

    def __del__(self) -> None:  # the thread has ended
        for outcome in self:
            if outcome.unreported:
                problem = outcome.error or outcome.findings[0]
                log.error("work failed that was not waited for: %s", problem)
                outcome.reported = True
                outcome.findings.clear()
