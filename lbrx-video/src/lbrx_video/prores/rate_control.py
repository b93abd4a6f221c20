"""Chooses the quantization of slices, so that frames have the wanted size or less.

All slices of a frame get the finest scale with which the frame is small enough, and as many of them
as possible the next finer one: one quantization for a whole frame has the least error for its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

COARSEST = 224  # coded scale of quantization
SAMPLED = 8  # one of so many slices is looked at first
GOLDEN = 0.6180339887498949

Numbers = NDArray[np.int64]
Count = Callable[[Numbers], Numbers]
"""Bits of slices by their scales; a scale of 0 leaves a slice out, and its bits are 0."""


def chosen_scales(count: Count, frames: Numbers, budgets: Numbers) -> tuple[Numbers, Numbers]:
    """The coded scale of each slice, and the bits it has with it.

    count: measures slices on the device.
    frames: the frame of each slice.
    budgets: bits of each frame.
    """
    sample = np.arange(len(frames)) % SAMPLED == 0
    # Each frame has a slice in the sample, if only its first one.
    sample |= np.diff(frames, prepend=-1) != 0
    share = np.bincount(frames[sample], minlength=len(budgets)) / np.bincount(frames)
    search = _Search(count, frames)
    guess = search.finest(budgets * share, sample, np.ones_like(budgets))
    coarse = search.finest(budgets, np.ones_like(sample), guess)
    return _refined(search, frames, budgets, coarse)


class _Search:
    """Measures frames at scales, each slice at most once for each scale."""

    def __init__(self, count: Count, frames: Numbers) -> None:
        self._count = count
        self._frames = frames
        self._known = np.full((len(frames), COARSEST + 1), -1, np.int32)

    def bits(self, scales: Numbers, slices: NDArray[np.bool_]) -> Numbers:
        """Bits of each of the given slices with the scale of its frame, 0 for the others."""
        wanted = scales[self._frames]
        every = np.arange(len(wanted))
        missing = slices & (self._known[every, wanted] < 0)
        if missing.any():
            found = self._count(np.where(missing, wanted, 0))
            self._known[every[missing], wanted[missing]] = found[missing]
        return np.where(slices, self._known[every, wanted], 0)

    def finest(self, budgets: NDArray[Any], slices: NDArray[np.bool_], guess: Numbers) -> Numbers:
        """The finest scale of each frame with which the given slices are within its budget, else
        the coarsest scale."""
        low, high = np.zeros_like(guess), np.full_like(guess, COARSEST)
        tried, step = guess, np.ones_like(guess)
        while (high - low > 1).any():
            sizes = np.bincount(self._frames, self.bits(tried, slices), len(guess))
            fits = sizes <= budgets
            done = high - low <= 1
            high = np.where(~done & fits, np.minimum(high, tried), high)
            low = np.where(~done & ~fits, np.maximum(low, tried), low)
            # Steps away from the guess grow until both sides are known, then they halve.
            away = np.where(fits, tried - step, tried + step)
            both = (low > 0) & (high < COARSEST)
            tried = np.clip(np.where(both, (low + high) // 2, away), low + 1, high - 1)
            tried, step = np.maximum(tried, 1), step * 2
        return high


def _refined(
    search: _Search, frames: Numbers, budgets: Numbers, coarse: Numbers
) -> tuple[Numbers, Numbers]:
    """Spend what is left of the budgets on slices with the next finer scale, spread over the
    frame."""
    every = np.ones(len(frames), bool)
    fine = np.maximum(coarse - 1, 1)
    sizes, finer_sizes = (search.bits(scales, every) for scales in (coarse, fine))
    left = budgets - np.bincount(frames, sizes, len(budgets)).astype(np.int64)
    order = np.lexsort((np.arange(len(frames)) * GOLDEN % 1, frames))
    total = np.cumsum(np.maximum(finer_sizes - sizes, 0)[order])
    starts = np.searchsorted(frames, np.arange(len(budgets)))
    before = np.where(starts > 0, total[starts - 1], 0)
    is_finer = np.zeros(len(frames), bool)
    is_finer[order] = total - before[frames] <= left[frames]
    scales = np.where(is_finer, fine[frames], coarse[frames])
    return scales, np.where(is_finer, finer_sizes, sizes)
