"""Facts that functions of computed tensors note while they run, for the readers of the tensors.

A conversion keeps the notes of each piece in its journal, so that a resumed one has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Notes = list[Any]
"""Facts of types that JSON has."""
_CURRENT: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def collecting_notes() -> Iterator[Notes]:
    """Collect what is noted in this thread."""
    notes: Notes = []
    token = _CURRENT.set(notes)
    try:
        yield notes
    finally:
        _CURRENT.reset(token)


def notes_are_wanted() -> bool:
    return _CURRENT.get() is not None


def note(fact: Any) -> None:
    """Add a fact to the notes that are being collected, if any are."""
    notes = _CURRENT.get()
    if notes is not None:
        notes.append(fact)
