"""llama.cpp's importance matrices: the weight of errors in each column of a tensor.

The numbers are mean squares of the activations that a column was multiplied with. A file is a GGUF
with their sums and counts as tensors or, from older versions, a list of records.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.files.formats.checks import bad, shown
from lbrx.files.formats.containers import gguf
from lbrx.files.formats.containers.gguf import Cursor
from lbrx.files.formats.containers.gguf_constants import MAGIC
from lbrx.files.formats.descriptor import FileRange, ModelFiles, TensorInfo

_SUMS, _COUNTS = ".in_sum2", ".counts"
Importance = dict[str, NDArray[np.float32]]
"""Importance of columns by tensor; those of stacked tensors, such as experts, are concatenated."""


def read(path: Path) -> Importance:
    """Read a file of either kind."""
    if not path.is_file():
        raise FormatError(f"{path}: no such file")
    with path.open("rb") as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    result = _from_gguf(gguf.read(path)) if is_gguf else _from_records(path)
    if not result:
        raise bad(path, f"has no importance: neither tensors *{_SUMS} nor records")
    for name, values in result.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise bad(
                path, "has values that are negative or not finite", tensor=name, field="importance"
            )
    return result


def _from_gguf(files: ModelFiles) -> Importance:
    result = {}
    for name, sums in files.tensors.items():
        if not name.endswith(_SUMS):
            continue
        own = name.removesuffix(_SUMS)
        counts = files.tensors.get(own + _COUNTS)
        if counts is None or not counts.size or not sums.size or sums.size % counts.size:
            raise bad(files.path, f"has no matching {_COUNTS}", tensor=name)
        result[own] = _means(_floats(sums).reshape(counts.size, -1), _floats(counts)[:, None])
    return result


def _floats(info: TensorInfo) -> NDArray[Any]:
    source = info.source
    assert isinstance(source, FileRange)
    if info.encoding.name != "F32":
        raise bad(source.file, f"is {info.encoding}, not F32", tensor=info.name)
    return np.fromfile(source.file, "<f4", info.size, offset=source.offset)


def _means(sums: NDArray[Any], counts: NDArray[Any] | np.float32) -> NDArray[np.float32]:
    """The means; zero, which stands for unknown, where nothing was counted."""
    with np.errstate(all="ignore"):
        means = np.where(counts > 0, sums / counts, np.float32(0))
    return means.astype(np.float32).reshape(-1)


def _from_records(path: Path) -> Importance:
    """A count, then records of a name, a number of calls, and the means times that number."""
    if path.stat().st_size < 4:
        raise bad(path, "is cut short")
    with path.open("rb") as file:
        cursor = Cursor(path, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    result: Importance = {}
    for number in range(cursor.u32("number of records")):
        name = cursor.text(cursor.u32(f"record {number}"), f"name of record {number}")
        field = f"record {shown(name)}"
        (calls,) = np.frombuffer(cursor.take(4, field), "<i4")
        values = np.frombuffer(cursor.take(4 * cursor.u32(field), field), "<f4")
        if name in result or not values.size:
            raise bad(path, "is empty or occurs twice", field=field)
        result[name] = _means(values, np.float32(max(calls, 1)))
    return result
