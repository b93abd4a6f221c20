"""Whether a file that was read to its end has all the frames that it should have."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lbrx.extension.errors import FormatError

if TYPE_CHECKING:
    from av.video.stream import VideoStream

DAMAGED = "copy the file again, or use the frames before it"
LATE = Fraction(3, 2)  # frames by which the last frame may end before a stream's stated duration
SEGMENT, CLUSTER, VOID = 0x18538067, 0x1F43B675, 0xEC  # Matroska's elements


def check_complete(
    path: Path,
    stream: int,
    video: VideoStream,
    *,
    following: int,
    step: int,
    ended: Fraction | None,
    discarded: int = 0,
) -> None:
    """Raise FormatError if a file says that it has more frames than were read.

    following: the frame that would be next, `step` after the last one. ended: when the last one
    ends, in seconds. discarded: frames that the container counts but does not show.
    """
    where = f"{path}: video stream {stream} is truncated:"
    stated = video.frames - discarded
    if stated > 0 and following < stated:
        raise FormatError(f"{where} frame {following} of {stated} is missing: {DAMAGED}")
    names = video.container.format.name.split(",")
    if reason := next((check(path) for name, check in LAYOUTS.items() if name in names), None):
        raise FormatError(f"{where} {reason}; frame {following} would be next: {DAMAGED}")
    if stated > 0:
        return
    duration = _tagged_duration(video.metadata.get("DURATION", ""))
    rate = video.average_rate
    if ended is None or duration is None or not rate:
        return
    if ended + (LATE + step - 1) / rate < duration:
        raise FormatError(
            f"{where} it ends after {float(ended):.3f} of {float(duration):.3f} seconds: {DAMAGED}"
        )


def _tagged_duration(text: str) -> Fraction | None:
    """Matroska's statistics tag, such as 00:00:01.250000000; None for anything else."""
    parts = text.split(":")
    if len(parts) != 3:
        return None
    try:
        hours, minutes, seconds = (Fraction(part) for part in parts)
    except ValueError:
        return None
    return (hours * 60 + minutes) * 60 + seconds


def unfinished(path: Path) -> str | None:
    """What shows that a Matroska file is cut short, or that its writer has not finished it.

    Streams have elements of unknown size, and end after one that is whole. Writers of files begin
    with the same, but keep room for the table of contents, which they fill at the end.
    """
    with path.open("rb", buffering=0) as file:
        end, at, parent = os.fstat(file.fileno()).st_size, 0, 0
        while at < end:
            found = _element(file, at)
            if found is None:
                return "the file ends within an element"
            code, size, begin = found
            if parent == SEGMENT and code == VOID:
                return "the file has not been finished by its writer"
            if size is None and code not in (SEGMENT, CLUSTER):
                return None  # not as Matroska defines it: nothing is known
            parent, at = (code, begin) if size is None else (0, begin + size)
    return None if at == end else _lacks(at - end)


def cut_in_a_fragment(path: Path) -> str | None:
    """What shows that an MP4 or MOV file of fragments, which count their frames one by one, is cut
    short. None for other files, whose header counts all frames."""
    has_fragments, at = False, 0
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        while at + 8 <= end:
            file.seek(at)
            head = file.read(16)
            size = int.from_bytes(head[:4], "big")
            if size == 1:
                size = int.from_bytes(head[8:], "big")
            if size < 8:
                return None  # the last box, up to the end, or padding
            has_fragments |= head[4:8] == b"moof"
            at += size
    if not has_fragments or at == end:
        return None
    return "the file ends within a box" if at < end else _lacks(at - end)


def _lacks(count: int) -> str:
    return f"the file lacks {count:,} bytes at its end"


def _element(file: IO[bytes], at: int) -> tuple[int, int | None, int] | None:
    """An element's identifier, its size if that is known, and the place of its contents."""
    file.seek(at)
    head = file.read(12)
    width = 9 - head[0].bit_length()
    length = 9 - head[width].bit_length() if len(head) > width else 0
    if width > 4 or not length or len(head) < width + length:
        return None
    size = int.from_bytes(head[width : width + length], "big") & ((1 << 7 * length) - 1)
    unknown = size == (1 << 7 * length) - 1
    return int.from_bytes(head[:width], "big"), None if unknown else size, at + width + length


# By FFmpeg's name of the container.
LAYOUTS = {"matroska": unfinished, "mp4": cut_in_a_fragment}
