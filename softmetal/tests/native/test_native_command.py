"""What native programs meet when something is missing, wrong or unusual; and the command line."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import upstream_llama
from emulated import LIBC, emulator

from softmetal.errors import ToolchainError
from softmetal.native import building, environment, loading
from softmetal.toolchain import clang

PROGRAMS = Path(__file__).parent / "programs"
ABORTED = -signal.SIGABRT


@pytest.fixture
def demand(compiled, run):
    program = compiled("demands.m", "-fno-objc-arc")
    return lambda *what, **settings: run(program, *what, **settings)


def test_a_missing_method_ends_the_program_with_its_name(demand):
    done = demand("texture")
    assert done.returncode == ABORTED
    assert "-[MTLDevice newTextureWithDescriptor:]: unrecognized selector" in done.stderr


@pytest.mark.parametrize("what", ["threads", "signals", "fork", "released"])
def test_programs_that_need_care(what, demand):
    done = demand(what)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_debug_layer_is_off_unless_asked_for(demand):
    assert demand("empty").returncode == 0
    done = demand("empty", SOFTMETAL_STRICT="validation")
    assert done.returncode == ABORTED
    assert "dispatchThreadgroups:threadsPerThreadgroup:]: ValidationError: grid of 0" in done.stderr


def test_checking_modes_turn_the_debug_layer_on(demand):
    assert demand("empty", SOFTMETAL_CHECK="bounds").returncode == ABORTED
    lenient = {"SOFTMETAL_CHECK": "bounds", "SOFTMETAL_STRICT": "no-validation"}
    assert demand("empty", **lenient).returncode == 0


REFUSED = {
    "no pipeline": "setComputePipelineState",
    "unbound": "has nothing bound",
    "beyond the buffer": "offset 17",
    "an index of 31": "31",
    "written bytes": "what setBytes binds is read-only",
    "too many threads": "2048",
    "ended": "endEncoding",
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_calls_end_the_program_with_the_reason(what, demand):
    done = demand(what, "refused")
    assert done.returncode == ABORTED, done.stdout
    assert "ValidationError: " in done.stderr
    assert REFUSED[what] in done.stderr


def test_checking_modes(demand):
    done = demand("bounds", SOFTMETAL_CHECK="bounds")
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert "kernel 'late'" in text
        assert "bounds" in text


@pytest.mark.parametrize("device", ["discrete", "null"])
def test_other_devices(device, compiled, run):
    done = run(compiled("demands.m", "-fno-objc-arc"), "released", SOFTMETAL_DEVICE=device)
    assert (done.returncode, done.stderr) == (0, "")


def test_profiles(compiled, run, tmp_path):
    source = tmp_path / "name.m"
    source.write_text(
        "#import <Metal/Metal.h>\nint main(void) { @autoreleasepool {"
        "puts(MTLCreateSystemDefaultDevice().name.UTF8String); } return 0; }"
    )
    done = run(compiled(source), SOFTMETAL_PROFILE="apple-m3-max")
    assert done.stdout == "Apple M3 Max\n"


def test_an_invalid_setting_is_named(demand):
    done = demand("released", SOFTMETAL_PROFILE="apple-x9")
    assert done.returncode == ABORTED
    assert "SOFTMETAL_PROFILE" in done.stderr


EXPLAINED = {
    "texture": ("method newTextureWithDescriptor: of MTLDevice, which ended the program", 134),
    "asked": ("method newTextureWithDescriptor: of MTLDevice, which the program asked about", 0),
    "class": ("class MTKTextureLoader", 0),
    "released": ("softmetal has all that the program asked for", 0),
}


@pytest.mark.parametrize("what", EXPLAINED)
def test_explain(what, compiled, capfd):
    line, status = EXPLAINED[what]
    assert environment.explain([str(compiled("demands.m", "-fno-objc-arc")), what]) == status
    assert line in capfd.readouterr().out


def test_explain_of_no_program():
    with pytest.raises(ToolchainError, match="cannot run /nonexistent"):
        environment.explain(["/nonexistent"])


def test_env_is_for_a_shell(tmp_path):
    command = [sys.executable, "-m", "softmetal", "native", "--env"]
    exports = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    script = f"{exports}\nsw_vers -productVersion; test -x $CC -a -x $CXX && echo compilers"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{building.MACOS}\ncompilers\n"


PAGE = Path(__file__).parents[3] / "docs" / "howto" / "native.md"


def test_the_job_for_github_actions(tmp_path):
    """The page's commands set the variables, and give CMake the options of the tests' own build."""
    yaml = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    commands = [line.partition("run: ")[2] for line in yaml.splitlines() if "run: " in line]
    (sets,) = (each for each in commands if "native --env" in each)
    file = tmp_path / "env"
    command = sets.replace("python -m", f"{sys.executable} -m")
    subprocess.run(["sh", "-c", command], env={**os.environ, "GITHUB_ENV": str(file)}, check=True)
    known = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert known == environment.variables()
    (generates,) = (each for each in commands if each.startswith("cmake -B"))
    options = {word for word in generates.split() if word.startswith("-D")}
    assert options < set(upstream_llama.OPTIONS)


def test_a_python_without_a_library_is_refused(monkeypatch):
    monkeypatch.setattr(building, "libpython", lambda: None)
    with pytest.raises(ToolchainError, match="has no libpython"):
        environment.variables()


PATHS = {
    "/usr/lib/libobjc.A.dylib": "objc",
    "/usr/lib/libSystem.dylib": "System",
    "/System/Library/Frameworks/Metal.framework/Metal": "Metal",
    "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation": "Foundation",
    "/System/Library/Frameworks/AppKit.framework/AppKit": None,
    "/usr/lib/libc.so.6": None,
    "libMetal.dylib": None,
    "/home/Metal.framework/Metal": None,
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_macos(path):
    assert loading.apple_name(path) == PATHS[path]


OTHERS = [m for m in ("x86_64", "aarch64") if m != platform.machine()]


@pytest.mark.parametrize("machine", OTHERS)
def test_other_machines(machine, tmp_path):
    """The library compiles for the machine that this is not; under emulation, where that is
    installed, it also runs what needs no Python."""
    no_python = '#define LIBPYTHON ""\n#define PYTHON_HOME ""\n#define PYTHON_PATHS\n'
    (tmp_path / "place.h").write_text(no_python)
    (tmp_path / "classes.m").write_text(building.headers.class_source())
    (tmp_path / "SoftmetalMetal.h").write_text(building.headers.metal_header())
    building.build_library(tmp_path, machine, tmp_path / building.LIBRARY)
    command = [str(clang.zig()), "cc", "-target", f"{machine}-linux-gnu", *building.OBJECTIVE_C]
    command += ["-fno-sanitize=undefined", "-fPIC", "-isystem", str(building.INCLUDE)]
    command += ["-isystem", str(tmp_path), "-fobjc-arc", "-w", str(tmp_path / building.LIBRARY)]
    for name in ("foundation", "language", "queues"):
        program = [str(PROGRAMS / f"{name}.m"), "-o", str(tmp_path / name)]
        subprocess.run([*command, *program, "-lunwind"], check=True)
        if machine == "aarch64" and (qemu := emulator()):
            arguments = [qemu, "-L", LIBC, "-E", f"LD_LIBRARY_PATH={tmp_path}"]
            arguments += ["-E", "NATIVE_TEST=value", str(tmp_path / name), "argument"]
            assert subprocess.run(arguments, check=False).returncode == 0, name
