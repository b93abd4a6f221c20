"""Which memory the device under test has."""

import os

import pytest

DISCRETE = os.environ.get("SOFTMETAL_DEVICE", "").startswith(("discrete", "cuda"))
shares_memory = pytest.mark.skipif(DISCRETE, reason="the device has its own memory")
