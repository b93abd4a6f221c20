"""What the tests of all distributions share: seeds, and Ctrl-C.

Random inputs are the same in every run: they come from TEST_SEED, which is 0 unless it is set, and
hypothesis derives its examples from the tests. `make test-full` sets a new seed and prints it.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A shell starts background jobs with SIGINT ignored, and every child process inherits that: the
# tests of Ctrl-C would then never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With a seed hypothesis takes it from --hypothesis-seed, which derandomize would override.
settings.register_profile("lbrx", derandomize="TEST_SEED" not in os.environ, print_blob=True)
settings.load_profile("lbrx")


def pytest_report_header() -> str:
    return f"TEST_SEED={os.environ.get('TEST_SEED', 0)}"
