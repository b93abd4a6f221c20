"""What the tests of all distributions share: seeds, Ctrl-C, and what stands in for NVIDIA GPUs.

Random inputs are the same in every run: they come from TEST_SEED, which is 1 unless it is set, and
hypothesis derives its examples from the tests. `make test-full` sets a new seed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from fake_cuda import build_fake_libcuda
from hypothesis import HealthCheck, settings
from nvidia_assembler import require_ptxas
from seeds import SEED

# A shell starts background jobs with SIGINT ignored, and every child process inherits that: the
# tests of Ctrl-C would then never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The whole suite makes more than the default limit holds, and would evict what it needs again.
os.environ.setdefault("SOFTMETAL_CACHE_LIMIT", str(16 << 30))

# The order in which `race` runs threads, here and in the processes that tests start.
os.environ.setdefault("SOFTMETAL_SEED", str(max(SEED, 1)))

# What a program prints does not depend on which kernels the cache has.
os.environ.setdefault("LBRX_COMPILE_NOTICE", "0")

# With a seed hypothesis takes it from --hypothesis-seed, which derandomize would override.
# Neither examples nor their generation have a time limit.
settings.register_profile(
    "lbrx",
    derandomize="TEST_SEED" not in os.environ,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lbrx")


def pytest_report_header() -> str:
    return f"TEST_SEED={SEED} repeats the random inputs"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the seed of a failed test, also where the header is not shown."""
    report = yield
    if report.failed:
        report.sections.append(("seed", f"TEST_SEED={SEED} repeats the random inputs"))
    return report


@pytest.fixture(scope="session")
def ptxas_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's assembler, which checks generated code without a GPU."""
    return require_ptxas(tmp_path_factory.mktemp("ptxas"))


@pytest.fixture(scope="session")
def fake_libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that needs no GPU, for LD_LIBRARY_PATH."""
    folder = tmp_path_factory.mktemp("fake_libcuda")
    build_fake_libcuda(folder)
    return folder
