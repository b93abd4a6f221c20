"""Programs in Objective-C and C++ with Apple's API: they check what they get themselves."""

from __future__ import annotations

import signal

import pytest

ARC = {"ARC": ("-fobjc-arc",), "manual counts": ("-fno-objc-arc",)}


@pytest.mark.parametrize("flags", ARC.values(), ids=ARC)
@pytest.mark.parametrize("program", ["foundation.m", "metal.m", "exceptions.m"])
def test_objective_c(program, flags, compiled, run):
    arguments = () if program == "exceptions.m" else ("argument",)
    done = run(compiled(program, *flags), *arguments, NATIVE_TEST="value")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_that_nobody_catches(compiled, run):
    done = run(compiled("exceptions.m", "-fobjc-arc"), "thrown")
    assert done.returncode == -signal.SIGABRT
    assert "uncaught exception Deep: because" in done.stderr


@pytest.mark.parametrize("program", ["language.m", "queues.m", "cplusplus.mm"])
def test_the_language(program, compiled, run):
    flags = ("-fobjc-arc", "-Wall", "-Wno-unused-parameter")
    done = run(compiled(program, *flags, *(("-std=c++17",) if program.endswith("mm") else ())))
    assert (done.returncode, done.stderr) == (0, "")


# Where encoding does without Python, and where it does not.
SETTINGS = {
    "as it is": {},
    "debug layer": {"SOFTMETAL_STRICT": "validation"},
    "memory of its own": {"SOFTMETAL_DEVICE": "discrete"},
    "checked": {"SOFTMETAL_CHECK": "bounds"},
}


FULL = ("memory of its own", "checked")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, marks=pytest.mark.full if name in FULL else (), id=name)
        for name, settings in SETTINGS.items()
    ],
)
def test_encoding(settings, compiled, run):
    """Four threads encode at random; every result is compared."""
    done = run(compiled("encoding.m", "-fno-objc-arc"), **settings)
    assert (done.returncode, done.stderr) == (0, "")
