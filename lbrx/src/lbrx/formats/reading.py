"""From a path to the description of a model, for every format."""

from __future__ import annotations

from pathlib import Path

from lbrx.errors import FormatError
from lbrx.formats import file_formats
from lbrx.formats.checks import check_path
from lbrx.formats.containers import huggingface
from lbrx.formats.descriptor import ModelFiles


def read(path: str | Path) -> ModelFiles:
    """Describe the model at a path: a file of any format, an index of shards, or a folder."""
    if not str(path):
        raise FormatError("the path is empty: give a file or a folder")
    where = Path(path)
    check_path(where)
    if where.is_dir():
        patterns = [p for format in file_formats.FORMATS.values() for p in format.patterns]
        return huggingface.read_folder(where, read_file, patterns)
    if not where.is_file():
        raise FormatError(f"{where}: no such file or folder")
    if where.name.endswith(".index.json"):
        return huggingface.read_index(where, read_file)
    return read_file(where)


def read_file(path: Path) -> ModelFiles:
    """Describe the model in one file."""
    format = file_formats.detect(path)
    assert format.read is not None  # what is detected can be read
    return format.read(path)
