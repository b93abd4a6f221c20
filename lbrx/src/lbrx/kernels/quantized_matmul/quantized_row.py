"""Operands of the kernels that multiply one row by quantized matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import FLOAT, UINT, Bool, Record, UInt, packed
from lbrx.kernels.arrays import buffer_of, whole_buffer
from lbrx.kernels.overwrite import overwrite
from lbrx.kernels.quantized.quantized import Stored, StoredConstants
from lbrx.kernels.rope import rope
from lbrx.kernels.rope.rope_write import RowPart, RowRotation
from lbrx.metal import Buffer

WEIGHTS = 3  # in one launch


class RowConstants(StoredConstants, header="quant_row"):
    EVEN: Bool  # whether all steps are whole
    OWN: UInt  # words of x that a thread rounds: 1, 2, 4 or 8
    ADDED: Bool  # x is a sum, which is stored as well
    NORMED: Bool  # x has an RMS norm, with a weight
    GATED: Bool  # x is the gate of a SwiGLU


class TurnsRecord(Record, header="quant_lines"):
    """What happens to the heads of a token, of which a batch has pairs of features."""

    half_features: UInt
    capacity: Annotated[Sequence[int], UINT[WEIGHTS]]  # rows of a cache, for each head; or 0
    turns: Annotated[Sequence[int], UINT[WEIGHTS]]  # whether the rows are rotated
    position: UInt  # its place


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
        """Those after the record of the matrices."""
        eps = packed(FLOAT, self.eps)
        return [
            None if self.added is None else buffer_of(self.added),
            None if total is None else buffer_of(total),
            *((None, None) if self.weight is None else (buffer_of(self.weight), eps)),
            None if self.gated is None else buffer_of(self.gated),
        ]

    @property
    def constants(self) -> dict[str, bool]:
        """The kernel's function constants."""
        return {
            "ADDED": self.added is not None,
            "NORMED": self.weight is not None,
            "GATED": self.gated is not None,
        }

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
    def constants(self) -> dict[str, bool]:
        """The kernel's function constants."""
        return {
            "TURNED": True,
            "WIDE": self.positions.dtype is dt.int64,
            "FACTORED": self.rotation is not None and self.rotation.factors is not None,
            "INTERLEAVED": self.interleaved,
        }

    def results(self, b: Builder) -> list[Array]:
        """New arrays, and caches that are written in place."""
        return [
            b.result(part.spec)
            if part.cache is None
            else overwrite.target(b, part.cache, part.spec)
            for part in self.parts
        ]

    def arguments(self, b: Builder) -> list[Buffer | bytes | None]:
        """The record of the heads, and what is needed to rotate."""
        filled = [*self.parts, *[self.parts[0]] * (WEIGHTS - len(self.parts))]
        capacities = [0 if part.cache is None else part.spec.shape[-2] for part in filled]
        record = TurnsRecord(
            half_features=self.features // 2,
            capacity=capacities,
            turns=[part.pairs > 0 for part in filled],
            position=self.positions.layout.offset,
        )
        speeds, factors = bytes(8), None
        if self.rotation is not None:
            attributes = self.rotation.attributes
            pairs = self.features // 2
            speeds = rope.speeds_of(pairs, float(attributes["base"]), float(attributes["scale"]))
            factors = rope.plain_factors(b, self.rotation.factors)
        return [
            record,
            whole_buffer(self.positions),
            speeds,
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
        covered = rows // 2 if self.paired or self.turns is not None else rows
        return [*accumulate(-(-count // covered) for count in self.counts)]

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
