"""The entry to this folder: a model from a path of any kind."""

from __future__ import annotations

from pathlib import Path

from softcoreml.errors import ModelError
from softcoreml.format.package import ModelFile, read_mlmodel, specification_path


def read_model(path: Path) -> ModelFile:
    """Read a `.mlpackage`, a `.mlmodel` or a compiled `.mlmodelc`.

    Raises:
        ModelError: there is no model at this path, or it is malformed.
    """
    if not path.exists():
        raise ModelError(f"there is no model at {path}")
    if path.is_dir() and (path / "Manifest.json").exists():
        return read_mlmodel(specification_path(path))
    if path.is_dir():
        raise ModelError(f"{path} is a folder without Manifest.json")
    return read_mlmodel(path)
