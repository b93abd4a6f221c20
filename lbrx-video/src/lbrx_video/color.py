"""What the code values of a video mean: matrix, range, transfer function and chroma siting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNSPECIFIED = 2
HIGH_DEFINITION = 720  # rows from which untagged video is taken as BT.709

# Names of the code points of ITU-T H.273. Several code points share one definition.
MATRICES = {
    "rgb": (0,),
    "bt709": (1,),
    "fcc": (4,),
    "bt601": (5, 6),
    "smpte240m": (7,),
    "bt2020": (9,),
}
TRANSFERS = {
    "bt709": (1, 6, 14, 15),
    "gamma22": (4,),
    "gamma28": (5,),
    "linear": (8,),
    "srgb": (13,),
    "pq": (16,),
    "hlg": (18,),
}
PRIMARIES = {
    "bt709": (1,),
    "bt601-625": (5,),
    "bt601-525": (6,),
    "bt2020": (9,),
    "p3-dci": (11,),
    "p3-d65": (12,),
}
# Weights of red and blue in luma, (Kr, Kb).
LUMA_WEIGHTS = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "fcc": (0.30, 0.11),
    "smpte240m": (0.212, 0.087),
}
# Where chroma samples lie: (horizontally, vertically) on the first luma sample they belong to
# (False), or in the middle of all of them (True).
SITINGS = {
    "left": (False, True),
    "center": (True, True),
    "topleft": (False, False),
    "top": (True, False),
}


def assumed_matrix(rows: int) -> int:
    """The matrix of untagged YCbCr video: BT.709, or BT.601 by the code that QuickTime knows."""
    return 1 if rows >= HIGH_DEFINITION else 6


def assumed_primaries(matrix: int, rows: int) -> int:
    """The primaries of video that states none: those that FFmpeg and mpv take for its matrix, and
    for the rows of the two television systems."""
    match name_of(MATRICES, matrix):
        case "bt2020":
            return 9
        case "bt601":
            return {576: 5, 480: 6, 486: 6}.get(rows, 1)
    return 1


def name_of(table: Mapping[str, tuple[int, ...]], code: int) -> str | None:
    """The name of a code point of H.273; None if it is unspecified or not in the table."""
    return next((name for name, codes in table.items() if code in codes), None)


@dataclass(frozen=True)
class Color:
    """How code values are to be understood. Code points are those of ITU-T H.273; 2 is unspecified.

    siting: where chroma samples lie: "left", "center", "topleft" or "top".
    """

    primaries: int = UNSPECIFIED
    transfer: int = UNSPECIFIED
    matrix: int = UNSPECIFIED
    full_range: bool = False
    siting: str = "left"

    @property
    def matrix_name(self) -> str | None:
        """The matrix by name, such as "bt709"; None if lbrx has no name for it."""
        return name_of(MATRICES, self.matrix)

    @property
    def transfer_name(self) -> str | None:
        """The transfer function by name, such as "pq"; None if lbrx has no name for it."""
        return name_of(TRANSFERS, self.transfer)

    @property
    def primaries_name(self) -> str | None:
        """The primaries by name, such as "bt2020"; None if lbrx has no name for them."""
        return name_of(PRIMARIES, self.primaries)

    def __str__(self) -> str:
        parts = (
            f"matrix {self.matrix_name or 'unspecified'}",
            f"transfer {self.transfer_name or 'unspecified'}",
            f"primaries {self.primaries_name or 'unspecified'}",
            f"{'full' if self.full_range else 'limited'} range",
            f"chroma {self.siting}",
        )
        return ", ".join(parts)


BT709 = Color(primaries=1, transfer=1, matrix=1)
"""High definition: what the writer uses unless it is told otherwise."""
