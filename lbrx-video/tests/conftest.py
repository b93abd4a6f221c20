"""The fixtures of lbrx's tests. The tests of video need PyAV, which makes their clips and is what they
compare with."""

from __future__ import annotations

from importlib.util import find_spec

from lbrx_fixtures import *  # noqa: F403

collect_ignore_glob = [] if find_spec("av") else ["test_*.py"]
