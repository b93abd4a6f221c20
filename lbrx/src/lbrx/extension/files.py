"""File formats, and the names that architectures have in files."""

from __future__ import annotations

from lbrx.files.formats import ENCODINGS, Encoding, FileFormat, FileRange, ModelFiles, TensorInfo
from lbrx.files.formats.architecture_tables import Architecture, NameRule, Setting
from lbrx.files.formats.architecture_tables import register as register_architecture
from lbrx.files.formats.architecture_tables.table import (
    HEAD_SIZES,
    MLP,
    NORMS,
    SIZES,
    VOCABULARY,
    attention,
    ends,
)
from lbrx.files.formats.conventions import HUGGING_FACE, Conventions
from lbrx.files.formats.descriptor import OutgoingInfo
from lbrx.files.formats.file_formats import register
from lbrx.files.formats.layout import FileLayout, Placed
from lbrx.files.formats.output import replacing

__all__ = [
    "ENCODINGS",
    "HEAD_SIZES",
    "HUGGING_FACE",
    "MLP",
    "NORMS",
    "SIZES",
    "VOCABULARY",
    "Architecture",
    "Conventions",
    "Encoding",
    "FileFormat",
    "FileLayout",
    "FileRange",
    "ModelFiles",
    "NameRule",
    "OutgoingInfo",
    "Placed",
    "Setting",
    "TensorInfo",
    "attention",
    "ends",
    "register",
    "register_architecture",
    "replacing",
]
