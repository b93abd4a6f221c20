"""The presentation times of a clip's frames, found without decoding any."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from lbrx_video.ffmpeg import explained, opened


@dataclass(frozen=True)
class FrameIndex:
    """times: presentation times in units of `unit` seconds, in the order of presentation."""

    times: Sequence[int]
    unit: Fraction

    def __len__(self) -> int:
        return len(self.times)

    def number(self, time: int) -> int:
        """The number of the frame with a presentation time."""
        return bisect_left(self.times, time)

    def first_from(self, seconds: float | Fraction) -> int:
        """The number of the first frame that is presented at a time or later."""
        return bisect_left(self.times, self._origin + Fraction(seconds) / self.unit)

    def shown_at(self, seconds: float | Fraction) -> int:
        """The number of the frame that is seen at a time."""
        return max(bisect_right(self.times, self._origin + Fraction(seconds) / self.unit) - 1, 0)

    @property
    def last(self) -> Fraction:
        """When the last frame is presented, in seconds after the first."""
        return (self.times[-1] - self._origin) * self.unit if self.times else Fraction(0)

    @property
    def _origin(self) -> int:
        return self.times[0] if self.times else 0


def read_index(path: Path, stream: int) -> FrameIndex:
    """From the container's own table of an intra-only stream, else from all of its packets."""
    remedy = "copy the file again, or read it from the start"
    with explained(path, "the packets cannot be listed", remedy), opened(path) as file:
        video = file.streams.video[stream]
        unit = Fraction(video.time_base or 1)
        entries = video.index_entries
        if video.codec_context.codec.intra_only and len(entries) == video.frames > 0:
            return FrameIndex(sorted(entry.timestamp for entry in entries), unit)
        times = []
        for packet in file.demux(video):
            time = packet.dts if packet.pts is None else packet.pts
            if packet.size and time is not None and not (packet.is_discard or packet.is_corrupt):
                times.append(time)
    return FrameIndex(sorted(times), unit)
