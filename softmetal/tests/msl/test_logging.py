"""os_log from kernels: levels, origins, and every kind of argument."""

from __future__ import annotations

import numpy as np
import pytest
from groups import Library, Refused

HEAD = "#include <metal_stdlib>\n#include <metal_logging>\nusing namespace metal;\n"

# statement -> text
LINES = {
    'os_log_default.log("plain")': "plain",
    'os_log_default.log("100%%")': "100%",
    'os_log_default.log("%d %i", -5, char(-7))': "-5 -7",
    'os_log_default.log("%u %x %5u|", 4000000000u, ushort(0xbeef), uchar(9))': "4000000000 beef     9|",
    'os_log_default.log("%ld %lu", long(-1) << 40, ~ulong(0))': f"{-(1 << 40)} {2**64 - 1}",
    'os_log_default.log("%f %.2f %g", 1.5f, half(0.25h), 1e10f)': "1.500000 0.25 1e+10",
    'os_log_default.log("%d%d", true, false)': "10",
    "os_log_default.log(\"%c%c\", 'o', 'k')": "ok",
    'os_log_default.log("%s!", "text")': "text!",
    'os_log_default.log("%.1v4f", float4(1, 2, 3, 4))': "1.0,2.0,3.0,4.0",
    'os_log_default.log("%v2d;%v3hhu", int2(-1, 5), uchar3(7, 8, 9))': "-1,5;7,8,9",
    'os_log_default.log("%2v2hld|", uint2(3, 4))': " 3, 4|",
    'os_log_default.log("%d %v2hlx %d", 1, uint2(15, 16), 2)': "1 f,10 2",
}


def test_arguments() -> None:
    body = ";\n  ".join(LINES)
    text = f"{HEAD}kernel void lines(uint i [[thread_position_in_grid]]) {{\n  {body};\n}}"
    lines = Library(text).run_logged("lines", [], 1, 1)
    assert [line[3] for line in lines] == list(LINES.values())


def test_levels_and_origin() -> None:
    text = f"""{HEAD}
constant os_log mine("com.example", "kernels");
kernel void levels(uint i [[thread_position_in_grid]]) {{
  mine.log_debug("a");
  mine.log_info("b");
  mine.log("c");
  mine.log_error("d");
  metal::os_log_default.log_fault("e");
}}"""
    lines = Library(text).run_logged("levels", [], 1, 1)
    origin = ("com.example", "kernels")
    want = [(*origin, level, text) for level, text in zip((1, 2, 3, 4), "abcd", strict=True)]
    assert lines == [*want, ("", "", 5, "e")]


def test_every_thread_of_every_threadgroup_prints() -> None:
    text = f"""{HEAD}
kernel void many(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
  uint total = simd_sum(1u);
  if (i % 2) os_log_default.log("%u of %u", i, total);
  out[i] = total;
}}"""
    out = np.zeros(192, np.uint32)
    lines = Library(text).run_logged("many", [out], 192, 64)
    assert sorted(line[3] for line in lines) == sorted(f"{i} of 32" for i in range(1, 192, 2))


def test_refused() -> None:
    text = (
        f'{HEAD}struct s {{ int x; }};\nkernel void refused() {{ os_log_default.log("%d", s()); }}'
    )
    with pytest.raises(Refused, match="a log message takes numbers"):
        Library(text)
