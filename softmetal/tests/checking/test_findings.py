"""What findings say, and that checking changes nothing else."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fault_host import ALL_MODES, Host
from fault_model import HEAD, Fault, Launch, filled, zeros
from faults import FAULTS

import softmetal
from softmetal.errors import SoftmetalError

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

NAMED: dict[str, Fault] = {fault.name: fault for fault in FAULTS}


def run(body, launch, *modes, seed=None):
    """Findings and buffers of the kernel `k` with this text."""
    with softmetal.checking(*modes, seed=seed):
        host = Host(HEAD + body)
        buffers = host.launch("k", launch)
        return host.findings(), buffers


def read(buffer, dtype="f4"):
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype).copy()


# ---- the text ----

PAST_END = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t + 1] = t;
}
"""


def test_the_text_of_a_bounds_finding():
    findings, _ = run(PAST_END, Launch((zeros(64),)), "bounds")
    assert findings == [
        "bounds: kernel 'k' writes 4 bytes beyond buffer 0 'o': element 64 of 64 float "
        "(byte 256 of 256), thread (63, 0, 0) of threadgroup (0, 0, 0), at program_source:5:12"
    ]


def test_labels_are_named():
    with softmetal.checking("bounds"):
        host = Host(HEAD + PAST_END)
        out = host.buffer()
        out.setLabel_("activations")
        commands = host.commands()
        host.run_one(commands, "k", [out])
        host.commit(commands)
        (finding,) = host.findings()
    assert "beyond buffer 0 'activations': element 64 of 64 float" in finding


def test_the_text_of_a_race():
    body = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t == 40) s[9] = t;
  if (t == 3) o[t] = s[9];
}
"""
    findings, _ = run(body, Launch((zeros(64),)), "race", seed=12345)
    (finding,) = findings
    found = re.fullmatch(
        r"race: kernel 'k': threadgroup memory 's' element 9 is (read|written) by thread "
        r"\((\d+), 0, 0\) at program_source:(\d):\d+ and (read|written) by thread \((\d+), 0, 0\) "
        r"at program_source:(\d):\d+ with no barrier between them, "
        r"threadgroup \(0, 0, 0\), seed 12345",
        finding,
    )
    assert found, finding
    one, other = found.groups()[:3], found.groups()[3:]
    assert {one, other} == {("written", "40", "6"), ("read", "3", "7")}


def test_the_text_of_an_uninitialised_read():
    body = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t != 3) s[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 7) o[t] = s[3];
}
"""
    (finding,), _ = run(body, Launch((zeros(64),)), "uninit")
    assert finding.startswith(
        "uninit: kernel 'k' reads threadgroup memory 's' element 3 before it is written, "
        "thread (7, 0, 0) of threadgroup (0, 0, 0), at program_source:8:"
    )


def test_the_text_of_a_divergent_barrier():
    body = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  if (t != 40)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  o[t] = t;
}
"""
    findings, _ = run(body, Launch((zeros(64),)), "race", seed=3)
    assert re.fullmatch(
        r"race: kernel 'k': a barrier at program_source:6:\d+ is not reached by all threads of "
        r"threadgroup \(0, 0, 0\): thread \(40, 0, 0\) has ended, seed 3",
        findings[0],
    ), findings


@pytest.mark.parametrize(
    ("cell", "threads", "groups", "thread", "group"),
    [
        (0, (4, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0)),
        (127, (4, 2, 2), (2, 2, 2), (3, 1, 1), (1, 1, 1)),
        (37, (4, 2, 2), (2, 2, 2), (1, 0, 1), (1, 0, 0)),
        (9, (5, 3, 1), (2, 2, 1), (4, 0, 0), (1, 0, 0)),
    ],
)
def test_thread_and_threadgroup_in_three_dimensions(cell, threads, groups, thread, group):
    body = """
kernel void k(device uint* o [[buffer(0)]], constant uint& cell [[buffer(1)]],
              uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]],
              uint3 g [[threadgroup_position_in_grid]]) {
  uint i = (p.z * n.y + p.y) * n.x + p.x;
  o[i == cell ? i + 1000 : i] = g.x;
}
"""
    launch = Launch((zeros(200, "u4"), filled([cell])), threads, groups)
    (finding,), _ = run(body, launch, "bounds")
    assert f"element {cell + 1000} of 200 uint (byte {4 * cell + 4000} of 800)" in finding
    assert f"thread {thread} of threadgroup {group}, at program_source:8:" in finding


@pytest.mark.parametrize(
    ("type_", "dtype", "size"),
    [("uchar", "u1", 1), ("half", "f2", 2), ("uint", "u4", 4), ("ulong", "u8", 8)],
)
def test_element_numbers_of_each_width(type_, dtype, size):
    body = f"""
kernel void k(device {type_}* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {{
  o[t] = {type_}(t);
}}
"""
    (finding,), _ = run(body, Launch((zeros(21, dtype),), threads=(22,)), "bounds")
    assert f"writes {size} bytes beyond" in finding.replace("1 byte ", "1 bytes ")
    assert f"element 21 of 21 {type_} (byte {21 * size} of {21 * size})" in finding


# ---- several findings, several modes ----

THREE = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  threadgroup float unset[64];
  s[t] = t;
  o[t] = s[63 - t];
  o[t] += unset[t];
  o[t + 1000] = 0;
}
"""


def test_modes_combine():
    findings, _ = run(THREE, Launch((zeros(64),)), *ALL_MODES)
    assert {finding.partition(":")[0] for finding in findings} == set(ALL_MODES)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_mode_alone_finds_only_its_own(mode):
    findings, _ = run(THREE, Launch((zeros(64),)), mode)
    assert findings
    assert {finding.partition(":")[0] for finding in findings} == {mode}


def test_two_faults_of_one_dispatch_are_both_found():
    body = """
kernel void k(device float* o [[buffer(0)]], device float* a [[buffer(1)]],
              uint t [[thread_position_in_grid]]) {
  o[t + 1] = t;
  a[t + 2] = t;
}
"""
    findings, _ = run(body, Launch((zeros(64), zeros(64))), "bounds")
    assert len(findings) == 2
    assert {re.search(r"buffer (\d)", finding)[1] for finding in findings} == {"0", "1"}
    assert {re.search(r"program_source:(\d)", finding)[1] for finding in findings} == {"6", "7"}


def test_all_threads_at_one_place_are_one_finding():
    body = """
kernel void k(device float* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t + 64] = t;
}
"""
    findings, _ = run(body, Launch((zeros(64),), groups=(4,)), "bounds")
    assert len(findings) == 1


def test_the_status_says_error_and_later_work_goes_on():
    with softmetal.checking("bounds"):
        host = Host(HEAD + PAST_END)
        host.launch("k", Launch((zeros(64),)))
        host.launch("k", Launch((zeros(65),)))
        assert len(host.findings()) == 1
    bad, good = host.committed
    assert bad.status() == softmetal.MTLCommandBufferStatusError
    assert good.status() == softmetal.MTLCommandBufferStatusCompleted


# ---- seeds ----


@pytest.mark.parametrize("name", ["barrier_in_reduction", "all_write_one_word", "scatter_collides"])
def test_a_seed_reproduces_its_finding(name):
    fault = NAMED[name]

    def once(seed):
        with softmetal.checking("race", seed=seed):
            host = Host(fault.source)
            host.launch("faulty", fault.launch)
            return host.findings()

    assert once(7) == once(7)
    assert once(7)[0].endswith("seed 7")


@pytest.mark.parametrize("given", [None, "97"])
def test_a_seed_is_chosen_and_told(monkeypatch, given):
    monkeypatch.delenv("SOFTMETAL_SEED")
    if given is None:
        with softmetal.checking("race") as one, softmetal.checking("race") as other:
            assert one.seed != other.seed
    else:
        monkeypatch.setenv("SOFTMETAL_SEED", given)
    with softmetal.checking("race") as check:
        assert given is None or check.seed == int(given)
        fault = NAMED["barrier_before_read"]
        host = Host(fault.source)
        host.launch("faulty", fault.launch)
        assert host.findings()[0].endswith(f"seed {check.seed}")


def test_seeds_change_the_order_of_threads():
    body = """
kernel void k(device atomic_uint* next [[buffer(0)]], device uint* o [[buffer(1)]],
              uint i [[thread_position_in_grid]]) {
  o[i] = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_none);
}
"""
    orders = set()
    for seed in range(1, 6):
        launch = Launch((zeros(1, "u4"), zeros(256, "u4")), groups=(4,))
        findings, buffers = run(body, launch, "race", seed=seed)
        assert findings == []
        order = read(buffers[1], "u4")
        assert sorted(order) == list(range(256))
        orders.add(order.tobytes())
    assert len(orders) > 1


# ---- clean kernels ----

CLEAN = {
    "neighbouring bytes of one word": (
        """
kernel void k(device uchar* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t] = t;
}
""",
        (zeros(256, "u1"),),
        np.arange(256, dtype="u1"),
    ),
    "halves of one word": (
        """
kernel void k(device half* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t] = half(t);
}
""",
        (zeros(256, "f2"),),
        np.arange(256, dtype="f2"),
    ),
    "bytes of threadgroup memory": (
        """
kernel void k(device uint* o [[buffer(0)]], uint i [[thread_position_in_grid]],
              uint t [[thread_position_in_threadgroup]]) {
  threadgroup uchar s[64];
  s[t] = t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[63 - t];
}
""",
        (zeros(256, "u4"),),
        np.tile(np.arange(64, dtype="u4")[::-1], 4),
    ),
    "packed vectors side by side": (
        """
kernel void k(device packed_half3* o [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  o[t] = packed_half3(half3(half(t)));
}
""",
        (zeros(768, "f2"),),
        np.repeat(np.arange(256), 3).astype("f2"),
    ),
    "simdgroup functions order nothing and do not race": (
        """
kernel void k(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  o[i] = simd_sum(1.0f) + quad_broadcast(float(i), 0);
}
""",
        (zeros(256),),
        32 + np.arange(256, dtype="f4") // 4 * 4,
    ),
    "a thread's own element, again and again": (
        """
kernel void k(device float* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  for (uint k = 0; k < 9; k++) o[i] += k;
}
""",
        (zeros(256),),
        np.full(256, 36, "f4"),
    ),
    "private arrays": (
        """
kernel void k(device uint* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  uint own[16];
  for (uint k = 0; k < 16; k++) own[k] = k * i;
  for (uint k = 0; k < 15; k++) own[(k * 7 + i) % 16] += own[(k + i) % 16] * 0;
  uint sum = 0;
  for (uint k = 0; k < 16; k++) sum += own[k];
  o[i] = sum;
}
""",
        (zeros(256, "u4"),),
        np.arange(256, dtype="u4") * 120,
    ),
    "many barriers": (
        """
kernel void k(device uint* o [[buffer(0)]], uint i [[thread_position_in_grid]],
              uint t [[thread_position_in_threadgroup]]) {
  threadgroup uint s[64];
  s[t] = t;
  for (uint k = 0; k < 700; k++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint next = s[(t + 1) % 64];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[t] = next;
  }
  o[i] = s[t];
}
""",
        (zeros(256, "u4"),),
        np.tile((np.arange(64, dtype="u4") + 700) % 64, 4),
    ),
    "threadgroup memory as another type": (
        """
kernel void k(device float4* o [[buffer(0)]], uint i [[thread_position_in_grid]],
              uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[256];
  for (uint k = 0; k < 4; k++) s[64 * k + t] = 64 * k + t;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = *(threadgroup float4*)(s + 4 * t);
}
""",
        (zeros(1024),),
        np.tile(np.arange(256, dtype="f4"), 4),
    ),
    "a private copy of a struct": (
        """
struct Block { half scale; uchar quants[16]; };
kernel void k(device Block* o [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  Block block;
  block.scale = half(i);
  for (uint k = 0; k < 16; k++) block.quants[k] = i;
  o[i] = block;
}
""",
        (zeros(256 * 9, "u2"),),
        np.concatenate(
            [[np.float16(i).view("u2")] + [(i % 256) * 257] * 8 for i in range(256)]
        ).astype("u2"),
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_kernels_stay_clean_and_right(name):
    body, buffers, want = CLEAN[name]
    for seed in (1, 5):
        findings, bound = run(body, Launch(buffers, groups=(4,)), *ALL_MODES, seed=seed)
        assert findings == []
        np.testing.assert_array_equal(read(bound[0], want.dtype.str), want)


def test_accesses_out_of_bounds_do_no_harm():
    guard = np.full(64, 7, "u4")
    with softmetal.checking("bounds"):
        host = Host(HEAD + PAST_END.replace("o[t + 1]", "o[long(t) * 100000007 + 64]"))
        heap = host.heap(1024)
        out = heap.newBufferWithLength_options_(256, heap.resourceOptions())
        after = heap.newBufferWithLength_options_(256, heap.resourceOptions())
        after.contents().as_buffer(256)[:] = guard.tobytes()
        commands = host.commands()
        host.run_one(commands, "k", [out])
        host.commit(commands)
        assert host.findings()
    np.testing.assert_array_equal(read(after, "u4"), guard)


# ---- switching them on ----


def test_nothing_is_checked_unless_asked():
    fault = NAMED["barrier_before_read"]
    host = Host(fault.source)
    host.launch("faulty", fault.launch)
    assert host.findings() == []


def test_findings_are_collected():
    with softmetal.checking("bounds") as check:
        host = Host(HEAD + PAST_END)
        host.launch("k", Launch((zeros(64),)))
        found = host.findings()
        assert check.findings == found
    assert len(found) == 1


def test_contexts_nest():
    with softmetal.checking("bounds") as outer:
        with softmetal.checking("uninit") as inner:
            findings, _ = run(THREE, Launch((zeros(64),)), "race")
            assert findings
        run(PAST_END, Launch((zeros(64),)), "bounds")
        assert inner is not outer
    host = Host(HEAD + PAST_END)
    host.launch("k", Launch((zeros(65),)))
    assert host.findings() == []


def test_unknown_modes_are_refused():
    with pytest.raises(SoftmetalError, match=r"bonds.*bounds"), softmetal.checking("bonds"):
        pass
