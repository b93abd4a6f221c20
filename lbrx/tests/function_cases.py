"""What the tests of `lbrx.tensors.functions` share: our function beside numpy's, on the same elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from op_oracle import VIEWS, chosen, close, keep, pair

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype


@dataclass(frozen=True)
class Case:
    """Two functions of tensors in these shapes, the types it takes and the type it gives."""

    ours: Callable[..., Any]
    numpy: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]] = ((4, 6),)
    dtypes: Sequence[Dtype] = dt.ALL
    result: Callable[[Dtype], Dtype] = keep
    low: float = -4
    high: float = 4
    scale: float = 1


def check(case: Case, name: str, place, rng, views: Sequence[str] = tuple(VIEWS)) -> None:
    """Equal results for each type that the place takes; views take turns."""
    for i, dtype in enumerate(chosen(case.dtypes, place, name)):
        view = views[i % len(views)] if all(case.shapes) else "contiguous"
        pairs = [pair(rng, s, dtype, place, view, case.low, case.high) for s in case.shapes]
        ours = case.ours(*(tensor for tensor, _ in pairs))
        expected = case.numpy(*(values for _, values in pairs))
        several = isinstance(ours, list | tuple)
        results = list(ours) if several else [ours]
        wanted = list(expected) if several else [expected]
        assert len(results) == len(wanted)
        for tensor, values in zip(results, wanted, strict=True):
            assert tensor.device == place
            close(tensor, values, case.result(dtype), case.scale)
