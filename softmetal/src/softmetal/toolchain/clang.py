"""Runs clang and lld from the PyPI package `ziglang`. No other module starts the compiler."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from softmetal import env
from softmetal.errors import CompileError, ToolchainError

MEMORY_BYTES = 4 << 30  # address space of one compilation
OUTPUT_BYTES = 256 << 20  # of each file that it writes
_CRASHED = "clang frontend command failed"
_WAITING = 10  # times the limit of CPU time: elapsed time on a busy machine
_SAID_LINES = 20  # of a crashed tool's own errors


@functools.cache
def zig() -> Path:
    """The zig executable. Called directly: through Python it would take six times as long."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("the package 'ziglang' is not installed: pip install ziglang")
    path = Path(spec.submodule_search_locations[0]) / "zig"
    if not path.exists():
        raise ToolchainError(f"{path} does not exist: pip install --force-reinstall ziglang")
    return path


@functools.cache
def version() -> str:
    """The toolchain's version, for cache keys. The folder's name is read: importlib.metadata would
    take longer than everything else that a warm start does."""
    package = zig().parent
    installed = sorted(path.name for path in package.parent.glob("ziglang-*.dist-info"))
    return installed[-1] if installed else str(zig().stat().st_mtime_ns)


def run(
    tool: str,
    arguments: Sequence[str],
    stdin: str | None = None,
    visible: Sequence[Path | str] | None = None,
) -> tuple[str, str]:
    """Run `zig TOOL ARGUMENTS`; returns (stdout, stderr), raises CompileError with stderr.

    With `visible`, clang can open these files and folders only. Time, memory and output are
    limited: a compilation that exceeds a limit, or crashes the tool, is a CompileError too.
    """
    command = [str(zig()), tool, *arguments]
    with ExitStack() as files:
        out, err, view = (files.enter_context(_memory_file()) for _ in range(3))
        if visible is not None:
            view.write(_view(visible))
            view.flush()
            start = 3 if "-cc1" in command[2:3] else 2  # which must come first
            command[start:start] = ["-ivfsoverlay", f"/proc/self/fd/{view.fileno()}"]
        status = _limited(command, stdin, out, err, view)
        stdout, stderr = _text(out), _text(err)
    if status is None or status < 0 or _CRASHED in stderr:
        raise CompileError(_failure(tool, status, stderr))
    if status:
        raise CompileError(stderr or f"error: {tool} failed with status {status}\n")
    return stdout, stderr


def _limited(
    command: list[str], stdin: str | None, out: IO[bytes], err: IO[bytes], view: IO[bytes]
) -> int | None:
    """The exit status of a command that runs within the limits; None if it took too long."""
    import resource  # these are imported late: a warm cache starts no process
    import subprocess
    import threading

    seconds = env.compiler_timeout()
    limits = {
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: OUTPUT_BYTES,
        resource.RLIMIT_CORE: 0,
        **({resource.RLIMIT_CPU: math.ceil(seconds)} if seconds else {}),
    }
    data = stdin.encode() if stdin is not None else b""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, pass_fds=[view.fileno()]
        )
    except OSError as error:
        raise ToolchainError(f"cannot start {command[0]}: {error}") from error
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        process.kill()

    # Waiting with a timeout would poll, and end up to 50 ms late.
    timer = threading.Timer(seconds * _WAITING, stop)
    timer.daemon = True
    if seconds:
        timer.start()
    with process:
        try:
            # The compiler waits for its input meanwhile. It may have ended with an error, and some
            # containers do not allow the call; the limit of elapsed time holds there.
            with suppress(ProcessLookupError, PermissionError):
                for kind, limit in limits.items():
                    given = resource.prlimit(process.pid, kind)
                    known = [bound for bound in given if bound != resource.RLIM_INFINITY]
                    resource.prlimit(process.pid, kind, (min([limit, *known]), given[1]))
            with _without_sigpipe():
                process.communicate(data)
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    return None if expired.is_set() else process.returncode


@contextmanager
def _without_sigpipe() -> Iterator[None]:
    """Writing to a compiler that has ended is an error that Python handles. In a native program,
    where Python leaves signals as they are, the signal would end the program."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failure(tool: str, status: int | None, stderr: str) -> str:
    """What to say of a tool that was stopped by a limit or crashed."""
    import signal

    seconds = env.compiler_timeout()
    if status in (None, -signal.SIGXCPU):
        cause = f"was stopped after {seconds:g} s: set SOFTMETAL_COMPILER_TIMEOUT to allow more"
    elif status == -signal.SIGXFSZ:
        cause = f"was stopped at an output of {OUTPUT_BYTES >> 20} MiB: the source is too large"
    elif status == -signal.SIGKILL:
        cause = "was killed: the machine may not have enough memory"
    elif re.search(r"out of memory|bad_alloc|Cannot allocate", stderr):
        cause = f"needs more than {MEMORY_BYTES >> 20:,} MiB of memory for this source"
    else:
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        cause = f"crashed ({how}): the source may nest a construct too deeply"
    said = [line for line in stderr.splitlines() if "error: " in line and "zig: " not in line]
    return "\n".join([f"error: {tool} {cause}", *said[:_SAID_LINES], ""])


def _memory_file() -> IO[bytes]:
    return open(os.memfd_create("softmetal"), "r+b")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read().decode(errors="replace")  # a user's header may have another encoding
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _view(visible: Sequence[Path | str]) -> bytes:
    """A file system of clang's that has nothing but these files and folders."""
    roots = [
        {
            "type": "file" if os.path.isfile(path) else "directory-remap",
            "name": path,
            "external-contents": path,
        }
        for path in map(os.path.abspath, visible)
    ]
    return json.dumps(
        {"version": 0, "redirecting-with": "redirect-only", "roots": roots}, ensure_ascii=False
    ).encode(errors="surrogateescape")
