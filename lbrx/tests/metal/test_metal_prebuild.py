"""lbrx shaders build."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
import time

import pytest

from lbrx.cli import shaders as shaders_command
from lbrx.errors import DeviceError, SettingError
from lbrx.kernels.samples import sample_pipelines
from lbrx.metal.library import PipelineRequest, Shaders
from lbrx.metal.prebuild import build_metallibs, build_pipelines, plain_kernels
from lbrx.metal.shader_files import ShaderFiles

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
    wide = "#pragma softmetal extensions\n"
    wide += "typedef float Wide __attribute__((ext_vector_type(16)));\n"
    kernel = "kernel void d(device float* x [[buffer(0)]]) { Wide w = x[0]; x[1] = w[15]; }\n"
    (folder / "wide.metal").write_text(HEAD + wide + kernel)


def test_wide_vectors_are_for_cpus_only(gpu, folder, tmp_path, xcrun):
    wide_shader(folder)
    shaders = Shaders(gpu.device, tmp_path, folder)
    assert len(plain_kernels(shaders, shaders.stems(), for_gpu=True)) == 2
    if not gpu.info.simd_hardware:
        assert len(plain_kernels(shaders, shaders.stems())) == 3
    xcrun()
    assert {path.name.split("-")[0] for path in build_metallibs(ShaderFiles(folder))} == {
        "one",
        "two",
    }


@pytest.mark.metal
def test_requests_are_compiled_and_saved(gpu, folder, tmp_path):
    shaders = Shaders(gpu.device, tmp_path, folder)
    wanted = plain_kernels(shaders, ["one", "two"])
    assert wanted == [PipelineRequest("one", "a"), PipelineRequest("two", "c")]
    wanted.append(PipelineRequest("one", "b", ((0, 3),)))
    told = []
    build_pipelines(shaders, wanted, lambda done, count, last: told.append((done, count, last)))
    assert [(done, count) for done, count, _ in told] == [(1, 3), (2, 3), (3, 3)]
    assert {last for *_, last in told} == set(wanted)
    assert len(list((tmp_path / "pipelines").iterdir())) == 2
    again = Shaders(gpu.device, tmp_path, folder)
    build_pipelines(again, wanted)
    assert again.compiled.kernels == 0


def test_an_unknown_stem_is_an_error(gpu, folder, tmp_path):
    with pytest.raises(SettingError, match="no stem 'three': it is one of one, two"):
        plain_kernels(Shaders(gpu.device, tmp_path, folder), ["one", "three"])


def test_listing_compiles_and_runs_nothing(gpu):
    found = sample_pipelines(gpu)
    assert gpu.shaders.compiled.kernels == 0
    assert gpu.queue.completed() == gpu.queue.commit() == 0
    assert {"softmax", "norm", "reduction", "elementwise"} <= {each.stem for each in found}
    assert all(each.safe_math for each in found)
    assert len(found) == len(set(found))


def test_metal_libraries_replace_older_ones(folder, xcrun):
    log = xcrun()
    (folder / "one-0123.metallib").write_text("old")
    built = build_metallibs(ShaderFiles(folder))
    assert sorted(folder.glob("*.metallib")) == sorted(built)
    assert len(built) == 2
    commands = log.read_text().splitlines()
    assert sum("-fno-fast-math" in command for command in commands) == 2
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == []


def test_without_xcode_nothing_is_built(folder, xcrun):
    xcrun(find=1)
    assert build_metallibs(ShaderFiles(folder)) == []


def test_a_compiler_error_is_a_device_error(folder, xcrun):
    xcrun(status=1)
    with pytest.raises(DeviceError, match=r"one-\w+\.metallib does not compile"):
        build_metallibs(ShaderFiles(folder))


@pytest.mark.parametrize(
    ("tool", "profile", "pipelines", "libraries"),
    [
        ({"find": 1}, "", 3, "0 Metal libraries (needs `xcrun metal`)"),
        ({"find": 0}, "", 3, "2 Metal libraries"),
        # A stem with wide vectors is skipped on a device that reports to be a GPU.
        ({"find": 0}, "apple-m1", 2, "2 Metal libraries"),
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
    command = [sys.executable, "-m", "lbrx", "shaders", "build", "--stems", "one,two,wide"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(rf"{pipelines} pipelines for .+ in \d+\.\d s", first)
    assert second == libraries
    progress = done.stderr.splitlines()
    for i, line in enumerate(progress, 1):
        text = rf"{i} of {pipelines} kernels, about \d+ s left: (one|two|wide) [acd]"
        assert re.fullmatch(text, line), line
    assert len(progress) == pipelines
    assert len(list(folder.glob("*.metallib"))) == int(libraries.split()[0])
    # Archives are named after their stems.
    kept = {path.name.split("-")[0] for path in (tmp_path / "cache" / "pipelines").iterdir()}
    assert kept == ({"one", "two"} if profile else {"one", "two", "wide"})


def test_progress_is_one_line_of_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = shaders_command.Progress(time.perf_counter())
    for done in (1, 2):
        progress(done, 2, PipelineRequest("softmax", "softmax_" + "long_" * 40))
    progress.clear()
    first, second, end = terminal.getvalue().split(shaders_command.CLEAR)[1:]
    assert first.startswith("1 of 2 kernels, about 0 s left: softmax softmax_long")
    assert second.startswith("2 of 2")
    assert len(first) < 80
    assert end == ""
    assert "\n" not in terminal.getvalue()


def test_the_command_reports_a_shader_that_does_not_compile(folder, tmp_path):
    (folder / "one.metal").write_text(HEAD + "kernel void a(device uint* x) { x[0] = nothing; }\n")
    settings = {"LBRX_SHADERS": str(folder), "LBRX_CACHE": str(tmp_path), "PATH": "/nowhere"}
    command = [sys.executable, "-m", "lbrx", "shaders", "build", "--stems", "one"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    assert done.returncode != 0
    assert "one.metal" in done.stderr
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stem", ["norm", "rope"])
def test_code_for_another_gpu(stem, tmp_path):
    """It needs neither a GPU nor CUDA; where ptxas is installed there is machine code too."""
    command = [sys.executable, "-m", "lbrx", "shaders", "build", "--target", "sm_90"]
    command += ["--stems", stem, "--out", str(tmp_path / "code")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "code").glob(f"{stem}-*.ptx"))
    texts = [file.read_text() for file in files]
    assert all(".target sm_90" in text for text in texts)
    entries = [re.findall(r"\.entry (\w+)\(", text) for text in texts]
    assert all(len(each) == 1 for each in entries)
    assert f"of {len(files)} kernels for sm_90" in done.stdout
    assert {each[0].removeprefix("metal_").split("_")[0] for each in entries} == {stem}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--target", "sm_90"], "--target and --out go together"),
        (["--out", "code"], "--target and --out go together"),
        (["--target", "sm_12", "--stems", "norm", "--out", "code"], "'sm_12' is not a target"),
        (["--target", "sm_90", "--stems", "nothing", "--out", "code"], "no stem 'nothing'"),
    ],
)
def test_mistakes_about_targets(options, text, tmp_path):
    command = [sys.executable, "-m", "lbrx", "shaders", "build", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


# Makes pipelines on a GPU that is not there: how many were compiled, and the images that it loaded.
USING = """
import ctypes, sys
from lbrx.metal import context
from lbrx.kernels.samples import sample_pipelines
from lbrx.metal.prebuild import build_pipelines

gpu = context()
wanted = [each for each in sample_pipelines(gpu) if each.stem == "rope"]
build_pipelines(gpu.shaders, wanted)
images = ctypes.CDLL("libcuda.so.1").fake_machine_codes()
print(len(wanted), gpu.shaders.compiled.kernels, images)
"""


def use_built(folder, cache, fake_libcuda):
    settings = {"SOFTMETAL_DEVICE": "cuda:0", "LD_LIBRARY_PATH": str(fake_libcuda)}
    settings |= {"LBRX_SHADERS": str(folder), "LBRX_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", USING],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(map(int, done.stdout.split()))


def build_for_sm90(folder):
    command = [sys.executable, "-m", "lbrx", "shaders", "build", "--target", "sm_90"]
    command += ["--stems", "rope", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_built_code_is_used(tmp_path, ptxas_path, fake_libcuda):
    """Machine code if it is there, else PTX; what was changed or removed is compiled."""
    folder = tmp_path / "code"
    build_for_sm90(folder)
    wanted, compiled, images = use_built(folder, tmp_path / "a", fake_libcuda)
    assert (wanted, compiled, images) == (2, 0, 2)
    for file in folder.glob("*.cubin"):
        file.unlink()
    assert use_built(folder, tmp_path / "b", fake_libcuda) == (2, 0, 0)
    for file in folder.glob("*.ptx"):
        file.write_bytes(file.read_bytes().replace(b"// softmetal ", b"// softmetal 0", 1))
    assert use_built(folder, tmp_path / "c", fake_libcuda) == (2, 2, 0)


def test_built_code_of_others_is_refused(tmp_path, ptxas_path, fake_libcuda):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "rope-rope.ptx").write_text("// softmetal 0\n")
    folder.chmod(0o777)
    with pytest.raises(AssertionError, match="can be written by every user: make it yours alone"):
        use_built(folder, tmp_path, fake_libcuda)
