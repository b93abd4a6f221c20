"""Builders of files from bytes, so that each field can be wrong."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

# safetensors


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file; `header` is a value for JSON, or raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(
    dtype: object = "F32", shape: object = (2, 3), offsets: object = (0, 24)
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# GGUF

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
NUMBERS = dict(
    zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIif?Qqd", strict=True)
)


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def pair(key: str, kind: int, value: Any) -> bytes:
    """A key with a number, a string, or raw bytes."""
    if isinstance(value, bytes):
        body = value
    elif kind == STRING:
        body = text(value)
    else:
        body = struct.pack("<" + NUMBERS[kind], value)
    return text(key) + struct.pack("<I", kind) + body


def array(kind: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + body


def tensor(
    name: str = "w",
    dims: Sequence[int] = (3, 2),
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


# Zip files of PyTorch and NumPy


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def global_name(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def pickled(value: object) -> bytes:
    """The instructions that push a plain value, without frame and end."""
    return pickle.dumps(value, 2)[2:-1]


def torch_tensor(
    shape: Sequence[Any],
    strides: Sequence[Any],
    *,
    storage: str = "FloatStorage",
    key: str = "0",
    offset: int = 0,
    count: int = 6,
) -> bytes:
    """The instructions that push a tensor as torch.save writes it."""
    reference = b"(" + pickled("storage") + global_name("torch", storage) + pickled(key)
    reference += pickled("cpu") + pickled(count) + b"tQ"
    arguments = b"(" + reference + pickled(offset) + pickled(tuple(shape)) + pickled(tuple(strides))
    arguments += b"\x89" + global_name("collections", "OrderedDict") + b")Rt"
    return global_name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def state_dict(tensors: Mapping[str, bytes]) -> bytes:
    items = b"".join(pickled(name) + body for name, body in tensors.items())
    return b"\x80\x02}(" + items + b"u."


def torch_file(pickle_bytes: bytes, storages: Mapping[str, bytes] | None = None) -> bytes:
    data = {"0": struct.pack("<6f", *range(6))} if storages is None else storages
    members = {
        "archive/data.pkl": pickle_bytes,
        "archive/byteorder": b"little",
        "archive/version": b"3\n",
    }
    return zipped(members | {f"archive/data/{key}": value for key, value in data.items()})


def npy(
    descr: str = "'<f4'", shape: str = "(2, 3)", data: bytes = bytes(24), order: str = "False"
) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


# ONNX


def varint(value: int) -> bytes:
    result = b""
    value &= (1 << 64) - 1
    while value >= 0x80:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_tensor(dims: Sequence[int], kind: int = 1, *fields: bytes, name: str = "w") -> bytes:
    return b"".join(field(1, n) for n in dims) + field(2, kind) + field(8, name) + b"".join(fields)


def onnx(*tensors: bytes) -> bytes:
    graph = field(2, "graph") + b"".join(field(5, tensor) for tensor in tensors)
    return field(1, 9) + field(2, "attacker") + field(7, graph)
