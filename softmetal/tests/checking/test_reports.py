"""SOFTMETAL_CHECK: findings reach standard error and the status of `softmetal run`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

FOUND = 66
PROGRAM = """
import atexit, sys, threading
wanted = set(sys.argv[1:])

import Metal
source = '''#include <metal_stdlib>
using namespace metal;
kernel void turn(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  s[t] = t;
  BARRIER;
  o[t] = s[63 - t];
}'''.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup)" if "good" in wanted else "")
device = Metal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()

def commit():
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    function = library.newFunctionWithName_("turn")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(device.newBufferWithLength_options_(256, 0), 0, 0)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (64, 1, 1))
    encoder.endEncoding()
    commands.commit()
    return commands

if "thread" in wanted:
    threading.Thread(target=commit).start()
elif "atexit" in wanted:
    atexit.register(commit)
else:
    commands = commit()
    if "nowait" not in wanted:
        commands.waitUntilCompleted()
    if "read" in wanted and commands.error() is not None:
        print(commands.error().localizedDescription())
if "many" in wanted:
    for _ in range(300):
        commit().waitUntilCompleted()
print("printed", *sys.argv[1:])
if "exit" in wanted:
    sys.exit(3)
if "message" in wanted:
    sys.exit("its last words")
if "fail" in wanted:
    raise RuntimeError("its own error")
"""


def start(*command, check=None, **settings):
    settings = settings if check is None else {"SOFTMETAL_CHECK": check, **settings}
    kept = {name: text for name, text in os.environ.items() if name != "SOFTMETAL_CHECK"}
    return subprocess.run(
        [sys.executable, *command],
        env={**kept, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(program, *arguments, check="race", options=()):
    return start("-m", "softmetal", "run", *options, program, *arguments, check=check)


def reported(done):
    return [line for line in done.stderr.splitlines() if line.startswith("softmetal: ")]


@pytest.mark.parametrize(
    ("check", "found"),
    [
        (None, set()),
        ("", set()),
        ("bounds", set()),
        ("race", {"race"}),
        ("bounds,race", {"race"}),
        ("all", {"race", "uninit"}),
        ("1", {"race", "uninit"}),
        (" bounds , all", {"race", "uninit"}),
    ],
)
def test_the_variable(program, check, found):
    done = run(program, check=check)
    assert done.stdout == "printed\n"
    assert {line.split(": ")[1] for line in reported(done)} == found
    assert all("kernel 'turn'" in line for line in reported(done))
    assert done.returncode == (FOUND if found else 0), done.stderr


@pytest.mark.parametrize("how", ["nowait", "thread", "atexit", "read", "many"])
def test_findings_that_nobody_reads_are_reported(program, how):
    done = run(program, how)
    assert done.returncode == FOUND, done.stderr
    assert "race: kernel 'turn'" in done.stderr
    assert len(reported(done)) == len(set(reported(done))) <= 101
    assert f"printed {how}" in done.stdout


def test_a_correct_program_has_no_report(program):
    clean = run(program, "nowait", "atexit", "many", "good")
    assert (clean.returncode, clean.stderr) == (0, "")


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [("exit", 3, ""), ("message", 1, "its last words"), ("fail", 1, "RuntimeError: its own error")],
)
def test_the_programs_own_status(program, how, status, text):
    for arguments, options, wanted in (
        ((how,), (), FOUND),
        ((how,), ("--keep-status",), status),
        ((how, "good"), (), status),
    ):
        done = run(program, *arguments, options=options)
        assert done.returncode == wanted, done.stderr
        assert text in done.stderr
        assert bool(reported(done)) is ("good" not in arguments)


def test_a_program_that_is_not_run_by_softmetal_has_its_own_status(program):
    text = "import runpy, softmetal, sys; softmetal.install(); runpy.run_path(sys.argv[1])"
    done = start("-c", text, program, check="race")
    assert done.returncode == 0, done.stderr
    assert reported(done)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SOFTMETAL_CHECK", "bounds,rice", "'rice' is not a checking mode: give all, or a list of"),
        ("SOFTMETAL_CHECK", "2", "'2' is not a checking mode"),
        ("SOFTMETAL_SEED", "first", "'first' is not a number above 0"),
        ("SOFTMETAL_STRICT", "mls", "'mls' is not a list of"),
        ("SOFTMETAL_THREADS", "two", "'two' is not a number from 1 to 1024"),
        ("SOFTMETAL_COMPILER_TIMEOUT", "long", "'long' is not a number of seconds"),
        ("SOFTMETAL_DEVICE", "gpu", "'gpu' is not a device"),  # once the program asks for one
        ("SOFTMETAL_PROFILE", "apple-m99", "'apple-m99' is not a profile"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path, name, value, named):
    (tmp_path / "wrong.py").write_text("print('started')\n" + PROGRAM)
    done = start("-m", "softmetal", "run", str(tmp_path / "wrong.py"), **{name: value})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"softmetal: {name}=")
    assert named in done.stderr
    assert done.stdout == ("started\n" if name in ("SOFTMETAL_DEVICE", "SOFTMETAL_PROFILE") else "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("-m", "nope"), "No module named nope"),
        (("-m", "nope.part"), "No module named 'nope'"),
        (("-m", "json"), "'json' is a package and cannot be directly executed"),
        (("-m", "sys"), "No code object available for sys"),
        (("-m", "no\npe"), "No module named no pe"),
        (("nope.py",), "no such script: nope.py"),
        ((os.sep,), "can't find '__main__' module in '/'"),
    ],
)
def test_a_program_that_is_not_there_is_one_line(arguments, named):
    done = start("-m", "softmetal", "run", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("softmetal: ")
    assert named in done.stderr


def test_errors_of_imports_are_the_programs(tmp_path):
    (tmp_path / "program.py").write_text("import nope")
    done = start("-m", "softmetal", "run", str(tmp_path / "program.py"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "program.py" in done.stderr
