"""Builds the native library at its first use, under the names that programs link."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

from softmetal.errors import CompileError, ToolchainError
from softmetal.executors import runtime_build
from softmetal.native import headers
from softmetal.toolchain import clang, disk_cache, targets

FOLDER = Path(__file__).parent
INCLUDE = FOLDER / "include"
LIBRARY = "libsoftmetal.so"
MACOS = "15.0"  # the version that native programs find
# What macOS's libraries and frameworks are called, which programs link and load.
NAMES = (
    *("objc", "System", "Metal", "MetalKit", "Foundation", "CoreFoundation", "CoreGraphics"),
    *("QuartzCore", "IOKit", "MTLCompiler", "gnustep-base"),
)
_FLAGS = ("-D_GNU_SOURCE", "-O2", "-g0", "-fPIC", "-std=gnu11", "-ftls-model=initial-exec",
          "-Wno-objc-root-class", "-Wno-incomplete-implementation")  # fmt: skip
# `char` is signed on every Mac; on Linux for aarch64 it is not.
OBJECTIVE_C = ("-fobjc-runtime=macosx-15.0", "-fblocks", "-fsigned-char")


def build() -> Path:
    """The folder with the library and its generated headers, built if it is not in the cache."""
    sources = sorted([Path(__file__), *(FOLDER / "library").iterdir(), *INCLUDE.rglob("*.h")])
    texts = {"place.h": _place(), "classes.m": headers.class_source(), **_commands()}
    key = disk_cache.key_of(
        *(clang.version(), targets.host().triple, *_FLAGS, *OBJECTIVE_C),
        *(part for each in sources for part in (each.name, each.read_bytes())),
        *texts.values(),
        headers.metal_header(),
    )
    return disk_cache.default().get("native", key, lambda folder: _fill(folder, texts))


def _fill(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "SoftmetalMetal.h").write_text(headers.metal_header())
    build_library(folder, targets.host().triple.partition("-")[0], folder / LIBRARY)
    for name in _commands():
        (folder / name).chmod(0o755)
    for name in NAMES:
        os.link(folder / LIBRARY, folder / f"lib{name}.so")  # the loader loads one file once


def build_library(texts: Path, machine: str, output: Path) -> None:
    """Compile the library for a machine such as "aarch64" with the written sources of the folder
    `texts`; raises ToolchainError."""
    from concurrent.futures import ThreadPoolExecutor

    sources = sorted((FOLDER / "library").iterdir())
    units = [each for each in sources if each.suffix in (".c", ".m", ".S")] + [texts / "classes.m"]

    def compiled(source: Path) -> str:
        target = output.parent / f"{source.name}.o"
        language = {".c": "c", ".m": "objective-c", ".S": "assembler-with-cpp"}[source.suffix]
        flags = [f"--target={machine}-linux-gnu", *runtime_build.include_flags(machine)]
        flags += [f"-I{INCLUDE}", f"-I{texts}", f"-I{FOLDER / 'library'}"]
        flags += [] if source.suffix == ".S" else [*_FLAGS, *OBJECTIVE_C, "-fno-objc-exceptions"]
        clang.run("clang", [*flags, "-x", language, "-c", str(source), "-o", str(target)])
        return str(target)

    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, units))
        libc = _c_library(machine, output.parent / "libc.so.6")
        linked = ["-z", "now", "--eh-frame-hdr", "-soname", LIBRARY, *objects, str(libc)]
        clang.run("ld.lld", ["-shared", *linked, "-o", str(output)])
        libc.unlink()
    except CompileError as error:
        raise ToolchainError(f"building {output.name} failed:\n{error}") from error
    for each in objects:
        os.unlink(each)


def _c_library(machine: str, output: Path) -> Path:
    """An empty library of the C library's name. The native library is linked to it, so that the
    loader prepares the C library first, whichever a system has."""
    empty = str(output.with_suffix(".o"))
    clang.run("clang", [f"--target={machine}-linux-gnu", "-x", "c", "-c", "-", "-o", empty], "")
    clang.run("ld.lld", ["-shared", "-soname", output.name, empty, "-o", str(output)])
    os.unlink(empty)
    return output


def _commands() -> dict[str, str]:
    """Compilers with a C library that does not depend on this system's, and what asks for macOS."""
    target = f"-target {targets.host().triple} -fno-sanitize=undefined"
    compilers = {"softmetal-cc": "cc", "softmetal-c++": "c++"}
    tools = f'exec "{sys.executable}" -m softmetal.native.metal_tools'
    return {
        **{name: f'#!/bin/sh\nexec "{clang.zig()}" {tool} {target} "$@"\n'
           for name, tool in compilers.items()},
        **{name: f'#!/bin/sh\n{tools} {name} "$@"\n' for name in ("metal", "metallib", "xcrun")},
        "sw_vers": f"#!/bin/sh\ncase $1 in\n-productVersion) echo {MACOS};;\n"
        f'*) printf "ProductName:\\t\\tmacOS\\nProductVersion:\\t\\t{MACOS}\\n";;\nesac\n',
    }  # fmt: skip


def _place() -> str:
    """Where the library finds Python and softmetal, if the process has no Python yet."""
    spec = clang.zig().parent.parent
    folders = [Path(__file__).parents[2], spec, *map(Path, site.getsitepackages())]
    quoted = " ".join(f'"{path}",' for path in dict.fromkeys(map(str, folders)))
    return "\n".join(
        (
            f'#define LIBPYTHON "{libpython() or ""}"',
            f'#define PYTHON_HOME "{sys.base_prefix}"',
            f"#define PYTHON_PATHS {quoted}",
            "",
        )
    )


def libpython() -> Path | None:
    """The shared library of this interpreter, if it has one."""
    names = [sysconfig.get_config_var(name) for name in ("INSTSONAME", "LDLIBRARY")]
    folders = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"]
    for folder in folders:
        for name in names:
            path = Path(str(folder), str(name))
            if folder and name and ".so" in name and path.exists():
                return path
    return None
