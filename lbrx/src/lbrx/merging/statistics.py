"""How a merged tensor relates to its parents: one pass over all of them on the device.

The kernel keeps sums in float32 for blocks of elements; the host adds them in float64. Of a million
elements or more it takes one block of 16, chosen by a hash of its place, since patterns of rows
and columns would bias a regular choice. Sums can be added, so the numbers of a layer are made of
those of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.custom_kernels.kernel import Kernel, kernel
from lbrx.tensors.core import Tensor

_BLOCK = 4096  # elements that a thread adds, or 32 threads with simd hardware
_SAMPLED = 1 << 20  # elements, from which on a part of the blocks is taken
_PART = 16  # one block of so many is taken
_HASH = 2654435761  # Knuth's multiplier
_SIMD_WIDTH = 32
_SIZES = 64  # whose blocks are kept
_MAX_TENSORS = 29  # of a kernel: Metal has 31 buffers, and two are the size and the result
_ON_METAL = (dt.float32, dt.float16, dt.bfloat16)


@dataclass(frozen=True)
class ParentSums:
    """Sums over the elements of one parent x, with m the merged tensor and b the base."""

    squares: float
    """Of x."""
    products: float
    """Of m and x."""
    delta_squares: float = 0.0
    """Of x - b; 0 without a base."""
    delta_products: float = 0.0
    """Of m - b and x - b; 0 without a base."""

    def __add__(self, other: ParentSums) -> ParentSums:
        return ParentSums(
            self.squares + other.squares,
            self.products + other.products,
            self.delta_squares + other.delta_squares,
            self.delta_products + other.delta_products,
        )


@dataclass(frozen=True)
class MergeSums:
    """Sums over the elements of a merged tensor m. They can be added for tensors with the same
    parents."""

    values: int
    squares: float
    """Of m."""
    conflicts: int
    """Elements at which the parents' differences from the base have both signs; without a base,
    the parents themselves."""
    parents: tuple[ParentSums, ...]
    base_squares: float | None = None
    """Of the base; None without one."""
    base_products: float = 0.0
    """Of m and the base."""
    delta_squares: float = 0.0
    """Of m - b."""
    changed: int = 0
    """Elements at which m differs from the base."""

    def __add__(self, other: MergeSums) -> MergeSums:
        bases = (self.base_squares, other.base_squares)
        return MergeSums(
            self.values + other.values,
            self.squares + other.squares,
            self.conflicts + other.conflicts,
            tuple(a + b for a, b in zip(self.parents, other.parents, strict=True)),
            None if None in bases else sum(filter(None, bases)),
            self.base_products + other.base_products,
            self.delta_squares + other.delta_squares,
            self.changed + other.changed,
        )

    def numbers(self) -> dict[str, Any]:
        """The fields by name, in types that JSON has."""
        return {**vars(self), "parents": [{**vars(parent)} for parent in self.parents]}

    @property
    def norm(self) -> float:
        return math.sqrt(self.squares)

    @property
    def conflict_share(self) -> float:
        return self.conflicts / self.values if self.values else 0.0

    @property
    def density(self) -> float | None:
        """The share of elements that the merge changed; None without a base."""
        if self.base_squares is None:
            return None
        return self.changed / self.values if self.values else 0.0

    def cosine(self, parent: int) -> float | None:
        """The cosine of m and a parent; None if one of them is zero or not finite."""
        one = self.parents[parent]
        return _cosine(one.products, self.squares, one.squares)

    def base_cosine(self) -> float | None:
        """The cosine of m and the base; None without one too."""
        squares = self.base_squares
        return None if squares is None else _cosine(self.base_products, self.squares, squares)

    def delta_cosine(self, parent: int) -> float | None:
        """The cosine of m - b and x - b; None without a base too."""
        one = self.parents[parent]
        return _cosine(one.delta_products, self.delta_squares, one.delta_squares)


def _cosine(products: float, first: float, second: float) -> float | None:
    length = math.sqrt(first) * math.sqrt(second)
    if not (length > 0 and math.isfinite(length) and math.isfinite(products)):
        return None
    return max(-1.0, min(1.0, products / length))


def merge_sums(merged: Tensor, parents: Sequence[Tensor], base: Tensor | None = None) -> MergeSums:
    """The sums of a merged tensor, its parents and its base, which all have one shape.

    On metal it is one kernel, which reads each tensor once; on the cpu, and for more tensors than a
    kernel takes, it is numpy in float64. From a million elements on the sums are estimates from a
    sixteenth of them.
    """
    tensors = [merged, *([] if base is None else [base]), *parents]
    if merged.device == "metal" and len(tensors) <= _MAX_TENSORS:
        totals = _on_metal(tensors, base is not None)
    else:
        totals = _on_cpu(tensors, base is not None)
    return _named(merged.size, totals, len(parents), base is not None)


def _part(size: int) -> int:
    return _PART if size >= _SAMPLED else 1


@lru_cache(_SIZES)
def _chosen(size: int) -> tuple[NDArray[np.int64], int]:
    """The numbers of the blocks that are taken, and the number of their elements."""
    part = _part(size)
    groups = np.arange(-(-size // (_BLOCK * part)), dtype=np.int64)
    blocks = groups * part + ((groups * _HASH % (1 << 32)) >> 16) % part
    return blocks, int(np.clip(size - blocks * _BLOCK, 0, _BLOCK).sum())


def _named(size: int, totals: NDArray[np.float64], parents: int, has_base: bool) -> MergeSums:
    """Totals by name. Their order is that of `_kernel`."""
    numbers = totals.tolist()
    each, first = (4, 6) if has_base else (2, 2)
    rows = [numbers[first + each * i : first + each * (i + 1)] for i in range(parents)]
    sums = tuple(ParentSums(*row) for row in rows)
    if not has_base:
        return MergeSums(size, numbers[0], round(numbers[1]), sums)
    squares, conflicts, base, products, delta, changed = numbers[:first]
    return MergeSums(size, squares, round(conflicts), sums, base, products, delta, round(changed))


def _on_metal(tensors: Sequence[Tensor], has_base: bool) -> NDArray[np.float64]:
    given = [one if one.dtype in _ON_METAL else one.astype(dt.float32) for one in tensors]
    size = given[0].size
    stride = _lanes()
    chosen, taken = _chosen(size)
    threads = len(chosen) * stride
    run = _kernel(tuple(one.dtype for one in given), has_base, stride, _part(size))
    count = 6 + 4 * (len(given) - 2) if has_base else 2 + 2 * (len(given) - 1)
    if not size:
        return np.zeros(count)
    partial = run(*given, size, grid=threads, shapes=[(threads, count)])
    total: NDArray[np.float64] = partial.numpy().sum(axis=0, dtype=np.float64)
    return total * np.float64(size / taken)


def _lanes() -> int:
    """How many threads share a block."""
    from lbrx.metal import context

    return context().info.by_kind(wide=1, simd=_SIMD_WIDTH)


def _on_cpu(tensors: Sequence[Tensor], has_base: bool) -> NDArray[np.float64]:
    arrays = [one.numpy().reshape(-1) for one in tensors]
    size = arrays[0].size
    if _part(size) > 1:
        (rows, _), whole = _chosen(size), size // _BLOCK
        rows = rows[rows < whole]
        arrays = [one[: whole * _BLOCK].reshape(whole, -1)[rows].reshape(-1) for one in arrays]
    return _in_numpy(arrays, has_base) * np.float64(size / max(arrays[0].size, 1))


def _in_numpy(arrays: Sequence[NDArray[np.generic]], has_base: bool) -> NDArray[np.float64]:
    merged, *rest = [one.astype(np.float64) for one in arrays]
    base = rest.pop(0) if has_base else None
    with np.errstate(over="ignore", invalid="ignore"):
        changes = rest if base is None else [one - base for one in rest]
        signs = np.stack([np.sign(one) for one in changes])
        conflicts = np.count_nonzero((signs > 0).any(0) & (signs < 0).any(0))
        if base is None:
            pairs = [(one @ one, merged @ one) for one in rest]
            return np.array([merged @ merged, conflicts, *sum(pairs, ())])
        delta = merged - base
        rows = [(x @ x, merged @ x, d @ d, delta @ d) for x, d in zip(rest, changes, strict=True)]
        own = [merged @ merged, conflicts, base @ base, merged @ base]
        return np.array([*own, delta @ delta, np.count_nonzero(delta), *sum(rows, ())])


@cache
def _kernel(dtypes: tuple[Dtype, ...], has_base: bool, stride: int, part: int) -> Kernel:
    """The kernel for one list of types: merged, the base if there is one, the parents. It takes
    the blocks of `_chosen`: a simdgroup each, or a thread without simd hardware."""
    names = [
        "m",
        *(["b"] if has_base else []),
        *(f"x{i}" for i in range(len(dtypes) - 1 - has_base)),
    ]
    parents = names[1 + has_base :]
    arguments = [f"device const {t.msl}* p_{n}" for t, n in zip(dtypes, names, strict=True)]
    sums = ["m * m", "conflict"] + (["b * b", "m * b", "dm * dm", "changed"] if has_base else [])
    for x in parents:
        sums += [f"{x} * {x}", f"m * {x}"]
        sums += [f"d{x} * d{x}", f"dm * d{x}"] if has_base else []
    values = [f"const float {n} = float(p_{n}[i]);" for n in names]
    changes = parents
    if has_base:
        values += [f"const float d{n} = {n} - b;" for n in ("m", *parents)]
        values.append("const float changed = dm != 0 ? 1.0f : 0.0f;")
        changes = [f"d{x}" for x in parents]
    low, high = changes[0], changes[0]
    for one in changes[1:]:
        low, high = f"min({low}, {one})", f"max({high}, {one})"
    values.append(f"const float conflict = ({low} < 0) & ({high} > 0) ? 1.0f : 0.0f;")
    steps = [f"s{k} += {term};" for k, term in enumerate(sums)]
    body = "\n    ".join(values + steps)
    source = f"""
kernel void merge_sums({", ".join(arguments)}, constant uint& size, device float* out,
                       uint thread_index [[thread_position_in_grid]]) {{
  const uint group = thread_index / {stride};
  const uint block = group * {part} + ((group * {_HASH}u) >> 16) % {part};
  const uint first = min(block * {_BLOCK} + thread_index % {stride}, size);
  const uint last = min((block + 1) * {_BLOCK}, size);
  float {", ".join(f"s{k} = 0" for k in range(len(sums)))};
  for (uint i = first; i < last; i += {stride}) {{
    {body}
  }}
  {" ".join(f"out[thread_index * {len(sums)} + {k}] = s{k};" for k in range(len(sums)))}
}}
"""
    return kernel(source, "merge_sums")
