"""When work is done: running what is pending, and points in a device's work to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lbrx.storage import PackedStorage
from lbrx.tensor.core import Tensor
from lbrx.tensor.placement import default_device

if TYPE_CHECKING:
    from lbrx.metal import DeviceEvent
    from lbrx.scheduler.explain import Explanation


def eval(*values: Any) -> None:
    """Run what is pending for tensors, also those in lists, tuples and dictionaries, and wait.

    What is not a tensor is passed over. Work that failed raises DeviceError here.
    """
    tensors = list(_tensors(values))
    start(*tensors)
    for tensor in tensors:
        if tensor.device != "cpu":
            tensor.storage.host()


def start(*values: Any) -> None:
    """Hand the pending work of tensors to their device, without waiting for it."""
    storages = [t.array.storage for t in _tensors(values) if t.device == "metal"]
    if storages:
        from lbrx.scheduler import realise

        realise(storages)


def explain(*values: Any) -> Explanation:
    """How the pending values of tensors will be computed: which operations share a kernel, and
    what that saves. Print it, or draw it with its `svg()` and `mermaid()`."""
    storages = [t.array.storage for t in _tensors(values) if t.device == "metal"]
    from lbrx.scheduler import explain

    return explain.explain(storages)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        storage = value.array.storage
        # Quantized values stay packed.
        packed = storage.parts.values() if isinstance(storage, PackedStorage) else ()
        yield from map(Tensor, packed) if packed else [value]
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Event:
    """A point in a device's work that the host can wait for, and the other way round.

    Each `record` or `hold` is a new point; `wait`, `query` and `release` are about the newest. The
    cpu has done its work when a call returns, so that events of it have always happened.
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
        """Mark the place after the work for these tensors, and after all that was started before;
        the device passes it in its own time."""
        start(*values)
        if self._event is not None:
            self._event.record()

    def query(self) -> bool:
        """Whether the point has been passed."""
        return self._event is None or bool(self._event.query())

    def wait(self, timeout: float | None = None) -> bool:
        """Block the host until the point has been passed; False if `timeout` seconds were not
        enough. Raises DeviceError if work before it failed."""
        return self._event is None or bool(self._event.wait(timeout))

    def hold(self) -> None:
        """Let the device wait, before any work from now on, until the host calls `release`."""
        if self._event is not None:
            self._event.hold()

    def release(self) -> None:
        """Let the device go on."""
        if self._event is not None:
            self._event.release()
