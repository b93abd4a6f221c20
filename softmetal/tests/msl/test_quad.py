"""Quadgroup functions: the simdgroup functions within four consecutive lanes."""

from __future__ import annotations

import numpy as np
import pytest
from groups import Library
from lane_oracle import check_all_ops

TYPES = {
    "char": np.int8,
    "ushort": np.uint16,
    "int": np.int32,
    "half": np.float16,
    "float": np.float32,
    "half3": np.float16,
    "uint4": np.uint32,
}


@pytest.mark.parametrize("msl_type", TYPES)
def test_every_operation(msl_type: str) -> None:
    check_all_ops("quad", 4, msl_type, np.dtype(TYPES[msl_type]))


def test_votes() -> None:
    text = """
#include <metal_stdlib>
using namespace metal;
kernel void votes(device ulong* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  device ulong* at = out + 6 * i;
  at[0] = (quad_vote::vote_t)quad_ballot(i % 3 == 0);
  at[1] = (quad_vote::vote_t)quad_active_threads_mask();
  at[2] = quad_all(i % 8 < 4) + 2 * quad_any(i % 5 == 0);
  at[3] = quad_is_first();
  at[4] = quad_ballot(i < 9).all() + 2 * quad_ballot(i % 5 == 0).any();
  if (i % 4 != 0) at[5] = quad_is_first() + 2 * quad_ballot(true).all();
}"""
    threads = 42
    out = np.zeros((threads, 6), np.uint64)
    Library(text).run("votes", [out], threads, threads)
    for i, row in enumerate(out.tolist()):
        quad = [j for j in range(i - i % 4, i - i % 4 + 4) if j < threads]
        fives = any(j % 5 == 0 for j in quad)
        assert row == [
            sum(1 << j % 4 for j in quad if j % 3 == 0),
            sum(1 << j % 4 for j in quad),
            int(i % 8 < 4) + 2 * fives,
            int(i % 4 == 0),
            int(len(quad) == 4 and all(j < 9 for j in quad)) + 2 * fives,
            int(i % 4 == 1),
        ], i
