"""The Metal back end of llama.cpp, unmodified, judged by its own program, with its CPU back end as
oracle. `make test-native` runs all operations (upstream_ggml.py)."""

from __future__ import annotations

import os

import ggml_build
import pytest

pytestmark = pytest.mark.full


@pytest.mark.parametrize("operation", ["ADD"])
def test_operation(operation, variables):
    result = ggml_build.judge(ggml_build.build(variables), operation, {**os.environ, **variables})
    assert result.failures == []
    assert result.passed > 50
