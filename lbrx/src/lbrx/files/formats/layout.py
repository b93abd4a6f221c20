"""Files laid out before they are written, so that tensors can be written in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from lbrx.files.formats.descriptor import Outgoing, OutgoingInfo
from lbrx.files.formats.output import write_tensor


class Placed(NamedTuple):
    """A tensor and the offset of its first byte."""

    tensor: OutgoingInfo
    offset: int


@dataclass(frozen=True)
class FileLayout:
    """The layout of a file of tensors. Bytes that are not written are zeros."""

    nbytes: int
    tensors: tuple[Placed, ...]
    frame: Callable[[IO[bytes]], Iterable[tuple[int, bytes]]]
    """The rest of the file as (offset, bytes). It is called with the file after all tensors have
    been written, open for reading: zip files have checksums."""


def write_frame(file: IO[bytes], layout: FileLayout) -> None:
    """Write the rest of a file whose tensors have been written."""
    file.truncate(layout.nbytes)
    for offset, part in layout.frame(file):
        file.seek(offset)
        file.write(part)


def write_file(file: IO[bytes], layout: FileLayout, tensors: Sequence[Outgoing]) -> None:
    """Write a whole file, one tensor after the other."""
    contents = {tensor.name: tensor for tensor in tensors}
    for tensor, offset in layout.tensors:
        file.seek(offset)
        write_tensor(file, contents[tensor.name])
    write_frame(file, layout)
