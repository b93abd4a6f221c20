"""Which elements of a task vector x - b a method keeps."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.merging.methods.method import Parents
from lbrx.merging.methods.statistics import total
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply

SMALLEST_NORM = 1e-7


@dataclass(frozen=True)
class KeptDifferences:
    """The part of x - b that is kept: where the mask is True, or all of it without a mask."""

    x: Tensor
    base: Tensor
    mask: Tensor | None = None
    norms: Tensor | None = None
    """(rows, 2): sums of all magnitudes of rows and of the kept ones, if the mask's kernel has
    computed them."""

    def values(self, weight: float) -> Tensor:
        """What is kept, times a weight."""
        if self.mask is None:
            result: Tensor = apply("kept_change", self.x, self.base, weight=weight)
            return result
        # As an operand a weight may differ between tensors whose kernels are prepared once.
        kept: Tensor = apply("kept_change", self.x, self.base, self.mask, weight=1.0)
        return kept * weight

    def rescaling(self) -> float:
        """The sum of all magnitudes over the sum of the kept ones; 1 if one of them is tiny."""
        if self.mask is None:
            return 1.0
        whole, kept = self._sums()
        return whole / kept if min(whole, kept) >= SMALLEST_NORM else 1.0

    def _sums(self) -> tuple[float, float]:
        if self.norms is not None:
            sums = self.norms.numpy().astype(np.float64).sum(axis=0)
            return float(sums[0]), float(sums[1])
        assert self.mask is not None
        sizes = (self.x - self.base.astype(dt.float32)).abs()
        return total(sizes), total(self.mask.where(sizes, 0.0))


def largest(x: Tensor, base: Tensor, density: float) -> KeptDifferences:
    """The int(density n) elements of the largest magnitude, at least one; of equal ones the first.
    None with a density of 0."""
    count = max(1, int(density * x.size)) if density > 0 else 0
    return ranked(x, base, density, 0, count)


def ranked(x: Tensor, base: Tensor, density: float, first: int, last: int) -> KeptDifferences:
    """The elements from one rank by magnitude to another; all of them if the density is 1."""
    if density >= 1:
        return KeptDifferences(x, base)
    mask = apply("magnitude_mask", x, base, first=first, last=max(first, last))
    return KeptDifferences(x, base, mask)


def drawn(
    parents: Parents, index: int, base: Tensor, density: float, spread: float = 0.0
) -> KeptDifferences:
    """Elements kept with a probability, which rises from density - spread for the smallest
    magnitude of a row to density + spread for the largest. The draws depend on the seed, the
    tensor's name and the model's place only."""
    x = parents.tensors[index]
    if density >= 1:
        return KeptDifferences(x, base)
    key = f"{parents.seed}\0{parents.name}\0{index}".encode()
    seed = int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
    chances = {"low": density - spread, "high": density + spread}
    mask, norms = apply("rank_bernoulli", x, base, seed=seed, **chances)
    return KeptDifferences(x, base, mask, norms)
