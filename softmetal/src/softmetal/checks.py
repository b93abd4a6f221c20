"""Which checking modes are on: SOFTMETAL_CHECK, or `with checking(...)`.

Kernels compiled while a mode is on are instrumented and checked whenever they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b

from softmetal import env
from softmetal.errors import SettingError

MODES = ("bounds", "race", "uninit")
ALL = ("all", "1")  # in place of a list
MOST_SHOWN = 100  # findings on standard error
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Checks:
    """The active modes, and what they have found so far."""

    modes: frozenset[str]
    seed: int  # determines the order in which `race` runs threads
    findings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # whose error() was not read

    submissions: int = 0
    reports: bool = False  # on standard error, since nobody may read error()
    shown: set[str] = field(default_factory=set)

    def add(self, findings: list[str]) -> None:
        """Add findings of a command buffer."""
        self.findings += findings
        self.unread += findings
        if self.reports:
            for line in findings:
                self._report(line)

    def _report(self, line: str) -> None:
        """Write a finding to standard error, once."""
        if line in self.shown or len(self.shown) > MOST_SHOWN:
            return
        self.shown.add(line)
        write(line if len(self.shown) <= MOST_SHOWN else "more findings are not shown")

    def next_seed(self) -> int:
        """The seed of the next submission; the n-th submission of a program gets the same."""
        self.submissions += 1
        text = f"{self.seed} {self.submissions}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

    def take_unread(self) -> list[str]:
        """Findings that the program has not read yet; each is returned once."""
        taken, self.unread = self.unread, []
        return taken


_entered: list[Checks] = []
_from_environment: dict[str, Checks] = {}


def current() -> Checks | None:
    """The active checks, None if there are none."""
    if _entered:
        return _entered[-1] if _entered[-1].modes else None
    if b"SOFTMETAL_CHECK" not in env.VARIABLES:  # every command buffer asks for it
        return None
    text = env.check()
    if not text:
        return None
    if text not in _from_environment:
        modes = parse(text.split(","), f"SOFTMETAL_CHECK={text!r}: ")
        _from_environment[text] = Checks(modes, _seed(None), reports=True)
    found = _from_environment[text]
    return found if found.modes else None


def modes() -> frozenset[str]:
    """The active modes."""
    checks = current()
    return checks.modes if checks is not None else _NONE


@contextmanager
def checking(*modes: str, seed: int | None = None) -> Iterator[Checks]:
    """Check the kernels whose pipelines are created inside a `with` block.

    Findings become errors of command buffers, and are listed in the yielded object:

        with softmetal.checking("bounds", "race", seed=7) as check:
            ...
        print(check.findings)
    """
    checks = Checks(parse(modes), _seed(seed))
    _entered.append(checks)
    try:
        yield checks
    finally:
        _entered.remove(checks)


def write(text: str) -> None:
    """Write a line to standard error, if there is one."""
    with suppress(AttributeError, OSError, ValueError):  # None, closed, or a pipe that is
        sys.stderr.write(f"softmetal: {text}\n")


def has_reported() -> bool:
    """Whether SOFTMETAL_CHECK was set and something was found."""
    return any(each.findings for each in _from_environment.values())


def mark_read(error: str) -> None:
    """Mark the findings in a command buffer's error as read by the program."""
    for each in (*_entered, *_from_environment.values()):
        for line in error.splitlines():
            if line in each.unread:
                each.unread.remove(line)


def parse(names: Iterable[str], source: str = "") -> frozenset[str]:
    """Modes by name; raises SettingError for one that does not exist."""
    wanted = frozenset(name.strip() for name in names) - {""}
    unknown = sorted(wanted.difference(MODES, ALL))
    if unknown:
        raise SettingError(
            f"{source}{unknown[0]!r} is not a checking mode: give all, or a list of "
            f"{', '.join(MODES)}"
        )
    return wanted if wanted.isdisjoint(ALL) else frozenset(MODES)


def _seed(given: int | None) -> int:
    """The given seed, else SOFTMETAL_SEED, else a random one."""
    chosen = given if given is not None else env.seed()
    return chosen if chosen is not None else int.from_bytes(os.urandom(4), "little") | 1
