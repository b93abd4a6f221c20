"""Limits that Linux sets for this process through its control groups, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def memory_limits(root: Path = Path("/")) -> Iterator[int]:
    """Bytes that the groups of this process and their parents may use; none if unlimited."""
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            yield from (int(word) for word in _words(folder / name) if word.isdecimal())


def processor_limits(root: Path = Path("/")) -> Iterator[float]:
    """Processors whose time the groups of this process and their parents may use."""
    for folder in _folders(root, "cpu"):
        words = _words(folder / "cpu.max")  # quota and period
        if not words:
            words = [
                *_words(folder / "cpu.cfs_quota_us"),
                *_words(folder / "cpu.cfs_period_us"),
            ]
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the groups, which are not mixed: one with a list of controllers is of version
    1. In a container the paths may be the host's: those that exist count."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:
            mount /= controller
        if not controllers or controller in controllers.split(","):
            parts = Path(group).parts[1:]
            for depth in range(len(parts) + 1):
                yield mount.joinpath(*parts[:depth])


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
