"""Gradients followed backwards along records, the latest first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from lbrx.gradients.recording import Record, Recorded, Source, relocated
from lbrx.gradients.views import summed, whole
from lbrx.tensors.core import Tensor


class _Sums:
    """The gradients of results of records, as far as they are known, and the records to come."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Record, list[Tensor | None]]] = {}
        self._next: list[int] = []

    def add(self, source: Source, g: Tensor) -> None:
        """A gradient of what an operand showed, added to that of the result it is a view of."""
        record = source.record
        if record.serial not in self._known:
            self._known[record.serial] = (record, [None] * len(record.layouts))
            heapq.heappush(self._next, -record.serial)
        own = g.to_device(source.device) if g.device != source.device else g
        own = summed(own, source.layout.shape).astype(source.dtype)
        own = whole(own, relocated(source.layout, source.base), source.base.shape)
        gradients = self._known[record.serial][1]
        known = gradients[source.index]
        gradients[source.index] = own if known is None else known + own

    def latest(self) -> tuple[Record, list[Tensor | None]] | None:
        """The record that no other one depends on, which is forgotten, and its gradients."""
        if not self._next:
            return None
        return self._known.pop(-heapq.heappop(self._next))


def gradients(
    results: Sequence[tuple[Recorded, Tensor]], leaves: Sequence[Recorded]
) -> list[Tensor | None]:
    """The gradients of leaves, given those of results; None where no result depends on a leaf.

    A gradient is forgotten when the rules of its record have read it.
    """
    sums = _Sums()
    for result, g in results:
        sums.add(result.source(), g)
    wanted = {leaf.record.serial: i for i, leaf in enumerate(leaves)}
    found: list[Tensor | None] = [None] * len(leaves)
    while (each := sums.latest()) is not None:
        record, given = each
        if record.pull is None:
            if record.serial in wanted:
                found[wanted[record.serial]] = given[0]
            continue
        for source, passed in zip(record.sources, record.pull(given), strict=True):
            if passed is not None:
                sums.add(source, passed)
        del each, given
    return found
