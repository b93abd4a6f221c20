"""What a block of code asks of the time and energy of its work: `lbrx.policy`.

Results do not depend on it: only where command buffers end, how macOS schedules the thread that
encodes them, and which unit of a chip reads prompts.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from lbrx.errors import LbrxError

# Classes of <sys/qos.h>: the one of a thread decides which cores it gets, and how soon.
USER_INTERACTIVE, USER_INITIATED, UTILITY = 0x21, 0x19, 0x11


@dataclass(frozen=True)
class WorkPolicy:
    """One policy."""

    name: str = ""
    length: float = 1.0
    """Of command buffers, as a multiple of the usual limits of operations and bytes."""
    first: int | None = None
    """Most operations of a command buffer that finds the device idle; None is no other limit."""
    service: int | None = None
    """The thread's class of service on macOS; None leaves it."""
    longest_delay: float = 1.25
    """The Neural Engine reads a prompt up to this multiple of the GPU's modelled time ..."""
    most_energy: float = 0.5
    """... if it takes at most this multiple of the GPU's modelled energy."""


POLICIES = {
    each.name: each
    for each in (
        WorkPolicy("latency", 0.5, 4, USER_INTERACTIVE, longest_delay=1.0),
        WorkPolicy("throughput", 4.0, None, USER_INITIATED),
        WorkPolicy("efficiency", 4.0, None, UTILITY, longest_delay=4.0, most_energy=1.0),
    )
}
USUAL = WorkPolicy()
"""The policy outside of all blocks."""
_policy: ContextVar[WorkPolicy] = ContextVar("work_policy", default=USUAL)
work_policy = _policy.get
"""The policy in force."""


def policy(name: str) -> AbstractContextManager[None]:
    """A context that says what matters of the work in it: "latency", "throughput" or "efficiency".

    | | latency | throughput | efficiency | no policy |
    |---|---|---|---|---|
    | operations and MB in a command buffer | 25 | 200 | 200 | 50 |
    | in the first one while the device is idle | 4 | 200 | 200 | 50 |
    | class of service of this thread on macOS | user interactive | user initiated | utility | as it is |
    | `prefill="auto"`: the Neural Engine reads prompts | if it is faster | as without | if it is faster, or takes less energy and at most 4 times as long | if it is faster, or takes half the energy and 1.25 times as long |

    Short command buffers begin early, long ones cost the host and the device less. Results have
    the same bits under each. Modelled times bound command buffers as before. Another name raises
    LbrxError.

    >>> with lbrx.policy("latency"):
    ...     (lbrx.ones(3, device="metal") * 2).tolist()
    [2.0, 2.0, 2.0]
    """  # noqa: E501
    if name not in POLICIES:
        raise LbrxError(f"{name!r} is not a policy: give one of {', '.join(POLICIES)}")
    return _under(POLICIES[name])


@contextmanager
def _under(wanted: WorkPolicy) -> Iterator[None]:
    token = _policy.set(wanted)
    try:
        with serving(wanted.service):
            yield
    finally:
        _policy.reset(token)


class ThreadService:
    """The class of service of the calling thread, where the system has such classes."""

    def __init__(self, system: ctypes.CDLL) -> None:
        self._read: Callable[[], int] = system.qos_class_self
        self._write: Callable[[int, int], int] = system.pthread_set_qos_class_self_np

    def change(self, wanted: int) -> int | None:
        """Set it, and return the one before; None if the system refuses."""
        before = self._read()
        return before if self._write(wanted, 0) == 0 else None


def thread_service() -> ThreadService | None:
    """This system's; None where there is none."""
    return ThreadService(ctypes.CDLL(None)) if sys.platform == "darwin" else None


@contextmanager
def serving(wanted: int | None) -> Iterator[None]:
    """A context in which this thread has a class of service."""
    service = None if wanted is None else thread_service()
    before = None if service is None or wanted is None else service.change(wanted)
    try:
        yield
    finally:
        if service is not None and before is not None:
            service.change(before)
