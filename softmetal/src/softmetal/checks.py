"""Which checking modes are on: SOFTMETAL_CHECK, or `with checking(...)`.

Kernels compiled while a mode is on are instrumented and checked whenever they run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from softmetal import env
from softmetal.errors import SettingError

MODES = ("bounds", "race", "uninit")
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Checks:
    """The active modes, and what they have found so far."""

    modes: frozenset[str]
    seed: int  # determines the order in which `race` runs threads
    findings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # whose error() was not read

    submissions: int = 0

    def add(self, findings: list[str]) -> None:
        """Add findings of a command buffer."""
        self.findings += findings
        self.unread += findings

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
        modes = parse((part for part in text.split(",") if part.strip()), "SOFTMETAL_CHECK: ")
        _from_environment[text] = Checks(modes, _seed(None))
    return _from_environment[text]


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


def mark_read(error: str) -> None:
    """Mark the findings in a command buffer's error as read by the program."""
    for each in (*_entered, *_from_environment.values()):
        for line in error.splitlines():
            if line in each.unread:
                each.unread.remove(line)


def parse(names: Iterable[str], source: str = "") -> frozenset[str]:
    """Modes by name; raises SettingError for one that does not exist."""
    wanted = frozenset(name.strip() for name in names)
    unknown = sorted(wanted - set(MODES))
    if unknown:
        raise SettingError(
            f"{source}{unknown[0]!r} is not a checking mode: give {', '.join(MODES)}"
        )
    return wanted


def _seed(given: int | None) -> int:
    """The given seed, else SOFTMETAL_SEED, else a random one."""
    chosen = given if given is not None else env.seed()
    return chosen if chosen is not None else int.from_bytes(os.urandom(4), "little") | 1
