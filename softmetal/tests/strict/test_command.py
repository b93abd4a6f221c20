"""`python -m softmetal check --strict`, SOFTMETAL_STRICT and the pragma that exempts a source."""

from __future__ import annotations

from pathlib import Path

import pytest

import softmetal
from softmetal import env
from softmetal.__main__ import main
from softmetal.errors import SettingError

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
MIXED = HEAD + (
    "kernel void k(device float* x [[buffer(0)]]) {\n  thread float* p = x;\n  *p = 1;\n}\n"
)
WIDE = HEAD + (
    "typedef float float8 __attribute__((ext_vector_type(8)));\n"
    "kernel void k(device float* x [[buffer(0)]]) { float8 v = 1; x[0] = v[7]; }\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kernel.metal"


def test_errors_have_the_place_of_the_source(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(MIXED)
    assert main(["check", "--strict", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        f"{file}:4:17: error: cannot initialize a variable of type 'thread float *' with an lvalue "
        "of type 'device float *'"
    )
    assert lines[1:3] == ["  thread float* p = x;", "                ^"]


def test_without_strict_it_is_a_warning(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(MIXED)
    assert main(["check", "--no-strict", str(file)]) == 0
    assert f"{file}:4:17: warning: address spaces: cannot" in capsys.readouterr().err


def test_headers_and_version(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "headers"
    folder.mkdir()
    (folder / "a.h").write_text("inline float twice(bfloat x) { return float(x) * 2; }\n")
    file.write_text(HEAD + '#include "a.h"\nkernel void k(device float* x) { x[0] = 1; }\n')
    options = ["--strict", "-I", str(folder), str(file)]
    assert main(["check", *options]) == 0
    assert main(["check", "--std", "3.0", *options]) == 1
    error = capsys.readouterr().err
    assert f"{folder / 'a.h'}:1:20: error: 'bfloat' requires Metal language standard" in error


@pytest.mark.parametrize("version", ["5.0", "3", "metal"])
def test_versions_that_are_none(version: str, file: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["check", "--std", version, str(file)])
    assert f"{version!r} is not a version: give 2.0 to 4.0" in capsys.readouterr().err


def test_the_kernel_of_the_example(file: Path):
    program = (Path(__file__).parents[3] / "examples" / "saxpy.py").read_text()
    file.write_text(program.split('SOURCE = """')[1].split('"""')[0])
    assert main(["check", "--strict", str(file)]) == 0


def library(source: str) -> tuple[object, object]:
    device = softmetal.MTLCreateSystemDefaultDevice()
    return device.newLibraryWithSource_options_error_(source, None, None)


def test_the_variable(monkeypatch: pytest.MonkeyPatch):
    made, error = library(MIXED)
    assert made is None
    assert "program_source:4:17: error: cannot initialize" in str(error.localizedDescription())
    monkeypatch.setenv("SOFTMETAL_STRICT", "no-msl,bridge")
    assert library(MIXED)[0] is not None


def test_the_variable_has_known_modes(monkeypatch: pytest.MonkeyPatch):
    assert env.strict() == {"msl"}
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    assert env.strict() == {"msl", "host"}
    monkeypatch.setenv("SOFTMETAL_STRICT", "no-validation")
    assert env.strict() == {"msl", "no-validation"}
    for text in ("msl,apple", "msl,no-msl", "validation,no-validation"):
        monkeypatch.setenv("SOFTMETAL_STRICT", text)
        with pytest.raises(SettingError, match=f"SOFTMETAL_STRICT='{text}' is not a list of"):
            env.strict()


def test_the_pragma_exempts_a_source():
    made, error = library(WIDE)
    assert made is None
    assert "vectors of other than 2, 3 or 4 elements" in str(error.localizedDescription())
    assert library("#pragma softmetal extensions\n" + WIDE)[0] is not None


def test_a_source_that_says_it_was_checked(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Its library is made at once; its kernels, `check` and Apple's chips still find mistakes."""
    source = "#pragma softmetal checked\n" + MIXED
    assert library(source)[0] is not None
    file.write_text(source)
    assert main(["check", str(file)]) == 1
    assert "error: cannot initialize" in capsys.readouterr().err
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m1")
    assert library(source)[0] is None


def test_kernels_of_such_a_source_are_checked_when_they_are_compiled():
    wrong = "kernel void k(device float* x [[buffer(0)]]) {\n  x[0] = missing(1); }\n"
    assert library(wrong)[0] is None
    made, error = library("#pragma softmetal checked\n" + wrong)
    assert error is None
    device = softmetal.MTLCreateSystemDefaultDevice()
    function = made.newFunctionWithName_("k")
    state, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert state is None
    assert "program_source:3:10: error: use of undeclared" in str(error.localizedDescription())
