"""The file formats that lbrx reads and writes, and `register`, which adds one.

A format's module is imported with its first file, so the functions of the table below import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.entry_points import Registry
from lbrx.errors import FormatError
from lbrx.files.formats.checks import bad
from lbrx.files.formats.containers.zip_archive import EMPTY_ZIP_MAGIC, ZIP_MAGIC, member_names
from lbrx.files.formats.conventions import GGUF, HUGGING_FACE, MLX, Conventions
from lbrx.files.formats.descriptor import FLOAT8, Format, ModelFiles, OutgoingInfo
from lbrx.files.formats.layout import FileLayout
from lbrx.quant.gguf import BY_NAME as GGUF_TYPES

HEAD = 16
"""The number of a file's first bytes that `FileFormat.matches` is given."""

LayoutFunction = Callable[[Path, Sequence[OutgoingInfo], Mapping[str, Any]], FileLayout]
ShardsFunction = Callable[
    [Path, Sequence[OutgoingInfo], Mapping[str, Any], int],
    tuple[dict[str, FileLayout], dict[str, bytes]],
]


@dataclass(frozen=True)
class FileFormat:
    """How files of one format are recognised, read and written."""

    name: str
    matches: Callable[[Path, bytes], bool] | None = None
    """Whether a file is of this format, by its path and its first `HEAD` bytes."""
    read: Callable[[Path], ModelFiles] | None = None
    """Describe a file without reading its tensors; raises FormatError for a damaged one."""
    patterns: tuple[str, ...] = ()
    """The names of such files in a folder, as `Path.glob` takes them."""
    extension: str = ""
    """The end of a path that stands for this format when a file is written."""
    layout: LayoutFunction | None = None
    """Lay out one file; None if the format is not written as one file."""
    shards: ShardsFunction | None = None
    """Lay out the files of a folder with at most so many bytes each, and the folder's other files;
    None if the format is not written as a folder."""
    holds: Callable[[str], bool] = lambda encoding: False
    """Whether the format can store a quantized encoding, given by its name in upper case."""
    conventions: Conventions = HUGGING_FACE
    """How its files say what is in a model."""
    has_neighbours: bool = False
    """Whether config.json and the tokenizer may be beside a file."""
    claims: Callable[[ModelFiles, Mapping[str, Any]], bool] = lambda files, config: False
    """Whether a model that was read as another format is of this one, by its config.json."""
    marks: Callable[[ModelFiles], Mapping[str, Any]] = lambda files: {}
    """The metadata of weights that are made of a model's, if they do not describe the model."""

    @property
    def is_written(self) -> bool:
        """Whether lbrx writes the format."""
        return self.layout is not None or self.shards is not None

    def is_folder(self, path: Path) -> bool:
        """Whether this format is written to a path as a folder."""
        return self.shards is not None and (self.layout is None or path.suffix != self.extension)


FORMATS: Registry[FileFormat] = Registry("lbrx.formats")
"""Every format by its name, in the order in which files are compared with them."""


def register(format: FileFormat) -> FileFormat:
    """Add a format. Files are compared with it before the formats that were added earlier."""
    if format.name in FORMATS:
        raise FormatError(f"the file format {format.name!r} exists already: give another name")
    earlier = dict(FORMATS)
    FORMATS.clear()
    FORMATS.update({format.name: format, **earlier})
    return format


def find(name: str) -> FileFormat:
    """The format of a name."""
    if name not in FORMATS:
        raise FormatError(
            f"{name!r} is not a file format: give one of {', '.join(FORMATS.whole())}"
        )
    return FORMATS[name]


def conventions_of(files: ModelFiles) -> Conventions:
    """The conventions that a model's files follow."""
    return find(files.format).conventions


def detect(path: Path) -> FileFormat:
    """The format of a file by its content; its name does not matter."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    for format in FORMATS.whole().values():
        if format.matches is not None and format.matches(path, head):
            return format
    raise bad(path, _unknown(head))


def _unknown(head: bytes) -> str:
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return (
            "is a bare pickle, as torch wrote before version 1.6: load it with torch and save it "
            "again, or convert it to safetensors"
        )
    if _is_zip(head):
        return "is a zip file with neither a data.pkl of PyTorch nor an .npy of NumPy"
    if not head:
        return "is empty"
    known = ", ".join(format.name for format in FORMATS.whole().values() if format.matches)
    return f"starts with {head[:8]!r}: it is not a file of {known}"


# ---- the formats of this package ----


def _is_zip(head: bytes) -> bool:
    return head.startswith((ZIP_MAGIC, EMPTY_ZIP_MAGIC))


def _is_pytorch(path: Path, head: bytes) -> bool:
    return _is_zip(head) and any(
        name == "data.pkl" or name.endswith("/data.pkl") for name in member_names(path)
    )


def _is_npz(path: Path, head: bytes) -> bool:
    if not _is_zip(head):
        return False
    names = member_names(path)
    return not names or any(name.endswith(".npy") for name in names)


def _is_onnx(path: Path, head: bytes) -> bool:
    from lbrx.files.formats.containers import onnx

    return bool(head) and onnx.is_model(path)


def _read_gguf(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import gguf

    return gguf.read(path)


def _read_pytorch(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import pytorch

    return pytorch.read(path)


def _read_npz(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import npz

    return npz.read(path)


def _read_npy(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import npz

    return npz.read_array(path)


def _read_safetensors(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import safetensors

    return safetensors.read(path)


def _read_onnx(path: Path) -> ModelFiles:
    from lbrx.files.formats.containers import onnx

    return onnx.read(path)


def _gguf_layout(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]
) -> FileLayout:
    from lbrx.files.formats.containers import gguf_writer

    return gguf_writer.layout(path, tensors, metadata)


def _npz_layout(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]
) -> FileLayout:
    from lbrx.files.formats.containers import npz

    return npz.layout(path, tensors, metadata)


def _safetensors_layout(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any]
) -> FileLayout:
    from lbrx.files.formats.containers import safetensors

    return safetensors.layout(path, tensors, metadata)


def _safetensors_shards(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any], limit: int
) -> tuple[dict[str, FileLayout], dict[str, bytes]]:
    from lbrx.files.formats.containers import safetensors

    return safetensors.sharded(path, tensors, metadata, limit)


def _mlx_shards(
    path: Path, tensors: Sequence[OutgoingInfo], metadata: Mapping[str, Any], limit: int
) -> tuple[dict[str, FileLayout], dict[str, bytes]]:
    return _safetensors_shards(path, tensors, {**metadata, "format": "mlx"}, limit)


def _is_mlx(files: ModelFiles, config: Mapping[str, Any]) -> bool:
    """MLX's files are safetensors; the folder's config.json tells them apart."""
    if files.format != Format.SAFETENSORS:
        return False
    packing = config.get("quantization")
    is_packed = isinstance(packing, dict) and {"group_size", "bits"} <= packing.keys()
    return is_packed or files.metadata.get("format") == "mlx"


def _safetensors_marks(files: ModelFiles) -> Mapping[str, Any]:
    return {"format": "pt", **(files.metadata if files.format == Format.SAFETENSORS else {})}


_OURS = (
    FileFormat(
        Format.GGUF,
        lambda path, head: head.startswith(b"GGUF"),
        _read_gguf,
        ("*.gguf",),
        ".gguf",
        _gguf_layout,
        holds=lambda encoding: encoding in GGUF_TYPES,
        conventions=GGUF,
    ),
    FileFormat(
        Format.PYTORCH,
        _is_pytorch,
        _read_pytorch,
        ("*.bin", "*.pth", "*.pt"),
        has_neighbours=True,
    ),
    FileFormat(
        Format.NPZ, _is_npz, _read_npz, ("*.npz",), ".npz", _npz_layout, has_neighbours=True
    ),
    FileFormat(Format.NPY, lambda path, head: head.startswith(b"\x93NUMPY"), _read_npy),
    # A GGUF of 123 tensors has this byte too, so that is asked first.
    FileFormat(
        Format.SAFETENSORS,
        lambda path, head: head[8:9] == b"{",
        _read_safetensors,
        ("*.safetensors",),
        ".safetensors",
        _safetensors_layout,
        _safetensors_shards,
        holds=lambda encoding: any(encoding == small.name for small in FLOAT8),
        has_neighbours=True,
        marks=_safetensors_marks,
    ),
    FileFormat(Format.ONNX, _is_onnx, _read_onnx, ("*.onnx",)),
    FileFormat(
        Format.MLX,
        shards=_mlx_shards,
        holds=lambda encoding: encoding.startswith("MLX:"),
        conventions=MLX,
        claims=_is_mlx,
    ),
)
for _format in reversed(_OURS):
    register(_format)
