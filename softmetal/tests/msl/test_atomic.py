"""Atomic functions, with many threadgroups on all workers contending for a few words."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from groups import Library, Refused
from numpy.typing import NDArray
from seeds import generator

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
THREADS, GROUP, WORDS = 24 * 96, 96, 3  # thread i works on word i % WORDS

Array = NDArray[Any]
Fold = Callable[[Sequence[int]], int]


def fold(function: Callable[[int, int], int]) -> Fold:
    return functools.partial(functools.reduce, function)


# operation -> (initial value, the word's value after all operands)
FETCH: dict[str, tuple[int, Fold]] = {
    "fetch_add": (0, sum),
    "fetch_sub": (0, lambda values: -sum(values)),
    "fetch_and": (-1, fold(operator.and_)),
    "fetch_or": (0, fold(operator.or_)),
    "fetch_xor": (0, fold(operator.xor)),
    "fetch_min": (2**30, min),
    "fetch_max": (-(2**30), max),
}
TYPES = {"int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64}


def contend(msl_type: str, body: str, words: Array, operands: Array) -> Array:
    """Runs `body` once a thread: `word` points to its atomic, x is its operand, `old` the result."""
    text = f"""{HEAD}
typedef {msl_type} T;
kernel void contend(device atomic<T>* words [[buffer(0)]], device const T* in [[buffer(1)]],
                    device T* seen [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  device atomic<T>* word = words + i % {WORDS};
  T x = in[i], old = 0;
  {body}
  seen[i] = old;
}}"""
    seen = np.zeros_like(operands)
    Library(text).run("contend", [words, operands, seen], len(operands), GROUP)
    return seen


def integers(dtype: type[np.generic]) -> Array:
    low = 0 if np.dtype(dtype).kind == "u" else -(2**20)
    return generator(3).integers(low, 2**20, THREADS).astype(dtype)


@pytest.mark.parametrize("operation", FETCH)
@pytest.mark.parametrize("msl_type", TYPES)
def test_fetch(msl_type: str, operation: str) -> None:
    dtype = np.dtype(TYPES[msl_type])
    initial, want = FETCH[operation]
    start = np.array([initial] * WORDS).astype(dtype)
    if dtype.kind == "u" and operation == "fetch_max":
        start[:] = 0
    words, x = start.copy(), integers(dtype.type)
    body = f"old = atomic_{operation}_explicit(word, x, memory_order_relaxed);"
    seen = contend(msl_type, body, words, x)
    for k in range(WORDS):
        operands = [int(v) for v in x[k::WORDS]]
        assert words[k] == np.array(want(operands)).astype(dtype)
        assert start[k] in seen[k::WORDS]  # one of them was first


@pytest.mark.metal
def test_fetch_add_hands_out_each_ticket_once() -> None:
    words, ones = np.zeros(WORDS, np.uint32), np.ones(THREADS, np.uint32)
    body = "old = atomic_fetch_add_explicit(word, x, memory_order_relaxed);"
    seen = contend("uint", body, words, ones)
    for k in range(WORDS):
        np.testing.assert_array_equal(np.sort(seen[k::WORDS]), np.arange(THREADS // WORDS))


@pytest.mark.metal
@pytest.mark.parametrize(("operation", "sign"), [("add", 1), ("sub", -1)])
def test_float_addition(operation: str, sign: int) -> None:
    x = generator(4).standard_normal(THREADS).astype(np.float32)
    words = np.zeros(WORDS, np.float32)
    body = f"old = atomic_fetch_{operation}_explicit(word, x, memory_order_relaxed);"
    contend("float", body, words, x)
    want = [sign * x[k::WORDS].astype(float).sum() for k in range(WORDS)]
    np.testing.assert_allclose(words, want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("msl_type", [*TYPES, "float"])
def test_exchange_loses_nothing(msl_type: str) -> None:
    x = np.arange(1, THREADS + 1).astype({**TYPES, "float": np.float32}[msl_type])
    words = np.zeros(WORDS, x.dtype)
    body = "old = atomic_exchange_explicit(word, x, memory_order_relaxed);"
    seen = contend(msl_type, body, words, x)
    np.testing.assert_array_equal(np.sort([*seen, *words]), [0] * WORDS + sorted(x))


@pytest.mark.parametrize("msl_type", [*TYPES, "float"])
def test_compare_exchange_loop(msl_type: str) -> None:
    x = np.full(THREADS, 3).astype({**TYPES, "float": np.float32}[msl_type])
    words = np.zeros(WORDS, x.dtype)
    body = """
  old = atomic_load_explicit(word, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(word, &old, old + x, memory_order_relaxed,
                                                memory_order_relaxed)) {}"""
    contend(msl_type, body, words, x)
    assert words.tolist() == [3 * THREADS // WORDS] * WORDS


@pytest.mark.metal
def test_compare_exchange_reports_what_it_found() -> None:
    text = f"""{HEAD}
kernel void once(device atomic_int* word [[buffer(0)]], device int* out [[buffer(1)]]) {{
  int expected = 4;
  out[0] = atomic_compare_exchange_weak_explicit(word, &expected, 9, memory_order_relaxed,
                                                 memory_order_relaxed);
  out[1] = expected;
}}"""
    word, out = np.array([5], np.int32), np.array([-1, -1], np.int32)
    Library(text).run("once", [word, out], 1, 1)
    assert (word[0], *out) == (5, 0, 5)


@pytest.mark.parametrize(("operation", "want"), [("min", min), ("max", max)])
def test_64_bit_extremes(operation: str, want: Fold) -> None:
    x = generator(5).integers(0, 2**64, THREADS, np.uint64)
    start = np.full(WORDS, 2**63, np.uint64)
    words = start.copy()
    body = f"atomic_{operation}_explicit(word, x, memory_order_relaxed);"
    contend("ulong", body, words, x)
    for k in range(WORDS):
        assert words[k] == want([int(v) for v in (*x[k::WORDS], start[k])])


@pytest.mark.metal
def test_threadgroup_histogram() -> None:
    text = f"""{HEAD}
kernel void histogram(device atomic_uint* total [[buffer(0)]], device const uchar* in [[buffer(1)]],
                      uint i [[thread_position_in_grid]],
                      uint t [[thread_position_in_threadgroup]]) {{
  threadgroup atomic_uint bins[16];
  if (t < 16) atomic_store_explicit(&bins[t], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(bins + in[i] % 16, 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 16)
    atomic_fetch_add_explicit(&total[t], atomic_load_explicit(&bins[t], memory_order_relaxed),
                              memory_order_relaxed);
}}"""
    x = generator(6).integers(0, 256, THREADS).astype(np.uint8)
    total = np.zeros(16, np.uint32)
    Library(text).run("histogram", [total, x], THREADS, GROUP)
    np.testing.assert_array_equal(total, np.bincount(x % 16, minlength=16))


def test_casts_qualifiers_and_private_names() -> None:
    text = f"""{HEAD}
struct counters {{ atomic_int hits; atomic_bool flag; _atomic<uint> last; }};
kernel void odds(device uint* plain [[buffer(0)]], device counters& c [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {{
  atomic_fetch_add_explicit((device atomic_uint*)plain, 2u, memory_order_relaxed);
  volatile device atomic_int* hits = &c.hits;
  atomic_fetch_add_explicit(hits, 1, memory_order_relaxed);
  __metal_atomic_fetch_max_explicit(&c.last.__s, i, int(memory_order_relaxed),
                                    __METAL_MEMORY_SCOPE_DEVICE__);
  if (!atomic_exchange_explicit(&c.flag, true, memory_order_relaxed)) plain[1] = 1;
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
}}"""
    plain = np.zeros(2, np.uint32)
    counters = np.zeros(
        1, np.dtype([("hits", "i4"), ("flag", "?"), ("pad", "3u1"), ("last", "u4")])
    )
    Library(text).run("odds", [plain, counters], THREADS, GROUP)
    assert plain.tolist() == [2 * THREADS, 1]
    assert (counters["hits"][0], counters["flag"][0], counters["last"][0]) == (
        THREADS,
        True,
        THREADS - 1,
    )


@pytest.mark.parametrize(
    "statement",
    [
        "atomic_fetch_and_explicit((device atomic_float*)p, 1.0f, memory_order_relaxed);",
        "atomic_fetch_min_explicit((device atomic_float*)p, 1.0f, memory_order_relaxed);",
        "atomic_fetch_add_explicit((device atomic_bool*)p, true, memory_order_relaxed);",
        "device atomic<half>* q = (device atomic<half>*)p; q->__s = 1;",
        "atomic_uint a; atomic_uint b = a;",
    ],
)
def test_refused(statement: str) -> None:
    text = f"{HEAD}kernel void refused(device float* p [[buffer(0)]]) {{ {statement} }}"
    with pytest.raises(Refused, match=r"takes atomic integers|atomic<T> exists|deleted"):
        Library(text)
