"""What the checks refuse, and that the text has the values and a remedy."""

from __future__ import annotations

import pytest

from softmetal import validation as v
from softmetal.errors import ValidationError
from softmetal.types import Argument

ARGUMENTS = (
    Argument("x", "buffer", 0, "device float*", 4, 4, True, False),
    Argument("scratch", "threadgroup", 1, "threadgroup float*", 4, 4, True, False),
)

# (check, arguments that pass, arguments that are refused, what the text must say)
TABLE = [
    (v.check_view, (8, 8), (9, 8), "9 bytes.*at most 8"),
    (v.check_view, (0, 8), (-1, 8), "-1"),
    (v.check_buffer_index, (30,), (31,), "31.*0 to 30"),
    (v.check_buffer_index, (0,), (-1,), "-1.*0 to 30"),
    (v.check_buffer_index, (2, 3), (3, 3), "3.*0 to 2"),
    (v.check_offset, (63, 64), (64, 64), "64.*0 to 63"),
    (v.check_range, (2, 3, 5, "bytes"), (2, 4, 5, "bytes"), "bytes 2 to 6.*5"),
    (v.check_range, (0, 0, 0, "bytes"), (-1, 1, 5, "bytes"), "-1"),
    (v.check_inline_bytes, (4096, 4096), (4097, 4097), "4097.*4096.*buffer"),
    (v.check_inline_bytes, (4, 8), (8, 4), "8 bytes.*only 4"),
    (v.check_inline_bytes, (1, 1), (0, 0), "0 bytes"),
    (v.check_threadgroup_length, (32, 0), (20, 0), "20.*multiple of 16.*32"),
    (v.check_threadgroup_length, (0, 0), (32784, 0), "32784.*32768"),
    (v.check_threadgroup_length, (16, 30), (16, 31), "31.*0 to 30"),
    (v.check_threadgroup_total, (1, (16, 16), "k"), (32768, (16,), "k"), "`k`.*32784.*32768"),
    (v.check_threadgroup, ((32, 32, 1), 1024, "k"), ((1536, 1, 1), 1024, "k"), "1536.*1024.*`k`"),
    (v.check_threadgroup, ((1, 1, 1), 1, "k"), ((32, 0, 1), 1024, "k"), "32 x 0 x 1.*at least 1"),
    (
        v.check_threadgroup,
        ((8, 8, 1), 64, "k", (8, 8, 1)),
        ((4, 8, 1), 64, "k", (8, 8, 1)),
        "requires",
    ),
    (v.check_grid, ((1, 0, 2**32 - 1),), ((2**32, 1, 1),), "4294967296"),
    (v.check_grid, ((1, 1, 1),), ((1, -1, 1),), "-1"),
    (v.check_arguments, (ARGUMENTS, (8,), (0, 16), "k"), (ARGUMENTS, (0,), (0, 16), "k"), "`x`"),
    (
        v.check_arguments,
        (ARGUMENTS, (8,), (0, 16), "k"),
        (ARGUMENTS, (8,), (), "k"),
        "`scratch`.*setThreadgroupMemoryLength_atIndex_",
    ),
    (v.check_indirect, (4, 12, 16), (8, 12, 16), "8 to 20"),
    (v.check_indirect, (4, 12, 16), (2, 12, 16), "multiple of 4"),
    (v.check_copy, (0, 8, 4, 12, 8), (4, 8, 0, 12, 8), "from bytes 4 to 12"),
    (v.check_copy, (0, 8, 0, 0, 0), (0, 8, 8, 12, 8), "to bytes 8 to 16"),
    (v.check_copy, (0, 8, 0, 8, 8), (0, 8, 0, 8, -1), "-1"),
    (v.check_fill, (255,), (256,), "256.*0 to 255"),
    (v.check_open, (False, "a dispatch"), (True, "a dispatch"), "a dispatch after endEncoding"),
    (v.check_pipeline, (1, "a dispatch"), (0, "a dispatch"), "setComputePipelineState_"),
    (v.check_indirect_pipeline, (True, "k"), (False, "k"), "`k`.*setSupportIndirect"),
    (v.check_uncommitted, (False, "commit"), (True, "commit"), "commit after commit"),
    (v.check_committed, (True, "wait"), (False, "wait"), "wait before commit"),
    (v.check_no_encoder, (False, "commit"), (True, "commit"), "endEncoding"),
    (v.check_heap_options, (2, 2), (2, 0), "resourceOptions"),
    (v.check_max_threads, (0,), (2048,), "2048.*1024"),
]


@pytest.mark.parametrize(("check", "good", "bad", "text"), TABLE)
def test_refusals(check, good, bad, text):
    check(*good)
    with pytest.raises(ValidationError, match=text):
        check(*bad)


def test_every_check_is_in_the_table():
    names = {name for name in vars(v) if name.startswith("check_")}
    assert names == {row[0].__name__ for row in TABLE}


def test_a_refusal_is_a_value_error():
    with pytest.raises(ValueError, match="31"):
        v.check_buffer_index(31)
