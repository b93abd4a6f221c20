"""The entry to this folder: a model from a path of any kind, and its compiled form."""

from __future__ import annotations

import os
from pathlib import Path

from softcoreml.errors import UnreadableModel, shown
from softcoreml.format.compiled import read_compiled, write_compiled
from softcoreml.format.package import ModelFile, read_mlmodel, specification_path


def read_model(path: Path) -> ModelFile:
    """Read a `.mlpackage`, a `.mlmodel` or a compiled `.mlmodelc`.

    Raises:
        ModelError: there is no model at this path, or it is malformed.
    """
    if os.path.isdir(path) and not (path / "Manifest.json").exists():
        return read_compiled(path)
    return read_mlmodel(specification(path))


def specification(path: Path) -> Path:
    """The `.mlmodel` of a package, or the path itself."""
    if not os.path.exists(path):  # also for a name that no file can have
        raise UnreadableModel(f"there is no model at {shown(path)}")
    return specification_path(path) if path.is_dir() else path


def compile_model(path: Path, folder: Path) -> ModelFile:
    """Write the compiled form of the model at `path` into the new folder `folder`."""
    source = specification(path)
    file = read_mlmodel(source)
    write_compiled(file, source.parent, folder)
    return file
