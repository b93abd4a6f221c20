"""A pytest plugin that checks Metal kernels, registered as an entry point.

    def test_mine(softmetal_check): ...                      # bounds, race and uninit
    @pytest.mark.softmetal_check("bounds", seed=7)           # the same, for these modes
    pytest --softmetal-check=bounds,race [--softmetal-seed=7]   # every test of a run

A test fails when a command buffer that it committed has a finding and the test did not read the
command buffer's error(). softmetal itself is imported only when a check is requested.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from softmetal.checks import Checks

MODES = ("bounds", "race", "uninit")
ALL = ("all", "1")
_RUN = pytest.StashKey["Checks"]()
_TEST = pytest.StashKey["Checks"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("softmetal", "checks of Metal kernels")
    group.addoption(
        "--softmetal-check",
        metavar="MODES",
        default="",
        help=f"check kernels in every test: all, or a list of {', '.join(MODES)}",
    )
    group.addoption(
        "--softmetal-seed",
        metavar="N",
        type=int,
        default=None,
        help="seed of the order in which race runs threads; printed in the header of a run",
    )


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(word.strip() for word in text.split(",") if word.strip())
    for mode in modes:
        if mode not in (*MODES, *ALL):
            raise pytest.UsageError(
                f"--softmetal-check: {mode!r} is not a mode: give all, or a list of "
                f"{', '.join(MODES)}"
            )
    return modes


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "softmetal_check(*modes, seed=None): check the Metal kernels of this test "
        f"({', '.join(MODES)}; all by default)",
    )
    if not _modes(config.option.softmetal_check):
        return
    if config.option.softmetal_seed is None:  # here, so that xdist's workers use the same
        given = os.environ.get("SOFTMETAL_SEED")
        chosen = int(given) if given else random.SystemRandom().randrange(1, 1 << 31)
        config.option.softmetal_seed = chosen


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.option.softmetal_check:
        return None
    return f"softmetal: checks {config.option.softmetal_check}, seed {config.option.softmetal_seed}"


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """With the option, kernels are checked from the first fixture to the last."""
    modes = _modes(session.config.option.softmetal_check)
    if not modes:
        return (yield)
    import softmetal

    with softmetal.checking(*modes, seed=session.config.option.softmetal_seed) as check:
        session.config.stash[_RUN] = check
        return (yield)


def _fail(check: Checks) -> None:
    """Fail for findings that the test has not read, once for each."""
    if findings := check.take_unread():
        text = "\n".join(findings)
        pytest.fail(
            f"softmetal found (again with --softmetal-seed={check.seed}):\n{text}", pytrace=False
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    stashes = (item.stash.get(_TEST, None), item.config.stash.get(_RUN, None))
    checks = [check for check in stashes if check is not None]
    try:
        result = yield
    except BaseException:
        for check in checks:
            text = "\n".join([f"seed {check.seed}", *check.take_unread()])
            item.add_report_section("call", "softmetal", text)
        raise
    for check in checks:
        _fail(check)
    return result


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give marked tests the fixture."""
    for item in items:
        if not isinstance(item, pytest.Function) or "softmetal_check" in item.fixturenames:
            continue
        if item.get_closest_marker("softmetal_check"):
            item.fixturenames.insert(0, "softmetal_check")


def _asked(request: pytest.FixtureRequest) -> tuple[tuple[str, ...], int | None]:
    """Modes and seed from the parameter, else from the marker, else all modes."""
    seed: int | None = request.config.option.softmetal_seed
    if (modes := getattr(request, "param", None)) is not None:
        return ((modes,) if isinstance(modes, str) else tuple(modes)), seed
    marker = request.node.get_closest_marker("softmetal_check")
    if marker is None:
        return MODES, seed
    return marker.args or MODES, marker.kwargs.get("seed", seed)


@pytest.fixture
def softmetal_check(request: pytest.FixtureRequest) -> Generator[Checks, None, None]:
    """Kernels are checked during the test; yields the checks, with .seed and .findings."""
    import softmetal

    modes, seed = _asked(request)
    with softmetal.checking(*modes, seed=seed) as check:
        request.node.stash[_TEST] = check
        yield check
        _fail(check)  # findings of fixtures that ran after the test
