"""Model files: describing them without reading tensors, and writing them."""

from lbrx.files.formats.descriptor import (
    ENCODINGS,
    Deflated,
    Encoding,
    FileRange,
    Format,
    Inline,
    ModelFiles,
    Outgoing,
    Source,
    TensorInfo,
    plain,
)
from lbrx.files.formats.file_formats import FORMATS, FileFormat, register
from lbrx.files.formats.reading import read

__all__ = [
    "ENCODINGS",
    "FORMATS",
    "Deflated",
    "Encoding",
    "FileFormat",
    "FileRange",
    "Format",
    "Inline",
    "ModelFiles",
    "Outgoing",
    "Source",
    "TensorInfo",
    "plain",
    "read",
    "register",
]
