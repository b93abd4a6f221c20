"""What the tests of all distributions share."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and every child process inherits that: the
# tests of Ctrl-C would then never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
