"""NumPy's .npy and .npz files. Only arrays of numbers are read, not objects or records."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.shape import Shape, contiguous_strides
from lbrx.errors import DtypeError
from lbrx.files.formats.checks import bad, check_blocks, checked_shape
from lbrx.files.formats.containers.zip_archive import ZipMember, members
from lbrx.files.formats.containers.zip_writer import (
    StoredMember,
    directory,
    directory_size,
    local_header,
    place,
)
from lbrx.files.formats.descriptor import (
    Encoding,
    Format,
    ModelFiles,
    OutgoingInfo,
    TensorInfo,
    plain,
)
from lbrx.files.formats.layout import FileLayout, Placed

NPY_MAGIC = b"\x93NUMPY"
_MAX_NPY_HEADER = 1 << 12
_SUFFIX = ".npy"
# ml_dtypes' bfloat16 has no name in NumPy's notation and is stored as two opaque bytes.
_OPAQUE_BFLOAT16 = "|V2"
# The header is a Python literal. NumPy evaluates it; a pattern is enough.
_DICTIONARY = re.compile(
    r"\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(True|False),"
    r"\s*'shape':\s*\(\s*((?:[0-9]+\s*,\s*)*(?:[0-9]+)?)\s*\),?\s*\}",
    re.ASCII,  # int() does not take all of Unicode's white space
)
_NUMBERS = re.compile(r"[<|][biuf][0-9]{1,2}")
_MAX_NAME = (1 << 16) - 1 - len(_SUFFIX)
_ALIGNMENT = 64
_READ = 1 << 22


def read(path: Path) -> ModelFiles:
    """Describe every array of an .npz."""
    arrays = [member for member in members(path).values() if member.name.endswith(_SUFFIX)]
    tensors = {}
    with path.open("rb") as file:
        for member in arrays:
            name = member.name.removesuffix(_SUFFIX)
            tensors[name] = _array(file, name, member)
    return ModelFiles(path, Format.NPZ, tensors)


def read_array(path: Path) -> ModelFiles:
    """Describe the array of an .npy, under the name of the file."""
    size = path.stat().st_size
    whole = ZipMember(path, path.name, 0, size, size, is_deflated=False)
    with path.open("rb") as file:
        return ModelFiles(path, Format.NPY, {path.stem: _array(file, path.stem, whole)})


def _array(file: IO[bytes], name: str, member: ZipMember) -> TensorInfo:
    path, head = member.file, member.head(file, _MAX_NPY_HEADER + 12)
    descr, is_fortran, sizes, start = _header(path, name, head)
    encoding = _encoding(path, name, descr)
    shape = checked_shape(path, name, sizes, "shape")
    nbytes = check_blocks(path, name, encoding, shape)
    if start + nbytes != member.nbytes:
        problem = (
            f"{encoding} of shape {shape} takes {nbytes:,} bytes, not {member.nbytes - start:,}"
        )
        raise bad(path, problem, tensor=name, field="shape")
    strides = None
    if is_fortran and len(shape) > 1:
        strides = contiguous_strides(shape[::-1])[::-1]
    return TensorInfo(name, encoding, shape, member.range(start, nbytes), strides)


def _header(path: Path, name: str, head: bytes) -> tuple[str, bool, Shape, int]:
    """The type, order and shape of an array, and the offset of its first byte."""
    if not head.startswith(NPY_MAGIC) or len(head) < 12:
        raise bad(path, "is not an .npy array", tensor=name, field="magic")
    width = 2 if head[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(head[8:start], "little")
    if head[6] not in (1, 2, 3) or length > _MAX_NPY_HEADER or start + length > len(head):
        problem = f"version {head[6]} and length {length:,} are not those of an .npy file"
        raise bad(path, problem, tensor=name, field="header")
    text = head[start : start + length].decode("utf-8" if head[6] == 3 else "latin-1", "replace")
    found = _DICTIONARY.fullmatch(text.strip())
    if not found:
        problem = f"{text[:60]!r} is not {{descr, fortran_order, shape}} of an array of numbers"
        raise bad(path, problem, tensor=name, field="header")
    sizes = tuple(int(n) for n in found[3].split(",") if n.strip())
    return found[1], found[2] == "True", sizes, start + length


def _encoding(path: Path, name: str, descr: str) -> Encoding:
    if descr[1:] == _OPAQUE_BFLOAT16[1:]:
        return plain(dt.bfloat16)
    if _NUMBERS.fullmatch(descr):  # np.dtype evaluates parts of other texts
        try:
            return plain(dt.parse(np.dtype(descr)))
        except (DtypeError, TypeError):
            pass
    raise bad(
        path,
        f"{descr[:60]!r} is not read: only little-endian numbers are supported",
        tensor=name,
        field="descr",
    )


def layout(path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, str]) -> FileLayout:
    """Lay out an uncompressed .npz, with arrays at multiples of 64 bytes so that they can be
    mapped."""
    if metadata:
        raise bad(path, "an .npz stores no metadata: write safetensors, or leave it out")
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors) or any("\0" in name for name in names):
        raise bad(path, "a name occurs twice or has a zero byte, which ends a name in a zip file")
    if long := [name for name in names if len(name.encode()) > _MAX_NAME]:
        raise bad(path, f"a zip file's names have at most {_MAX_NAME} bytes", tensor=long[0])
    heads = [_npy_header(path, tensor) for tensor in tensors]
    stored: list[StoredMember] = []
    for tensor, head in zip(tensors, heads, strict=True):
        start = stored[-1].end if stored else 0
        size = len(head) + tensor.nbytes
        stored.append(place(tensor.name + _SUFFIX, start, size, _ALIGNMENT))
    end = stored[-1].end if stored else 0

    def frame(file: IO[bytes]) -> list[tuple[int, bytes]]:
        crcs = [_checksum(file, member, head) for member, head in zip(stored, heads, strict=True)]
        parts = [(m.start, local_header(m, crc)) for m, crc in zip(stored, crcs, strict=True)]
        parts += [(m.content, head) for m, head in zip(stored, heads, strict=True)]
        return [*parts, (end, directory(stored, crcs, end))]

    starts = [m.content + len(head) for m, head in zip(stored, heads, strict=True)]
    return FileLayout(end + directory_size(stored), tuple(map(Placed, tensors, starts)), frame)


def _checksum(file: IO[bytes], member: StoredMember, head: bytes) -> int:
    """The checksum of a member whose array has been written and whose header has not."""
    crc, at = zlib.crc32(head), member.content + len(head)
    file.seek(at)
    for start in range(at, member.end, _READ):
        crc = zlib.crc32(file.read(min(_READ, member.end - start)), crc)
    return crc


def _npy_header(path: Path, tensor: OutgoingInfo) -> bytes:
    dtype = tensor.encoding.dtype
    if dtype is None:
        problem = f"NumPy has no type for {tensor.encoding}: decode it, or write GGUF"
        raise bad(path, problem, tensor=tensor.name)
    descr = _OPAQUE_BFLOAT16 if dtype is dt.bfloat16 else dtype.numpy.str
    text = str({"descr": descr, "fortran_order": False, "shape": tensor.shape}).encode()
    text += b" " * (-(len(text) + 11) % _ALIGNMENT) + b"\n"
    return NPY_MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text
