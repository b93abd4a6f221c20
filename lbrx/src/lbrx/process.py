"""This process: its number, and its memory as the operating system counts it."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path


class ThisProcess:
    """Its `id`, which `os.getpid` asks the system for at every call."""

    id = os.getpid()


def _after_fork() -> None:
    ThisProcess.id = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it otherwise, other allocators do not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_memory() -> int:
    """The largest number of bytes that this process has had in memory."""
    # On Linux, getrusage includes the peak of the program that started this one by exec.
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if found is not None:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_in_use() -> int:
    """The number of bytes that this process has in memory; its peak where only that is known."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return peak_memory()
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@cache
def memory_limit() -> int:
    """Bytes that this process may use: the memory of the machine, or a lower limit of its cgroup,
    such as a container's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits(Path("/"))])


def last_cache(root: Path = Path("/")) -> int | None:
    """Bytes of the processor's largest cache, as Linux declares it."""
    folder = root / "sys/devices/system/cpu/cpu0/cache"
    try:
        sizes = [file.read_text().strip() for file in folder.glob("index*/size")]
        return max((1024 * int(size.removesuffix("K")) for size in sizes), default=None)
    except (OSError, ValueError):
        return None


def cgroup_limits(root: Path) -> Iterator[int]:
    """The limits of this process' cgroups and their parents, which apply too. The files are
    `memory.max` in version 2 of cgroups, and `memory.limit_in_bytes` in version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        # In a container the path may be the host's: what exists of it is read.
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                yield from _limit_in(folder / name)


def _limit_in(file: Path) -> Iterator[int]:
    """The number in a file; nothing if it is missing, or says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return
    if text.isdecimal():
        yield int(text)
