"""Control over when pending work runs: `eval`, `start`, `explain`, and events to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lbrx.storage import PackedStorage, wait_for
from lbrx.tensor.core import Tensor
from lbrx.tensor.placement import default_device

if TYPE_CHECKING:
    from lbrx.metal import DeviceEvent
    from lbrx.scheduler.explain import Explanation


def eval(*values: Any) -> None:
    """Compute the pending values of tensors and wait until they are done.

    Lists, tuples and dictionaries are searched for tensors; other values are ignored. A kernel
    that failed raises DeviceError.

    >>> x = lbrx.ones(3) * 2
    >>> lbrx.eval(x, {"more": [x + 1]})
    """
    tensors = list(_tensors(values))
    start(*tensors)
    for tensor in tensors:
        wait_for(tensor.array.storage)


def start(*values: Any) -> None:
    """Submit the pending work of tensors to their device without waiting for it.

    Lists, tuples and dictionaries are searched for tensors; other values are ignored.
    """
    storages = [t.array.storage for t in _tensors(values) if t.device == "metal"]
    if storages:
        from lbrx.scheduler import realise

        realise(storages)


def explain(*values: Any) -> Explanation:
    """The plan for the pending values of tensors: which operations share a kernel, and the memory
    traffic that this saves.

    Print the result, or draw it with its methods `svg()` and `mermaid()`. Nothing is computed.
    """
    storages = [t.array.storage for t in _tensors(values) if t.device == "metal"]
    from lbrx.scheduler import explain

    return explain.explain(storages)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        storage = value.array.storage
        # Evaluate the stored arrays of a quantized tensor, not its decoded values.
        packed = storage.parts.values() if isinstance(storage, PackedStorage) else ()
        yield from map(Tensor, packed) if packed else [value]
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Event:
    """A point in a device's work for which the host can wait, or that makes the device wait.

    `record` and `hold` set a new point; `wait`, `query` and `release` refer to the last one. The
    cpu has finished its work when a call returns, so its events have always passed.

    >>> event = lbrx.Event()
    >>> event.record(lbrx.ones(3) + 1)
    >>> event.wait()
    True
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device or default_device()
        self._event: DeviceEvent | None = None
        if self.device == "metal":
            from lbrx.metal import context

            self._event = context().event()

    def __repr__(self) -> str:
        return f"<Event on {self.device}, {'passed' if self.query() else 'pending'}>"

    def record(self, *values: Any) -> None:
        """Start the work of these tensors and set the point after it, and after all work that was
        started before. Does not wait."""
        start(*values)
        if self._event is not None:
            self._event.record()

    def query(self) -> bool:
        """Whether the device has passed the point."""
        return self._event is None or bool(self._event.query())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the device has passed the point: True, or False after `timeout` seconds.

        Work before the point that failed raises DeviceError.
        """
        return self._event is None or bool(self._event.wait(timeout))

    def hold(self) -> None:
        """Make the device wait, before all work started from now on, for a call of `release`."""
        if self._event is not None:
            self._event.hold()

    def release(self) -> None:
        """Let the device continue after `hold`."""
        if self._event is not None:
            self._event.release()
