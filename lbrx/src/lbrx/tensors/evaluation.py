"""Control over when pending work runs: `eval`, `start`, `explain`, and events to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lbrx.arrays.storage import PackedStorage, Storage, wait_for
from lbrx.tensors.core import Tensor
from lbrx.tensors.placement import default_device

if TYPE_CHECKING:
    from lbrx.command_lists.command_list import CommandList
    from lbrx.metal import DeviceEvent
    from lbrx.planning.explain import Explanation


def eval(*values: Any) -> None:
    """Compute the pending values of tensors and wait until they are done.

    Lists, tuples, dictionaries and modules are searched for tensors; other values are ignored. A
    kernel that failed raises DeviceError.

    >>> x = lbrx.ones(3) * 2
    >>> lbrx.eval(x, {"more": [x + 1]})
    """
    storages = _storages(values)
    _realise(storages, submit=True)
    for storage in storages:
        wait_for(storage)


def start(*values: Any) -> None:
    """Submit the pending work of tensors to their device without waiting for it.

    Lists, tuples and dictionaries are searched for tensors; other values are ignored.
    """
    _realise(_storages(values))


def _realise(storages: list[Storage], submit: bool = False) -> None:
    on_metal = [storage for storage in storages if storage.device == "metal"]
    if on_metal:
        from lbrx.scheduler import realise

        realise(on_metal, submit)


def explain(*values: Any) -> Explanation:
    """The plan for the pending values of tensors: which operations share a kernel, and the memory
    traffic that this saves.

    Print the result, or draw it with its methods `svg()` and `mermaid()`. Nothing is computed.
    """
    from lbrx.planning import explain

    return explain.explain([s for s in _storages(values) if s.device == "metal"])


def commands(*values: Any) -> CommandList:
    """The commands that compute the pending values of tensors: slots of memory with their sizes and
    lifetimes, and the steps that read and write them, with kernels, variants and the reasons for
    these. Print it. Kernels are compiled, and nothing is computed.

    >>> y = (lbrx.ones((2, 3), device="metal") * 2).sum(axis=-1)
    >>> [step.command.kernel for step in lbrx.commands(y).steps]
    ['fused_multiply_sum']
    """
    from lbrx.scheduler import graph_plan

    return graph_plan.commands([s for s in _storages(values) if s.device == "metal"])


def _storages(values: Iterable[Any]) -> list[Storage]:
    """What holds the bytes of the tensors within values: the stored arrays of quantized ones."""
    storages: list[Storage] = []
    for value in values:
        if hasattr(value, "tree"):
            value = value.tree()
        if isinstance(value, Tensor):
            storage = value.array.storage
            if isinstance(storage, PackedStorage):
                storages += [part.storage for part in storage.parts.values()]
            else:
                storages.append(storage)
        elif isinstance(value, Mapping):
            storages += _storages(value.values())
        elif isinstance(value, (list, tuple)):
            storages += _storages(value)
    return storages


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
