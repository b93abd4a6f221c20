"""The six profiles: rates and quantization matrices of the encoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LARGEST_WEIGHT = 63


@dataclass(frozen=True)
class Profile:
    """What the encoder makes of a profile.

    bits: the most bits of a macroblock of 16 x 16 pixels on average: those of the profile's usual
        rate at 1920 x 1080.
    luma, chroma: how fast the weights of quantization grow with the frequency.
    """

    codec: str
    depth: int
    chroma_444: bool
    bits: int
    luma: float
    chroma: float
    least_weight: int = 4

    def matrix(self, chroma: bool) -> bytes:
        """The 64 weights, row by row."""
        slope = self.chroma if chroma else self.luma
        row, column = np.mgrid[:8, :8]
        weights = self.least_weight + np.rint(slope * np.maximum(row + column - 1, 0))
        return bytes(np.minimum(weights, LARGEST_WEIGHT).astype(np.uint8))


PROFILES = {
    profile.codec: profile
    for profile in (
        Profile("apco", 10, False, 194, 3.0, 3.5),
        Profile("apcs", 10, False, 440, 1.0, 1.0),
        Profile("apcn", 10, False, 632, 0.5, 0.5),
        Profile("apch", 10, False, 950, 0.1, 0.1),
        Profile("ap4h", 12, True, 1425, 0.1, 0.1),
        Profile("ap4x", 12, True, 2137, 0.0, 0.0, least_weight=2),
    )
}
"""By the stream's four-character code."""
