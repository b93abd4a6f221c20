"""The `formats` and `merge` suites: opening, copying, converting and merging model files.

The ceiling is a plain copy: of the file that is converted, or, for merges, reading all models but
one and copying that one, which is the least traffic of a merge.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx.bench.checkpoints import FULL, SHORT, write_folder, write_gguf
from lbrx.bench.report import Row
from lbrx.bench.timing import Effort, interleaved
from lbrx.convert import Settings, convert
from lbrx.files.stored.load_and_save import save
from lbrx.files.stored.stored_model import open_model
from lbrx.merging.run import merge

EFFORTS = {True: Effort(rounds=3, seconds=4.0), False: Effort(rounds=7, seconds=30.0)}  # by short
BLOCK = 8 << 20
CONVERSIONS = {"q8_0": "model.gguf", "q4_k_m": "model.gguf", "f16": "folder", "mlx:4:64": "folder"}
METHODS: Mapping[str, Mapping[str, float]] = {
    "linear": {"weight": 0.5},
    "slerp": {},
    "task_arithmetic": {"weight": 0.5},
    "ties": {"weight": 0.5, "density": 0.5},
    "dare_ties": {"weight": 0.5, "density": 0.5},
}
SHORT_CONVERSIONS = "q8_0", "mlx:4:64"
SHORT_METHODS = "linear", "slerp", "ties"


@dataclass(frozen=True)
class FileSuites:
    """Both suites, over checkpoints in `folder` that are made when they are first needed."""

    folder: Path
    short: bool

    @property
    def conversions(self) -> list[str]:
        return [name for name in CONVERSIONS if not self.short or name in SHORT_CONVERSIONS]

    @property
    def methods(self) -> list[str]:
        return [name for name in METHODS if not self.short or name in SHORT_METHODS]

    def opening(self) -> Row:
        """Opening a GGUF: its header with the vocabulary, no weights."""
        path = self.folder / "vocabulary.gguf"
        if not path.exists():
            write_gguf(path, SHORT)
        timing = interleaved({"lbrx": lambda: open_model(path)}, EFFORTS[self.short])["lbrx"]
        return Row(
            suite="formats",
            name="open a GGUF",
            family="formats",
            dtype="q8_0",
            shape=[SHORT.vocabulary],
            variant="mapped",
            seconds=timing.median,
            spread=timing.spread,
            rounds=timing.rounds,
        )

    def copying(self) -> Row:
        source, target = self._parent(0), self.folder / "copy.safetensors"
        model = open_model(source)
        return self._beside_copies(
            "formats", "copy", "bfloat16", "save", lambda: save(target, model), [source], target
        )

    def converting(self, scheme: str) -> Row:
        source, target = self._parent(0), self.folder / f"converted-{CONVERSIONS[scheme]}"
        settings = Settings(quantize=scheme)
        return self._beside_copies(
            "formats",
            f"convert bfloat16 to {scheme}",
            scheme,
            "convert",
            lambda: convert(source, target, settings),
            [source],
            target,
        )

    def merging(self, method: str) -> Row:
        own = METHODS[method]
        base, *others = (self._parent(i) for i in range(3))
        if method == "slerp":
            others = [base, others[0]]
        elif method == "linear":
            others = [base, *others]
        models = [
            {"model": str(path), **({"parameters": dict(own)} if own else {})} for path in others
        ]
        config: dict[str, Any] = {"merge_method": method, "models": models, "dtype": "bfloat16"}
        if method != "linear":
            config["base_model"] = str(base)
        if method == "slerp":
            config["parameters"] = {"t": 0.4}
        target = self.folder / "merged"
        read = list(dict.fromkeys([base, *others]))
        return self._beside_copies(
            "merge",
            method,
            "bfloat16",
            method,
            lambda: merge(config, target, report=False),
            read,
            target,
        )

    def _parent(self, number: int) -> Path:
        path = self.folder / f"parent-{number}"
        return path if path.exists() else write_folder(path, SHORT if self.short else FULL, number)

    def _beside_copies(
        self,
        suite: str,
        name: str,
        dtype: str,
        variant: str,
        work: Callable[[], object],
        sources: list[Path],
        target: Path,
    ) -> Row:
        """Time a work that reads the sources and writes the target, beside plain copies."""
        plain = self.folder / "plain-copy"

        def ours() -> None:
            _remove(target)
            work()

        timings = interleaved(
            {"lbrx": ours, "copy": lambda: _copy(sources, plain)}, EFFORTS[self.short]
        )
        own, copied = timings["lbrx"], sum(map(_size, sources)) + _size(plain)
        moved, bandwidth = sum(map(_size, sources)) + _size(target), copied / timings["copy"].best
        _remove(target)
        _remove(plain)
        return Row(
            suite=suite,
            name=name,
            family=suite,
            dtype=dtype,
            shape=[_size(sources[0])],
            variant=variant,
            seconds=own.median,
            spread=own.spread,
            rounds=own.rounds,
            share_of_ceiling=moved / bandwidth / own.median,
            nbytes=float(moved),
            bandwidth=bandwidth,
        )


def _copy(sources: list[Path], target: Path) -> None:
    """Read all files but those of the first source, and copy that."""
    block = bytearray(BLOCK)
    for source in sources[1:]:
        for file in sorted(source.iterdir()):
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(block):
                    pass
    _remove(target)
    shutil.copytree(sources[0], target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*"))
    return path.stat().st_size
