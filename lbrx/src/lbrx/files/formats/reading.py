"""From a path to the description of a model, for every format."""

from __future__ import annotations

from pathlib import Path

from lbrx.errors import FormatError
from lbrx.files.formats import file_formats
from lbrx.files.formats.checks import check_path
from lbrx.files.formats.containers import huggingface
from lbrx.files.formats.descriptor import ModelFiles


def read(path: str | Path) -> ModelFiles:
    """Describe the model at a path: a file of any format, an index of shards, or a folder."""
    if not str(path):
        raise FormatError("the path is empty: give a file or a folder")
    where = Path(path)
    check_path(where)
    if where.is_dir():
        patterns = [p for format in file_formats.FORMATS.whole().values() for p in format.patterns]
        return huggingface.read_folder(where, read_file, patterns)
    if not where.is_file():
        raise FormatError(f"{where}: {_what_it_is(where)}")
    if where.name.endswith(".index.json"):
        return huggingface.with_neighbours(huggingface.read_index(where, read_file))
    files = read_file(where)
    alone = not file_formats.find(files.format).has_neighbours
    return files if alone else huggingface.with_neighbours(files)


def _what_it_is(path: Path) -> str:
    """Why a path is neither a file nor a folder."""
    if path.exists():
        return "is a device, pipe or socket: give a file or a folder"
    if path.is_symlink():
        return "is a symbolic link to what does not exist: give a file or a folder"
    return "no such file or folder"


def read_file(path: Path) -> ModelFiles:
    """Describe the model in one file."""
    format = file_formats.detect(path)
    assert format.read is not None  # what is detected can be read
    return format.read(path)
