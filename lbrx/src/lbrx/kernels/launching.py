"""Grids and threadgroups of kernels, and the sizes that most of them share."""

from __future__ import annotations

import math

from lbrx.arrays.shape import Shape
from lbrx.metal.commands import Size
from lbrx.program.chunked_program import CHUNK_BYTES as CHUNK_BYTES
from lbrx.program.chunked_program import GROUP as GROUP
from lbrx.program.element_program import GRID_AXES

SMALL_GROUP = 64  # threads, where each has much to do
SIMD_WIDTH = 32


def grid_over(shape: Shape) -> Size:
    """The last axis along x, the one before along y, all others along z."""
    lengths = [*reversed(shape), 1, 1]
    return lengths[0], lengths[1], math.prod(lengths[GRID_AXES - 1 :])


def group_of(grid: Size) -> Size:
    """A threadgroup for a grid of elements: along x, then along y."""
    x = min(grid[0], GROUP)
    return x, min(grid[1], max(GROUP // x, 1)), 1


def chunk_grid(shape: Shape, count: int = 1) -> tuple[Size, Size]:
    """Threads for a shape whose last axis counts chunks, and threadgroups that divide them.

    Each thread takes a chunk of `count` rows.
    """
    x, y, z = grid_over(shape)
    y = -(-y // count)
    across = min(1 << (x - 1).bit_length(), GROUP)
    down = GROUP // across
    return (-(-x // across) * across, -(-y // down) * down, z), (across, down, 1)
