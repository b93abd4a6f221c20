"""lbrx shaders build."""

from __future__ import annotations

import os
import stat

import pytest

from lbrx.cli import main
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


def test_wide_vectors_are_for_processors(gpu, folder, tmp_path, xcrun):
    wide = "typedef float Wide __attribute__((ext_vector_type(16)));\n"
    kernel = "kernel void d(device float* x [[buffer(0)]]) { Wide w = x[0]; x[1] = w[15]; }\n"
    (folder / "wide.metal").write_text(HEAD + wide + kernel)
    shaders = Shaders(gpu.device, tmp_path, folder)
    assert build_pipelines(shaders, for_gpu=True) == 4
    assert build_pipelines(shaders) == 6
    xcrun()
    assert {path.name.split("-")[0] for path in build_metallibs(folder)} == {"one", "two"}


@pytest.mark.metal
def test_every_plain_kernel_is_compiled(gpu, folder, tmp_path):
    shaders = Shaders(gpu.device, tmp_path, folder)
    assert shaders.plain_functions("one") == ["a"]
    assert build_pipelines(shaders) == 4  # a and c in both kinds of maths
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


def test_without_xcode_there_are_none(folder, xcrun):
    xcrun(find=1)
    assert build_metallibs(folder) == []


def test_a_failure_is_ours(folder, xcrun):
    xcrun(status=1)
    with pytest.raises(DeviceError, match=r"one-\w+\.metallib does not compile"):
        build_metallibs(folder)


def test_the_command(capsys, monkeypatch, lbrx_cache):
    monkeypatch.setenv("LBRX_CACHE", lbrx_cache)
    monkeypatch.setattr("lbrx.cli.shaders.build_metallibs", lambda folder: [])
    monkeypatch.setattr("lbrx.cli.shaders.build_pipelines", lambda shaders, for_gpu: 7)
    assert main(["shaders", "build"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("7 pipelines for ")
    assert "xcrun metal" in output
