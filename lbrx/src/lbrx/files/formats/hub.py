"""Models of Hugging Face's hub by name: from the cache that its libraries share, or downloaded.

The cache is read without the package huggingface_hub, which only downloads need. It has a folder
`models--org--name` for each repository: `refs` has the commits of branches, and `snapshots` the
files of a commit.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.extras import install

SCHEME = "hf://"
_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_FILE = r"\w[\w.+-]*(?:/\w[\w.+-]*)*"
_NAME = re.compile(
    rf"(?P<scheme>{SCHEME})?(?P<repository>{_PART}/{_PART})"
    rf"(?:@(?P<revision>(?:refs/\w+/)?\w[\w.-]*))?(?:(?P<mark>[:/])(?P<file>{_FILE}))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_INDEX = ".index.json"
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
_OTHERS = ("datasets", "spaces", "buckets")  # hf://datasets/org/name
_TIMEOUT = 10.0  # seconds, for the list of a repository's files
_MOST_SHOWN = 12


@dataclass(frozen=True)
class HubName:
    """A repository at a revision: the whole model, or one of its files."""

    text: str
    """The name as it was given."""
    repository: str
    revision: str
    file: str | None
    """A file's name, or the quantization of a GGUF file such as q4_k_m."""

    @property
    def is_explicit(self) -> bool:
        """Whether the name cannot be that of a local path."""
        return self.text.startswith(SCHEME)


def parse(text: str) -> HubName | None:
    """The parts of `org/name`, `org/name@revision`, `org/name:q4_k_m` or `org/name:file`, each
    perhaps after hf://, where a file may also follow a slash. None for all else.

    Raises FormatError for what hf:// cannot stand before.
    """
    found = _NAME.fullmatch(text)
    if found is None or (found["mark"] == "/" and found["scheme"] is None):
        if text.startswith(SCHEME):
            raise FormatError(f"{text} is not the name of a model: give hf://organization/name")
        return None
    repository = found["repository"]
    if found["scheme"] and repository.partition("/")[0] in _OTHERS:
        raise FormatError(f"{text} is not the name of a model: give hf://organization/name")
    return HubName(text, repository, found["revision"] or "main", found["file"])


def cache() -> Path:
    """The folder of repositories, from the variables that huggingface_hub reads."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not given:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
        given = os.path.join(home, "hub")
    return Path(os.path.expandvars(given)).expanduser()


def repositories() -> list[str]:
    """The models in the cache."""
    folders = cache().glob("models--*--*")
    return sorted("/".join(folder.name.split("--", 2)[1:]) for folder in folders)


def name_of(path: Path) -> str:
    """A model's name by its path: that of a file or folder, or of the repository whose snapshot the
    path is in, as files and folders are named by hashes there."""
    for folder in (path, *path.parents):
        parts = folder.parent.parent.name.split("--", 2)
        if folder.parent.name == "snapshots" and parts[0] == "models" and len(parts) == 3:
            return parts[2]
    return path.resolve().stem


def find(name: HubName, *, download: bool = True) -> Path | None:
    """The file or folder of a model in the cache, where it is downloaded if it is not there.

    Without `download`, None for one that is not there. Raises FormatError if there is no such
    model, or it cannot be downloaded.
    """
    path, problem = _cached(name)
    return path or (_downloaded(name, problem) if download else None)


def _folder(name: HubName) -> Path:
    return cache() / f"models--{name.repository.replace('/', '--')}"


def _cached(name: HubName) -> tuple[Path | None, str]:
    """The path of a complete model, or why there is none."""
    from lbrx.files.formats.reading import read

    commit = name.revision
    with suppress(OSError, ValueError):  # the revision may be a commit
        commit = (_folder(name) / "refs" / name.revision).read_text("utf-8").strip()
    snapshot = _folder(name) / "snapshots" / commit
    if not _COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None, f"{name.text} is not in the cache {cache()}"
    found = (file for file in snapshot.rglob("*") if file.is_file())
    try:
        opened, _ = _chosen([file.relative_to(snapshot).as_posix() for file in found], name)
        path = snapshot / opened
        read(path)
    except FormatError as problem:
        return None, f"{name.text} is not complete in the cache ({problem})"
    return path, ""


def _chosen(files: Sequence[str], name: HubName) -> tuple[str, list[str]]:
    """What is opened of a repository's files, "" for its folder, and the files of weights, or
    their index. Raises FormatError if there are none, or several that could be meant."""
    if name.file is not None and name.file in files:
        return name.file, [name.file]
    top = {file for file in files if "/" not in file}
    if name.file is None:
        whole = [file for file in _SAFETENSORS if file in top][:1]
        if whole := whole or sorted(file for file in top if file.endswith(".safetensors")):
            return "", whole
    models = _gguf_models(files)
    wanted = [m for m in models if name.file is None or _is_of_type(m[0], name.file)]
    if len(wanted) == 1:
        return wanted[0][0], wanted[0]
    if not models and name.file is None:
        if whole := [file for file in _PICKLES if file in top][:1]:
            return "", whole
        raise FormatError(f"{name.repository} has no weights of a format that lbrx reads")
    if not wanted:
        shown = ", ".join([model[0] for model in models][:_MOST_SHOWN] or sorted(top))
        raise FormatError(f"{name.repository} has no file {name.file}: give one of {shown}")
    shown = ", ".join(model[0] for model in wanted[:_MOST_SHOWN])
    problem = f"{name.repository} has several models"
    raise FormatError(f"{problem}: give {name.repository}:NAME with a name of {shown}")


def _gguf_models(files: Sequence[str]) -> list[list[str]]:
    """The GGUF files of each model: one, or all parts of a split model."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.endswith(".gguf"):
            models.setdefault(_SHARD.sub("", file), []).append(file)
    return list(models.values())


def _is_of_type(file: str, wanted: str) -> bool:
    """Whether a file's name says that it is quantized to a type: model-Q4_K_M.gguf to q4_k_m."""
    stem = _SHARD.sub("", file).removesuffix(".gguf")
    return re.search(rf"(^|[-._/]){re.escape(wanted)}($|[-./])", stem, re.IGNORECASE) is not None


# ---- downloads ----


def _downloaded(name: HubName, problem: str) -> Path:
    """The path of a model, whose files that lbrx reads are downloaded. `problem` is why the cache
    does not have it."""
    from lbrx.files.formats.checks import read_json
    from lbrx.files.formats.companions import COPIED

    library = _library(problem)
    hub = library.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="lbrx")
    with _library_errors(name, problem, library.errors):
        listed = hub.model_info(name.repository, revision=name.revision, timeout=_TIMEOUT)
    commit = str(listed.sha)
    files = [one.rfilename for one in listed.siblings or () if re.fullmatch(_FILE, one.rfilename)]
    if not _COMMIT.fullmatch(commit):
        raise FormatError(f"{name.text}: the hub gives {commit!r:.60}, which is not a commit")
    opened, weights = _chosen(files, name)

    def fetch(file: str) -> Path:
        with _library_errors(name, problem, library.errors):
            cached = hub.hf_hub_download(name.repository, file, revision=commit, cache_dir=cache())
        return Path(cached)

    if not opened.endswith(".gguf"):
        beside = (*COPIED, "config.json", "adapter_config.json")
        for file in (file for file in beside if file in files):
            fetch(file)
    for file in weights:
        path = fetch(file)
        if file.endswith(_INDEX):
            shards = read_json(path).get("weight_map")
            named = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else ()
            for shard in sorted(named):
                if shard in files:  # otherwise the reader says what is missing
                    fetch(shard)
    _note(name, commit)
    return _folder(name) / "snapshots" / commit / opened


def _note(name: HubName, commit: str) -> None:
    """Write which commit a branch is at, now that its files are there."""
    ref = _folder(name) / "refs" / name.revision
    if name.revision == commit:
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=ref.parent, delete=False) as file:
        file.write(commit)
    os.chmod(file.name, 0o644)
    os.replace(file.name, ref)


def _library(problem: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        remedy = f"{install('hub')}, or give a local file or folder"
        raise FormatError(f"{problem}, and downloads need huggingface_hub: {remedy}") from None
    return huggingface_hub


@contextmanager
def _library_errors(name: HubName, problem: str, errors: Any) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the HTTP library that it uses into FormatError."""
    try:
        yield
    except errors.GatedRepoError:
        remedy = f"accept its conditions at https://huggingface.co/{name.repository}"
        raise FormatError(
            f"{name.text} has conditions that were not accepted: {remedy}, and log in with "
            "`hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise FormatError(
            f"{name.repository} has no revision {name.revision}: give a branch, tag or commit"
        ) from None
    except errors.RepositoryNotFoundError:
        raise FormatError(
            f"the hub has no model {name.repository} that you may read: check the name, or log in "
            "with `hf auth login`"
        ) from None
    except Exception as failure:
        lines = str(failure).split("\n")
        reason = f"{lines[0]:.200}" or type(failure).__name__
        raise FormatError(
            f"{problem} and cannot be downloaded ({reason}): give a local file or folder, or "
            "download it where there is a network"
        ) from None
