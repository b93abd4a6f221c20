"""From a path to what its files describe, whatever the format."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from lbrx.errors import FormatError
from lbrx.formats.checks import bad
from lbrx.formats.containers import huggingface
from lbrx.formats.containers.zip_archive import EMPTY_ZIP_MAGIC, ZIP_MAGIC, member_names
from lbrx.formats.descriptor import Format, ModelFiles

_HEAD = 16
# Module and function. A format is imported with its first file: a start needs one of them.
_READERS = {
    Format.SAFETENSORS: ("safetensors", "read"),
    Format.GGUF: ("gguf", "read"),
    Format.PYTORCH: ("pytorch", "read"),
    Format.NPZ: ("npz", "read"),
    Format.NPY: ("npz", "read_array"),
    Format.ONNX: ("onnx", "read"),
}


def read(path: str | Path) -> ModelFiles:
    """The model at a path: a file of any format, an index of shards, or a folder."""
    where = Path(path)
    if where.is_dir():
        return huggingface.read_folder(where, read_file)
    if not where.is_file():
        raise FormatError(f"{where}: no such file or folder")
    if where.name.endswith(".index.json"):
        return huggingface.read_index(where, read_file)
    return read_file(where)


def read_file(path: Path) -> ModelFiles:
    module, name = _READERS[detect(path)]
    reader: Callable[[Path], ModelFiles] = getattr(
        import_module(f"lbrx.formats.containers.{module}"), name
    )
    return reader(path)


def detect(path: Path) -> Format:
    """What a file is by its first bytes; its name says nothing."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"GGUF"):
        return Format.GGUF
    from lbrx.formats.containers import npz, onnx

    if head.startswith((ZIP_MAGIC, EMPTY_ZIP_MAGIC)):
        return _detect_zip(path)
    if head.startswith(npz.NPY_MAGIC):
        return Format.NPY
    if head[8:9] == b"{":
        return Format.SAFETENSORS
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise bad(
            path,
            "is a bare pickle, as torch wrote before version 1.6: load it with torch and save it "
            "again, or convert it to safetensors",
        )
    if head and onnx.is_model(path):
        return Format.ONNX
    raise bad(
        path,
        f"starts with {head[:8]!r}: it is neither safetensors, GGUF, a zip file of PyTorch or "
        "NumPy, .npy nor ONNX" + ("" if head else " but empty"),
    )


def _detect_zip(path: Path) -> Format:
    names = member_names(path)
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return Format.PYTORCH
    if not names or any(name.endswith(".npy") for name in names):
        return Format.NPZ
    raise bad(path, "is a zip file with neither a data.pkl of PyTorch nor an .npy of NumPy")
