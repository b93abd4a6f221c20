"""Builds ggml, the library of llama.cpp, with its CPU and Metal back ends and their test program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from wheels import FOLDER, LLAMA, llama_sources

from softmetal.native import building

_VERSION = '#define GGML_VERSION "0"\n#define GGML_COMMIT "0"\n'
_DEFINES = (
    "-DGGML_USE_CPU -DGGML_USE_METAL -DGGML_SCHED_MAX_COPIES=4 -DNDEBUG -D_GNU_SOURCE".split()
)
_OPTIMISE = ("-O2", "-march=native", "-w")


def _sources(root: Path) -> Iterator[Path]:
    ggml = root / "ggml" / "src"
    folders = (ggml, ggml / "ggml-cpu", ggml / "ggml-cpu" / "tiled", ggml / "ggml-cpu" / "amx",
               ggml / "ggml-metal")  # fmt: skip
    for folder in folders:
        yield from (each for each in folder.iterdir() if each.suffix in (".c", ".cpp", ".m"))
    machine = {"x86_64": "x86", "aarch64": "arm"}[os.uname().machine]
    arch = ggml / "ggml-cpu" / "arch" / machine
    yield from (arch / "quants.c", arch / "repack.cpp")
    yield root / "tests" / "test-backend-ops.cpp"


def build(variables: dict[str, str]) -> Path:
    """The path of `test-backend-ops`, for the library as it is now."""
    folder = FOLDER / f"ggml-{LLAMA}-{building.build().name[:16]}"
    program = folder / "test-backend-ops"
    if program.exists():
        return program
    for other in FOLDER.glob(f"ggml-{LLAMA}-*"):
        shutil.rmtree(other)  # for a library that is no more
    root = llama_sources()
    folder.mkdir()
    (folder / "ggml-version.h").write_text(_VERSION)
    include = [f"-I{root / 'ggml' / part}" for part in ("include", "src", "src/ggml-cpu")]
    flags = [*shlex.split(variables["CFLAGS"]), *_OPTIMISE, *_DEFINES, *include, f"-I{folder}"]

    def compiled(source: Path) -> str:
        output = folder / f"{source.parent.name}-{source.name}.o"
        cpp = source.suffix == ".cpp"
        command = [variables["CXX" if cpp else "CC"], *flags]
        command += ["-std=c++17" if cpp else "-std=gnu11", "-fno-objc-arc", "-c", str(source)]
        subprocess.run([*command, "-o", str(output)], check=True)
        return str(output)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, _sources(root)))
    link = [variables["CXX"], *objects, *shlex.split(variables["LDFLAGS"])]
    part = folder / "linked"
    subprocess.run([*link, *shlex.split(variables["LDLIBS"]), "-o", str(part)], check=True)
    part.rename(program)
    return program


class Result(NamedTuple):
    passed: int
    failures: list[str]
    log: str


def judge(program: Path, operation: str, environment: dict[str, str]) -> Result:
    """What the program says of the Metal back end's cases of an operation."""
    done = subprocess.run(
        [str(program), "test", "-b", "MTL0", "-o", operation],
        env={**environment, "GGML_METAL_PATH_RESOURCES": str(llama_sources() / "ggml/src/ggml-metal")},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )  # fmt: skip
    total = re.search(r"(\d+)/(\d+) tests passed", done.stdout)
    if total is None:
        raise AssertionError(f"{operation} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    failures = [line for line in done.stdout.splitlines() if "FAIL" in line and "(" in line]
    return Result(int(total[1]), failures, done.stdout + done.stderr)
