"""Frames of ProRes files decoded by kernels, from the packets as they lie in the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lbrx.extension.errors import FormatError, LbrxError
from lbrx.extension.tensors import Bytes, MmapStorage, wait_for
from lbrx_video.clip_facts import ClipFacts, completed
from lbrx_video.completeness import DAMAGED, check_complete
from lbrx_video.decoding import FrameRange
from lbrx_video.ffmpeg import explained, opened
from lbrx_video.planes import Planes
from lbrx_video.prores import decoder as prores

if TYPE_CHECKING:
    from av.container import InputContainer

CODEC = "prores"


def check_decodable(facts: ClipFacts, device: str) -> None:
    """Raise LbrxError for a clip or a device that has no kernels."""
    if facts.codec != CODEC:
        raise LbrxError(
            f"{facts.path}: kernels decode ProRes, and this is {facts.codec}: "
            "give decoder='auto' or 'software'"
        )
    if device != "metal":
        raise LbrxError(f"{facts.path}: kernels decode on metal, not on {device!r}")


def _code(facts: ClipFacts) -> str:
    """The four-character code. Containers without codes say at least how many bits there are."""
    if facts.tag in prores.DEPTHS:
        return facts.tag
    return "apch" if facts.depth == 10 else "ap4h"


@dataclass
class _Group:
    """Packets of some frames. planes: what kernels decode from them, None if they must be decoded
    one at a time. problem: what was met in the file after these packets."""

    number: int
    packets: list[Bytes]
    problem: FormatError | None
    planes: Planes | None = None

    def settle(self) -> None:
        """Wait for the planes. Each wait tells of one damaged batch of this thread, whichever it
        is, so planes are right once a wait raises nothing."""
        while self.planes is not None:
            try:
                wait_for(self.planes.tensors[0].array.storage)
            except FormatError:
                self.planes = None
            else:
                return


def decoded_batches(
    facts: ClipFacts, stream: int, frames: int, wanted: FrameRange, alpha: bool, ahead: bool
) -> Iterator[Planes]:
    """Planes of up to `frames` frames each. A damaged file raises FormatError after the frames
    before the damage.

    ahead: whether the device gets a batch before the one before it has been checked.
    """
    decoding = _Decoding(facts, wanted.step, alpha)
    waiting: deque[_Group] = deque()
    for group in _groups(facts, stream, frames, wanted):
        waiting.append(group)
        decoding.begin(group)
        if not ahead or len(waiting) > 1:
            yield from decoding.finished(waiting)
    while waiting:
        yield from decoding.finished(waiting)


def _groups(facts: ClipFacts, stream: int, frames: int, wanted: FrameRange) -> Iterator[_Group]:
    packets = _packets(facts, stream, wanted)
    number = wanted.start
    problem: FormatError | None = None
    while problem is None:
        group: list[Bytes] = []
        try:
            group.extend(islice(packets, frames))
        except FormatError as error:  # the packets before it are in the group
            problem = error
        if group or problem is not None:
            yield _Group(number, group, problem)
        if len(group) < frames:
            return
        number += frames * wanted.step


def _packets(facts: ClipFacts, stream: int, wanted: FrameRange) -> Iterator[Bytes]:
    """The packets of a range: parts of the mapped file if the container has a table of them, else
    copies. Raises FormatError where the file ends too early."""
    with explained(facts.path, "the packets cannot be read", DAMAGED), opened(facts.path) as file:
        video = file.streams.video[stream]
        # The entries are FFmpeg's memory, so they are copied before the file is closed.
        entries = sorted((e.timestamp, e.pos, e.size) for e in video.index_entries)
        if len(entries) != video.frames or not entries:
            yield from _copied_packets(facts, stream, file, wanted)
            return
    data = MmapStorage(facts.path).host()
    for number in range(len(entries))[wanted.start : wanted.stop : wanted.step]:
        _, begin, size = entries[number]
        end = begin + size
        if end > len(data):
            raise FormatError(
                f"{facts.path}: video stream {stream} is truncated: frame {number} of "
                f"{len(entries)} is missing: {DAMAGED}"
            )
        yield data[begin:end]


def _copied_packets(
    facts: ClipFacts, stream: int, file: InputContainer, wanted: FrameRange
) -> Iterator[Bytes]:
    video = file.streams.video[stream]
    following, ended = wanted.start, None
    for number, packet in enumerate(packet for packet in file.demux(video) if packet.size):
        if wanted.is_over(number):
            return
        if packet.pts is not None:
            ended = (packet.pts + (packet.duration or 0)) * Fraction(video.time_base or 1)
        if wanted.has(number):
            yield np.frombuffer(bytes(packet), np.uint8)
            following = number + wanted.step
    if not wanted.is_over(following):
        step = wanted.step
        check_complete(facts.path, stream, video, following=following, step=step, ended=ended)


class _Decoding:
    """Decodes the groups of one range."""

    def __init__(self, facts: ClipFacts, step: int, alpha: bool) -> None:
        self._facts, self._step, self._alpha = facts, step, alpha
        self._first: Planes | None = None

    def begin(self, group: _Group) -> None:
        """Give a group to the device. Damaged headers are told when it is finished."""
        if group.packets:
            with suppress(FormatError):
                group.planes = self._planes(group.packets, group.number)

    def finished(self, waiting: deque[_Group]) -> Iterator[Planes]:
        """The planes of the first group. If it is damaged, those of the frames before the damage,
        one by one, then the error."""
        group = waiting.popleft()
        group.settle()
        if group.planes is not None:
            yield self._checked(group.planes, group.number)
        elif group.packets:
            for other in waiting:  # the damage may be theirs
                other.settle()
                other.planes = None
            yield from self._one_by_one(group)
        if group.problem is not None:
            raise group.problem

    def _one_by_one(self, group: _Group) -> Iterator[Planes]:
        for i, packet in enumerate(group.packets):
            number = group.number + i * self._step
            try:
                planes = self._planes([packet], number)
                wait_for(planes.tensors[0].array.storage)
            except FormatError as problem:
                raise FormatError(f"{self._facts.path}: {problem}") from problem
            yield self._checked(planes, number)

    def _planes(self, packets: Sequence[Bytes], number: int) -> Planes:
        facts = self._facts
        code = _code(facts)
        made = prores.decode(packets, codec=code, alpha=self._alpha, first_frame=number)
        color = completed(made.color, facts.color, made.format, made.height)
        return replace(made, color=color)

    def _checked(self, planes: Planes, number: int) -> Planes:
        """Planes that are like the first ones."""
        self._first = first = self._first or planes
        was, now = ((p.format.name, p.height, p.width) for p in (first, planes))
        if was != now:
            raise FormatError(
                f"{self._facts.path}: from frame {number} on frames are {now[2]} x {now[1]} "
                f"{now[0]}, and those before it {was[2]} x {was[1]} {was[0]}: read the parts "
                "separately, with start= and stop="
            )
        return planes
