"""Model files: what is in them, without reading tensors, and how they are written."""

from lbrx.formats.descriptor import (
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
from lbrx.formats.reading import detect, read

__all__ = [
    "ENCODINGS",
    "Deflated",
    "Encoding",
    "FileRange",
    "Format",
    "Inline",
    "ModelFiles",
    "Outgoing",
    "Source",
    "TensorInfo",
    "detect",
    "plain",
    "read",
]
