"""The line that says that first uses compile. Time is a number here that the tests set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest

from lbrx.cli import devices, main, shaders
from lbrx.compile_notice import AFTER, PAUSE, CompileNotice, _notice
from lbrx.errors import SettingError
from lbrx.metal import context, library


class Time:
    """A clock that runs what it was asked to run later."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waiting: list[tuple[float, Callable[[], object]]] = []

    def later(self, seconds: float, call: Callable[[], object]) -> Callable[[], object]:
        entry = (self.now + seconds, call)
        self.waiting.append(entry)
        return lambda: self.waiting.remove(entry) if entry in self.waiting else None

    def passes(self, seconds: float) -> None:
        self.now += seconds
        for entry in [e for e in self.waiting if e[0] <= self.now]:
            self.waiting.remove(entry)
            entry[1]()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBRX_COMPILE_NOTICE", "1")


@pytest.fixture
def notice(time: Time, said: list[str]) -> CompileNotice:
    return CompileNotice(said.append, lambda: time.now, time.later)


# Seconds of compilations (positive) and of pauses between them (negative), and the lines they give.
STRETCHES = [
    ([AFTER * 0.9], 0),
    ([AFTER * 1.1], 1),
    ([AFTER * 0.6, -1, AFTER * 0.6], 1),  # together
    ([AFTER * 0.6, -PAUSE, AFTER * 0.6], 0),
    ([AFTER * 5, -1, AFTER * 5, -PAUSE / 2, AFTER * 5], 1),
    ([AFTER * 5, -PAUSE, AFTER * 5], 2),
    ([AFTER * 0.3] * 20, 1),
    ([0.0, -PAUSE * 100, AFTER * 0.9], 0),
]


@pytest.mark.parametrize(("seconds", "lines"), STRETCHES)
def test_once_in_a_stretch(
    notice: CompileNotice, time: Time, said: list[str], seconds: list[float], lines: int
) -> None:
    for each in seconds:
        if each < 0:
            time.passes(-each)
        else:
            with notice.compiling("softmax of softmax.metal"):
                time.passes(each)
    assert len(said) == lines
    assert not time.waiting


def test_what_it_says(notice: CompileNotice, time: Time, said: list[str]) -> None:
    with notice.compiling("softmax.metal"), notice.compiling("softmax_f32 of softmax.metal"):
        time.passes(AFTER)
    assert said == [
        "compiling kernels for their first use, now softmax_f32 of softmax.metal; `lbrx shaders "
        "build` compiles the usual ones ahead, LBRX_COMPILE_NOTICE=0 hides this line"
    ]


def test_side_by_side_is_counted_once(notice: CompileNotice, time: Time, said: list[str]) -> None:
    with ExitStack() as several:
        for name in "abcd":
            several.enter_context(notice.compiling(name))
        time.passes(AFTER * 0.9)
    assert not said
    with notice.compiling("e"):
        time.passes(AFTER * 0.2)
    assert len(said) == 1


def test_silence(notice: CompileNotice, time: Time, said: list[str]) -> None:
    with notice.silenced(), notice.compiling("a"):
        time.passes(AFTER * 2)
    with notice.compiling("a"), notice.silenced():
        time.passes(AFTER * 2)
    assert not said
    time.passes(PAUSE)
    with notice.silenced(False), notice.compiling("a"):
        time.passes(AFTER * 2)
    assert len(said) == 1


def test_an_error_ends_a_compilation(notice: CompileNotice, time: Time, said: list[str]) -> None:
    with pytest.raises(ValueError, match="x"), notice.compiling("a"):
        raise ValueError("x")
    time.passes(AFTER * 2)
    assert not said
    assert not time.waiting


def test_the_variable(
    notice: CompileNotice, time: Time, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBRX_COMPILE_NOTICE", "0")
    with notice.compiling("a"):
        time.passes(AFTER * 2)
    assert not said
    monkeypatch.setenv("LBRX_COMPILE_NOTICE", "no")
    with pytest.raises(SettingError, match="LBRX_COMPILE_NOTICE='no' is not a setting: give 0"):
        notice.compiling("a").__enter__()
    monkeypatch.setenv("LBRX_COMPILE_NOTICE", "1")
    time.passes(PAUSE)
    with notice.compiling("a"):
        time.passes(AFTER * 2)
    assert len(said) == 1


def test_libraries_and_pipelines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that no cache has; found again, they are not compiled."""
    told: list[str] = []

    @contextmanager
    def compiling(what: str) -> Iterator[None]:
        told.append(what)
        yield

    monkeypatch.setattr(library, "compiling", compiling)
    name = f"unseen_{uuid4().hex}"
    source = f"kernel void {name}(device float* x [[buffer(0)]]) {{ x[0] = 1; }}\n"
    for _ in range(2):
        context().shaders.pipeline("unseen", name, source=source)
    assert told == ["unseen.metal", f"{name} of unseen.metal"]


@pytest.mark.parametrize(
    ("arguments", "silent"),
    [(["devices"], 0), (["devices", "--json"], 1), (["shaders", "build"], 1)],
)
def test_commands_that_are_silent(
    arguments: list[str], silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def run(*_: object) -> int:
        found.append(_notice._silent)
        return 0

    monkeypatch.setattr(devices, "run", run)
    monkeypatch.setattr(shaders, "_build", run)
    assert main(arguments) == 0
    assert found == [silent]
    assert _notice._silent == 0
