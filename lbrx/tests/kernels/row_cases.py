"""What the tests of softmax and of norms share: lengths of rows, and which kernel took them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest

from lbrx import kernels, metal
from lbrx.arrays import dtype as dt

FLOATS = (dt.float32, dt.float16, dt.bfloat16)

# Lengths on both sides of what a vector, a thread's registers, a team or a part takes.
LENGTHS = {
    "serial": (1, 3, 33, 64, 4097),
    "serial_parts": (1, 32_768, 32_769, 100_000),
    "simdgroup": (1, 63, 65, 1016, 1017, 1024),
    "threadgroup": (1, 127, 1025, 2048, 16_383, 16_384),
    "threadgroup_parts": (16_368, 16_385, 32_771, 40_000),
}


# Memory layouts of rows: views of an array of three axes.
VIEWS = {
    "rows with gaps": lambda x: x[:, :, :5],
    "every second row": lambda x: x[:, ::2],
    "every second row with gaps": lambda x: x[:, ::2, :5],
    "an offset": lambda x: x[1:, 2:, 3:],
    "every second element": lambda x: x[:, :, 1::2],
    "rows backwards": lambda x: x[:, ::-1],
    "elements backwards": lambda x: x[..., ::-1],
    "transposed": lambda x: x.T,
    "one row": lambda x: x[1, 2],
    "one element each": lambda x: x[:, :, 3:4],
    "empty rows": lambda x: x[:, :, :0],
    "no rows": lambda x: x[:0],
}


# Memory of rows and how a team loads it: (shape, view of float16, loads). A vector has 8 of them.
LOADS = {
    "short": ((3, 63), lambda x: x, "single"),
    "vectors": ((3, 64), lambda x: x, "vectors"),
    "vectors with gaps": ((3, 80), lambda x: x[:, 8:72], "vectors"),
    "an odd length": ((9, 65), lambda x: x, "ragged"),
    "an odd length with gaps": ((9, 73), lambda x: x[:, :65], "ragged"),
    "an odd start": ((3, 80), lambda x: x[:, 1:65], "single"),
    "an odd stride": ((3, 73), lambda x: x[:, :64], "single"),
    "an odd row first": ((4, 65), lambda x: x[1:], "single"),
    "eight odd rows later": ((12, 65), lambda x: x[8:], "ragged"),
}


def rotated(*rows, of):
    """Each row with one of the choices by default, with the others in the full run."""
    return [
        pytest.param(
            *row,
            choice,
            marks=() if choice is default else (pytest.mark.full,),
            id="-".join(map(str, (*row, choice))),
        )
        for row, default in zip(rows, cycle(of), strict=False)
        for choice in of
    ]


@contextmanager
def computed_by(family: str, variant: str, op: str) -> Iterator[None]:
    """A context that forces a variant and asserts that only it computed `op`."""
    before = Counter(metal.stats()["kernels"])
    with kernels.forced(**{family: variant}):
        yield
    new = Counter(metal.stats()["kernels"]) - before
    assert {name for name in new if name.startswith(f"{op}:")} == {f"{op}:{variant}"}
