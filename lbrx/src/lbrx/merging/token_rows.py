"""Rows of an embedding in the order of another vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lbrx.tensors import Tensor, from_numpy

NOWHERE = -1


@dataclass(frozen=True)
class AlignedRows:
    """The embedding of one model for the merged vocabulary, in float32. The sources are the
    embeddings of all models of the merge.

    A row comes from the model's own embedding, or is the mean of rows of others, or zeros. Rows
    after the vocabulary, which pad it to a size, are the mean of all rows before them.
    """

    own: int
    """The source that is the model's own."""
    rows: bytes
    """For each token the number of its row there, or `NOWHERE`: int32."""
    others: bytes
    """For tokens from elsewhere: int32 triples of token, source and row. A token that appears
    several times gets the mean."""
    padded: int
    """The number of rows of the result."""

    @property
    def is_elementwise(self) -> bool:
        return False

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        tables = [source.numpy() for source in sources]
        rows = np.frombuffer(self.rows, np.int32)
        result = np.zeros((self.padded, *tables[0].shape[1:]), np.float32)
        known = rows >= 0
        result[: len(rows)][known] = tables[self.own][rows[known]]
        tokens, models, places = np.frombuffer(self.others, np.int32).reshape(-1, 3).T
        for number in np.unique(models):
            chosen = models == number
            np.add.at(result, tokens[chosen], tables[number][places[chosen]].astype(np.float32))
        self._average(result, tokens)
        if self.padded > len(rows):
            result[len(rows) :] = result[: len(rows)].mean(axis=0, dtype=np.float64)
        return from_numpy(result, sources[0].device)

    def _average(self, result: NDArray[np.float32], tokens: NDArray[np.int32]) -> None:
        several, counts = np.unique(tokens, return_counts=True)
        several, counts = several[counts > 1], counts[counts > 1]
        result[several] /= counts.reshape(-1, *[1] * (result.ndim - 1))


def packed(values: Sequence[int] | Sequence[tuple[int, int, int]]) -> bytes:
    """Numbers as the bytes of int32."""
    return np.asarray(values, np.int32).tobytes()
