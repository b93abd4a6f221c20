"""Limits, and checks that come before memory is allocated. Errors name file, tensor and field."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lbrx.arrays.shape import Shape
from lbrx.errors import FormatError
from lbrx.files.formats.descriptor import Encoding, FileRange, TensorInfo

MAX_HEADER = 100 << 20
"""The most bytes of JSON, of a zip directory or of a message without its tensors."""
MAX_TENSORS = 1 << 20
MAX_DIMS = 32
MAX_BYTES = (1 << 63) - 1
_LARGEST = 3.4028234663852886e38  # of float32, in which weights are computed
_SHOWN_NAME = 120
_LONGEST_NAME = 255  # bytes of a file's name, on all usual file systems
# A parsed item takes up to a hundred times the memory of its text.
_MAX_ITEMS = 8 << 20
# Half of a surrogate pair. Alone it is text that cannot be encoded.
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def bad(file: Path | str, problem: str, *, tensor: str = "", field: str = "") -> FormatError:
    """An error that names the file, the tensor and the field of a problem."""
    parts = [str(file)]
    if tensor:
        parts.append(f"tensor {shown(tensor)}")
    if field:
        parts.append(field)
    return FormatError(f"{': '.join(parts)}: {problem}")


def shown(name: str) -> str:
    """A name for a message: quoted, and cut to a line."""
    return repr(name if len(name) <= _SHOWN_NAME else name[: _SHOWN_NAME - 3] + "...")


def brief(value: object) -> str:
    """A value for a message. Containers are named by type, as their text can exceed all memory."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length():,} bits"
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return shown(value) if isinstance(value, str) else f"a {type(value).__name__}"


def finite(value: object, place: str) -> float:
    """A number that float32 can hold; an integer stays one. Raises FormatError for anything else:
    `place` is the file and the key."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return value
    problem = f"{brief(value)} is not a number that float32 can hold: write one that is"
    raise FormatError(f"{place}: {problem}")


def parse_json(file: Path, text: bytes, field: str = "JSON") -> Any:
    """Parse JSON. Raises FormatError for repeated keys, too many items and too deep nesting."""
    if text.count(b",") > _MAX_ITEMS or text.count(b"[") + text.count(b"{") > _MAX_ITEMS:
        raise bad(file, f"has more than {_MAX_ITEMS:,} items", field=field)
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique)
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise bad(file, "is nested too deeply", field=field) from None
    except ValueError as error:
        raise bad(file, f"is not valid JSON ({str(error)[:200]})", field=field) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        ((twice, _),) = counts.most_common(1)
        raise ValueError(f"the key {shown(twice)} appears twice")
    return result


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    size = file.stat().st_size
    if size > MAX_HEADER:
        raise bad(file, f"has {size:,} bytes, more than the {MAX_HEADER:,} that JSON may have")
    value = parse_json(file, file.read_bytes())
    if not isinstance(value, dict):
        raise bad(file, f"is a {type(value).__name__}, not an object", field="JSON")
    return value


def check_name(file: Path, name: str) -> None:
    """Raises FormatError for a name that cannot be encoded; pickles may contain such names."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise bad(
            file, "is a name with half of a surrogate pair, which no file can store", tensor=name
        ) from None


def check_path(path: Path) -> None:
    """Raises FormatError for a path that no file system has, as a name in it is too long."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError) as problem:
        reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
        raise FormatError(f"{shown(str(path))} is not a usable path: {reason}") from None


def is_file_name(name: str) -> bool:
    """Whether a text from a file can be the name of a file in the same folder."""
    if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        return False
    return len(name.encode(errors="surrogatepass")) <= _LONGEST_NAME


def checked_shape(file: Path, tensor: str, sizes: Iterable[object], field: str) -> Shape:
    """The sizes as a shape. Raises FormatError if one is not an integer or negative, or if the
    product exceeds any file."""
    shape = tuple(sizes)
    if len(shape) > MAX_DIMS:
        raise bad(file, f"{len(shape)} dimensions, at most {MAX_DIMS}", tensor=tensor, field=field)
    checked = tuple(n for n in shape if type(n) is int and 0 <= n <= MAX_BYTES)
    if len(checked) != len(shape):
        wrong = next(n for n in shape if type(n) is not int or not 0 <= n <= MAX_BYTES)
        raise bad(file, f"{brief(wrong)} is not a size", tensor=tensor, field=field)
    # A zero would hide impossible sizes from the product.
    if math.prod(n for n in checked if n) > MAX_BYTES:
        raise bad(
            file, f"{shown(str(checked))} is larger than any file", tensor=tensor, field=field
        )
    return checked


def check_blocks(file: Path, tensor: str, encoding: Encoding, shape: Shape) -> int:
    """The size of a tensor in bytes. Raises FormatError if its rows are not whole blocks."""
    if encoding.elements > 1 and (not shape or shape[-1] % encoding.elements):
        raise bad(
            file,
            f"rows of {shape[-1] if shape else 1} are not whole blocks of {encoding} "
            f"({encoding.elements} elements)",
            tensor=tensor,
            field="shape",
        )
    return encoding.bytes_for(math.prod(shape))


def check_disjoint(file: Path, tensors: Iterable[TensorInfo]) -> None:
    """Raises FormatError if two tensors share bytes."""
    ranges = [(t.source, t.name) for t in tensors if isinstance(t.source, FileRange)]
    ranges.sort(key=lambda pair: (pair[0].offset, pair[0].nbytes))
    end, last = 0, ""
    for source, name in ranges:
        if source.nbytes and source.offset < end:
            raise bad(file, f"overlaps tensor {shown(last)}", tensor=name, field="offset")
        if source.nbytes:
            end, last = source.offset + source.nbytes, name
