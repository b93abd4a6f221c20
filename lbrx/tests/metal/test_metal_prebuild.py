"""lbrx shaders build."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys

import pytest

from lbrx.errors import DeviceError
from lbrx.metal.library import Shaders
from lbrx.metal.prebuild import build_metallibs, build_pipelines

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
XCRUN = """#!/bin/sh
case "$*" in *--find*) exit {find};; esac
echo "$@" >> "{log}"
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo MTLB > "$2"; shift; done
exit {status}
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "shaders"
    folder.mkdir()
    (folder / "one.metal").write_text(
        HEAD + "constant uint n [[function_constant(0)]];\n"
        "kernel void a(device uint* x [[buffer(0)]]) { x[0] = 1; }\n"
        "kernel void b(device uint* x [[buffer(0)]]) { x[0] = n; }\n"
    )
    (folder / "two.metal").write_text(HEAD + "kernel void c(device uint* x [[buffer(0)]]) {}\n")
    return folder


@pytest.fixture
def xcrun(tmp_path, monkeypatch):
    """Puts a stand-in for Xcode's tool on the path; returns its log."""

    def install(status=0, find=0):
        log = tmp_path / "log"
        tool = tmp_path / "bin" / "xcrun"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(XCRUN.format(log=log, status=status, find=find))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        return log

    return install


def wide_shader(folder):
    """Add a stem with vectors that only CPUs have."""
    wide = "typedef float Wide __attribute__((ext_vector_type(16)));\n"
    kernel = "kernel void d(device float* x [[buffer(0)]]) { Wide w = x[0]; x[1] = w[15]; }\n"
    (folder / "wide.metal").write_text(HEAD + wide + kernel)


def test_wide_vectors_are_for_cpus_only(gpu, folder, tmp_path, xcrun):
    wide_shader(folder)
    shaders = Shaders(gpu.device, tmp_path, folder)
    assert build_pipelines(shaders, for_gpu=True) == 4
    assert build_pipelines(shaders) == 6
    xcrun()
    assert {path.name.split("-")[0] for path in build_metallibs(folder)} == {"one", "two"}


@pytest.mark.metal
def test_every_plain_kernel_is_compiled(gpu, folder, tmp_path):
    shaders = Shaders(gpu.device, tmp_path, folder)
    assert shaders.plain_functions("one") == ["a"]
    assert build_pipelines(shaders) == 4  # a and c, each with fast and safe maths
    assert len(list((tmp_path / "pipelines").iterdir())) == 4


def test_metal_libraries_replace_older_ones(folder, xcrun):
    log = xcrun()
    (folder / "one-0123.metallib").write_text("old")
    built = build_metallibs(folder)
    assert sorted(folder.glob("*.metallib")) == sorted(built)
    assert len(built) == 4
    commands = log.read_text().splitlines()
    assert sum("-fno-fast-math" in command for command in commands) == 2
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == []


def test_without_xcode_nothing_is_built(folder, xcrun):
    xcrun(find=1)
    assert build_metallibs(folder) == []


def test_a_compiler_error_is_a_device_error(folder, xcrun):
    xcrun(status=1)
    with pytest.raises(DeviceError, match=r"one-\w+\.metallib does not compile"):
        build_metallibs(folder)


@pytest.mark.parametrize(
    ("tool", "profile", "pipelines", "libraries"),
    [
        ({"find": 1}, "", 6, "0 Metal libraries (needs `xcrun metal`)"),
        ({"find": 0}, "", 6, "4 Metal libraries"),
        # A stem with wide vectors is skipped on a device that reports to be a GPU.
        ({"find": 0}, "apple-m1", 4, "4 Metal libraries"),
    ],
)
def test_the_command(folder, tmp_path, xcrun, tool, profile, pipelines, libraries):
    """As a user runs it, in another process: what it compiled is on disk afterwards."""
    xcrun(**tool)
    wide_shader(folder)
    settings = {
        "LBRX_SHADERS": str(folder),
        "LBRX_CACHE": str(tmp_path / "cache"),
        "SOFTMETAL_PROFILE": profile,
    }
    command = [sys.executable, "-m", "lbrx", "shaders", "build"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(rf"{pipelines} pipelines for .+ in \d+\.\d s", first)
    assert second == libraries
    assert len(list(folder.glob("*.metallib"))) == int(libraries.split()[0])
    # Archives are named after their stems.
    kept = {path.name.split("-")[0] for path in (tmp_path / "cache" / "pipelines").iterdir()}
    assert kept == ({"one", "two"} if profile else {"one", "two", "wide"})


def test_the_command_reports_a_shader_that_does_not_compile(folder, tmp_path):
    (folder / "one.metal").write_text(HEAD + "kernel void a(device uint* x) { x[0] = nothing; }\n")
    settings = {"LBRX_SHADERS": str(folder), "LBRX_CACHE": str(tmp_path), "PATH": "/nowhere"}
    command = [sys.executable, "-m", "lbrx", "shaders", "build"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    assert done.returncode != 0
    assert "one.metal" in done.stderr
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr
