"""Operands of the kernels that multiply one row by quantized matrices."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lbrx import dtype as dt
from lbrx.kernels import overwrite, rope
from lbrx.kernels.arrays import buffer_of, empty, whole_buffer
from lbrx.kernels.quantized import Stored
from lbrx.kernels.rope_write import RowPart, RowRotation
from lbrx.metal import Buffer, Context
from lbrx.storage import Array

WEIGHTS = 3  # in one launch


@dataclass(frozen=True)
class Prologue:
    """What a product's x is computed from within its kernel: x is then not stored."""

    x: Array
    added: Array | None = None
    """Added to x; the sum is a result of the kernel."""
    weight: Array | None = None
    """Of an RMS norm of x."""
    eps: float = 0.0
    gated: Array | None = None
    """What silu(x) is multiplied by."""

    def arguments(self, total: Array | None) -> list[Buffer | bytes | None]:
        """Those after the `Lines` record."""
        eps = struct.pack("f", self.eps)
        return [
            None if self.added is None else buffer_of(self.added),
            None if total is None else buffer_of(total),
            *((None, None) if self.weight is None else (buffer_of(self.weight), eps)),
            None if self.gated is None else buffer_of(self.gated),
        ]

    @property
    def constants(self) -> dict[int, bool]:
        """The kernel's function constants."""
        operands = (self.added, self.weight, self.gated)
        return {9 + i: operand is not None for i, operand in enumerate(operands)}

    @property
    def arrays(self) -> list[Array]:
        """The operands that there are."""
        every = (self.x, self.added, self.weight, self.gated)
        return [array for array in every if array is not None]

    def changed(self, change: Callable[[Array], Array]) -> Prologue:
        """The same with other operands."""
        added, weight, gated = (
            None if array is None else change(array)
            for array in (self.added, self.weight, self.gated)
        )
        return Prologue(change(self.x), added, weight, self.eps, gated)


@dataclass(frozen=True)
class RowTurns:
    """Heads of one token: rows of a product that are rotated, or written to a cache, or both."""

    parts: Sequence[RowPart]  # one for each matrix
    positions: Array
    rotation: RowRotation | None

    @property
    def features(self) -> int:
        """Of a head."""
        return self.parts[0].x.layout.shape[-1]

    @property
    def interleaved(self) -> bool:
        """Whether the features of a pair are neighbours."""
        return self.rotation is not None and bool(self.rotation.attributes["interleaved"])

    @property
    def constants(self) -> dict[int, bool]:
        """The kernel's function constants."""
        factored = self.rotation is not None and self.rotation.factors is not None
        return {14: True, 15: self.positions.dtype is dt.int64, 16: factored, 17: self.interleaved}

    def results(self, gpu: Context) -> list[Array]:
        """New arrays, and caches that are written in place."""
        return [
            empty(gpu, part.spec)
            if part.cache is None
            else overwrite.target(gpu, part.cache, part.spec)
            for part in self.parts
        ]

    def arguments(self, gpu: Context) -> list[Buffer | bytes | None]:
        """The `Turned` record, and what is needed to rotate."""
        filled = [*self.parts, *[self.parts[0]] * (WEIGHTS - len(self.parts))]
        capacities = [0 if part.cache is None else part.spec.shape[-2] for part in filled]
        turned = [part.pairs > 0 for part in filled]
        record = struct.pack(
            "8I", self.features // 2, *capacities, *turned, self.positions.layout.offset
        )
        speeds, factors = bytes(8), None
        if self.rotation is not None:
            given = self.rotation.attributes
            pairs = self.features // 2
            speeds = rope.speeds_of(pairs, float(given["base"]), float(given["scale"]))
            factors = rope.plain_factors(gpu, self.rotation.factors)
        return [
            record,
            whole_buffer(self.positions),
            rope.inline(gpu, speeds),
            None if factors is None else buffer_of(factors),
        ]


@dataclass(frozen=True)
class Rows:
    """Matrices of one launch and what is written of them: a result each, or one for both."""

    pairs: Sequence[tuple[Stored, Array]]
    sizes: Sequence[int]
    """Rows of the matrices."""
    paired: bool = False
    """Whether SwiGLU makes one result of those of two matrices."""
    turns: RowTurns | None = None
    """How the results of all matrices are rotated and written."""

    @property
    def counts(self) -> list[int]:
        """Rows of the matrices that are counted one after the other; of rows by twos half."""
        if self.turns is not None:
            return [size // 2 for size in self.sizes]
        return [*self.sizes[:1]] if self.paired else [*self.sizes]

    def batches(self, rows: int) -> list[int]:
        """For each of them the batches up to its end; a batch has so many rows."""
        own = rows // 2 if self.paired or self.turns is not None else rows
        return [*accumulate(-(-count // own) for count in self.counts)]

    @property
    def weights(self) -> list[Buffer]:
        """Buffers of the matrices."""
        parts = (each for w, _ in self.pairs for each in w.arguments[:3])
        return [each for each in parts if isinstance(each, Buffer)]

    @property
    def arguments(self) -> list[Buffer | bytes | None]:
        """Buffers of `WEIGHTS` matrices and results; those that are missing repeat the first."""
        filled = [*self.pairs, *[self.pairs[0]] * (WEIGHTS - len(self.pairs))]
        return [each for w, result in filled for each in (*w.arguments[:3], buffer_of(result))]
