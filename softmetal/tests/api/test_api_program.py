"""`python -m softmetal` and install()."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from softmetal.__main__ import main
from softmetal.executors.cuda import gpus

SCRIPT = """
import sys
import Foundation, libdispatch, Metal, MetalPerformanceShaders, objc
import beside
with objc.autorelease_pool():
    device = Metal.MTLCreateSystemDefaultDevice()
assert MetalPerformanceShaders.MPSSupportsMTLDevice(device)
assert Foundation.NSMakeRange(1, 2).length == 2
print(__name__, sys.argv[1:], beside.VALUE, "numpy" in sys.modules)
if "fail" in sys.argv:
    raise SystemExit(3)
"""

GOOD = """#include <metal_stdlib>
#include "extra.h"
kernel void first(device float* x [[buffer(3)]], threadgroup int* t [[threadgroup(0)]],
                  uint i [[thread_position_in_grid]]) { x[i] = VALUE + EXTRA; }
kernel void second() {}
"""


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "softmetal", *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 9")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_run_a_script(script):
    done = python("run", str(script), "-x", "--flag")
    assert done.stdout == "__main__ ['-x', '--flag'] 9 False\n", done.stderr
    assert python("run", str(script), "fail").returncode == 3


def test_run_a_module(script):
    done = subprocess.run(
        [sys.executable, "-m", "softmetal", "run", "-m", "script", "-m", "x"],
        cwd=script.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "__main__ ['-m', 'x'] 9 False\n", done.stderr


@pytest.mark.parametrize("arguments", [("run",), ("run", "/no/such.py")])
def test_nothing_to_run(arguments):
    done = python(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("softmetal: n")


def test_check_lists_kernels(tmp_path, capsys):
    (tmp_path / "good.metal").write_text(GOOD)
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "extra.h").write_text("#define EXTRA 1")
    arguments = ["check", str(tmp_path / "good.metal"), "-I", str(headers), "-D", "VALUE=2"]
    assert main(arguments) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["kernel", "index", "type", "name"]
    assert rows[1] == ["first", "buffer", "3", "device", "float*", "x"]
    assert rows[2][:2] == ["threadgroup", "0"]
    assert rows[3] == ["thread_position_in_grid", "uint", "i"]
    assert rows[4] == ["second"]


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    file = tmp_path / "many.metal"
    kernels = (
        f"kernel void k{i}(device float* x [[buffer(0)]]) {{ x[0] = {i}; }}" for i in range(900)
    )
    file.write_text("\n".join(kernels))
    command = [sys.executable, "-m", "softmetal", "check", str(file)]
    pipe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pipe.stdout.read(10)
    pipe.stdout.close()
    assert (pipe.stderr.read(), pipe.wait()) == (b"", 0)


def test_check_reports_errors(tmp_path, capsys):
    path = tmp_path / "bad.metal"
    path.write_text("kernel void k(device float* x [[buffer(0)]]) {\n  x[0] = nope;\n}\n")
    assert main(["check", str(path)]) == 1
    assert f"{path}:2:" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "missing.metal")]) == 1
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(("path", "shown"), [("a" * 5000, "a" * 300), ("\x1b\n", r"\x1b\n")])
def test_names_in_errors_are_short_and_printable(command, path, shown, capsys):
    assert main([command, path]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f" {shown}" in line
    assert len(line) < 400


def test_devices(capsys):
    assert main(["devices"]) == 0
    title, device, *rest = capsys.readouterr().out.splitlines()
    assert "threadgroup memory" in title
    assert "32 KiB" in device
    if gpus.why_none():
        assert rest == [f"no NVIDIA GPU: {gpus.why_none()}"]
    else:
        assert len(rest) == gpus.count()


def test_cache_shows_and_clears(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.metal").write_text("kernel void k(device int* x [[buffer(0)]]) { x[0] = 1; }")
    assert main(["check", str(tmp_path / "a.metal")]) == 0
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert "library  1" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert main(["cache", "show"]) == 0
    assert "library" not in capsys.readouterr().out


def test_the_null_device_runs_programs(script):
    done = python("run", str(script), SOFTMETAL_DEVICE="null")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="there `import Metal` is Apple's")
def test_install_is_refused_on_a_mac(monkeypatch):
    import softmetal

    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(softmetal.SoftmetalError, match="force=True"):
        softmetal.install()


def test_importing_is_light():
    code = "import sys, softmetal; softmetal.MTLSizeMake; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "softmetal.compiler", "softmetal.executors.cpu", "subprocess"}
