"""Frames of ProRes files decoded by kernels, from the packets as they lie in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from lbrx.errors import FormatError, LbrxError
from lbrx.storage.array import Bytes
from lbrx.storage.mapped import MmapStorage
from lbrx.video.clip_facts import ClipFacts, completed
from lbrx.video.decoding import DAMAGED, FrameRange
from lbrx.video.ffmpeg import av, explained
from lbrx.video.planes import Planes
from lbrx.video.prores import decoder as prores

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


def decoded_batches(
    facts: ClipFacts, stream: int, frames: int, wanted: FrameRange, alpha: bool
) -> Iterator[Planes]:
    """Planes of up to `frames` frames each. A damaged file raises FormatError after the frames
    before the damage, or at the first wait for a batch if kernels find it."""
    packets = _packets(facts, stream, wanted)
    first: Planes | None = None
    number = wanted.start
    while True:
        group: list[Bytes] = []
        problem: FormatError | None = None
        try:
            group.extend(islice(packets, frames))
        except FormatError as error:  # the packets before it are in the group
            problem = error
        for planes in _decoded(facts, group, number, alpha):
            first = first or planes
            _check_same(facts, first, planes, number)
            yield planes
        if problem is not None:
            raise problem
        if len(group) < frames:
            return
        number += frames * wanted.step


def _packets(facts: ClipFacts, stream: int, wanted: FrameRange) -> Iterator[Bytes]:
    """The packets of a range: parts of the mapped file if the container has a table of them, else
    copies. Raises FormatError where the file ends too early."""
    with (
        explained(facts.path, "the packets cannot be read", DAMAGED),
        av.open(str(facts.path)) as file,
    ):
        video = file.streams.video[stream]
        # The entries are FFmpeg's memory, so they are copied before the file is closed.
        entries = sorted((e.timestamp, e.pos, e.size) for e in video.index_entries)
        if len(entries) != video.frames or not entries:
            every = (packet for packet in file.demux(video) if packet.size)
            for packet in islice(every, wanted.start, wanted.stop, wanted.step):
                yield np.frombuffer(bytes(packet), np.uint8)
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


def _decoded(
    facts: ClipFacts, packets: Sequence[Bytes], number: int, alpha: bool
) -> Iterator[Planes]:
    """One batch; if a packet's header is damaged, those before it one by one, then the error."""
    if not packets:
        return
    try:
        made = prores.decode(packets, codec=_code(facts), alpha=alpha, first_frame=number)
    except FormatError as problem:
        if len(packets) == 1:
            raise FormatError(f"{facts.path}: {problem}") from problem
        for i, packet in enumerate(packets):
            yield from _decoded(facts, [packet], number + i, alpha)
        return
    yield replace(made, color=completed(made.color, facts.color, made.format, made.height))


def _check_same(facts: ClipFacts, first: Planes, planes: Planes, number: int) -> None:
    was, now = ((p.format.name, p.height, p.width) for p in (first, planes))
    if was != now:
        raise FormatError(
            f"{facts.path}: after frame {number} frames change from {was[2]} x {was[1]} {was[0]} "
            f"to {now[2]} x {now[1]} {now[0]}: read the parts separately, with start= and stop="
        )
