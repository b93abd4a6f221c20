"""Checkpoints of a run: folders that appear whole, from which it goes on with the same bits."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lbrx.data.stream import Place
from lbrx.errors import FormatError
from lbrx.optim import Optimizer
from lbrx.stored_json import parsed
from lbrx.train.change import Change

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE, _OPTIMIZER = "training.json", "optimizer.safetensors"
KEPT = 2
"""Checkpoints that are kept: the newest ones."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    best: float | None = None
    """The lowest loss of an evaluation."""
    since_best: int = 0
    """Evaluations since then."""

    @property
    def place(self) -> Place:
        """The next batch."""
        return Place(self.epoch, self.batch)


def save(
    folder: Path,
    progress: Progress,
    adapter: Change,
    optimizer: Optimizer,
    facts: Mapping[str, Any],
) -> Path:
    """Write a checkpoint in a folder that gets its name when it is whole, and delete older ones."""
    target = folder / f"checkpoint-{progress.step:06d}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".lbrx-", dir=folder))
    try:
        adapter.save(work, str(facts["model"]))
        optimizer.save_state(work / _OPTIMIZER)
        state = {"progress": asdict(progress), "run": dict(facts)}
        (work / _STATE).write_text(json.dumps(state, indent=2) + "\n", "utf-8")
        for file in work.iterdir():
            _flush(file)
        os.replace(work, target)
        _flush(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    for old in found(folder)[:-KEPT]:
        shutil.rmtree(old)
    return target


def _flush(path: Path) -> None:
    """Have the operating system write a file, or the names in a folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def found(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    if not folder.is_dir():
        return []
    numbered = [(match, each) for each in folder.iterdir() if (match := _NAME.fullmatch(each.name))]
    return [each for _, each in sorted(numbered, key=lambda pair: int(pair[0][1]))]


def restore(
    checkpoint: Path, adapter: Change, optimizer: Optimizer, facts: Mapping[str, Any]
) -> Progress:
    """Put a checkpoint's values into an adapter and an optimizer. Raises FormatError if it is of
    another run, or damaged."""
    try:
        state = parsed((checkpoint / _STATE).read_bytes())
        progress, run = Progress(**state["progress"]), state["run"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FormatError(f"{checkpoint} is damaged: {problem}: delete it") from None
    for key, value in facts.items():
        if run.get(key) != value:
            raise FormatError(
                f"{checkpoint} is of a run with {key} {run.get(key)!r:.60} and not {value!r:.60}: "
                "give the same options, or another --out"
            )
    adapter.restore(checkpoint)
    optimizer.load_state(checkpoint / _OPTIMIZER)
    return progress
