"""Random kernels whose threads meet: barriers and simdgroup functions in uniform control flow,
around and beside control flow in which threads part."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

HEAD = """
#include <metal_stdlib>
using namespace metal;
kernel void k(device const uint* a [[buffer(0)]], device uint* out [[buffer(1)]],
              constant uint* p [[buffer(2)]], device atomic_uint* counts [[buffer(3)]],
              uint3 l [[thread_position_in_threadgroup]], uint3 g [[thread_position_in_grid]],
              uint3 size [[threads_per_threadgroup]], uint3 grid [[threads_per_grid]],
              uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
              uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup uint s[1024];
  threadgroup float f[1024];
  const uint n = size.x * size.y * size.z, place = (g.z * grid.y + g.y) * grid.x + g.x;
  uint u0 = a[place], u1 = l.x + 3 * l.y, u2 = t * 7u, u3 = g.x ^ p[3];
  float x0 = a[place] % 97, x1 = 0.25f * l.x, x2 = 1;
  uint own[4] = {t, 1, 2, 3};
  s[t] = 0, f[t] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
"""
TAIL = """
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[place] = u0 + 3 * u1 + 5 * u2 + 7 * u3 + own[u0 % 4] + s[(t + 1) % n] +
               as_type<uint>(x0) + as_type<uint>(x1) * 3 + as_type<uint>(x2) * 5 +
               as_type<uint>(f[(t + 5) % n]);
}
"""
WORDS, REALS = ("u0", "u1", "u2", "u3"), ("x0", "x1", "x2")
SHAPES = (
    ((128, 1, 1), (64, 1, 1)),
    ((32, 16, 1), (16, 8, 1)),
    ((20, 9, 2), (7, 5, 2)),
    ((75, 3, 1), (50, 2, 1)),
    ((2, 99, 1), (1, 33, 1)),
    ((300, 1, 1), (256, 1, 1)),
)


@dataclass
class Writer:
    """Writes the body of a kernel. Every statement gives the same result on every correct
    implementation: threads read what others wrote only after a barrier."""

    random: np.random.Generator
    lanes: bool  # simdgroup functions too
    names: int = 0
    lines: list[str] = field(default_factory=list)

    def one(self, *choices: str) -> str:
        return str(self.random.choice(choices))

    def number(self, end: int) -> int:
        return int(self.random.integers(end))

    def word(self) -> str:
        a, b = self.one(*WORDS), self.one(*WORDS, "t", "l.y", "p[1]", f"{self.number(9)}u")
        operation = self.one("+", "*", "^", "-", "|", "&", ">> 3 ^", "% 13 +")
        return self.one(f"{a} {operation} {b}", f"a[({a} + {b}) % 64]", f"own[{a} % 4] + {b}")

    def real(self) -> str:
        a, b = self.one(*REALS), self.one(*REALS, "float(u1 % 8)", "0.5f")
        return self.one(f"{a} * {b} + 1", f"fmin({a}, {b} * 3)", f"{a} - {b}", f"{a} / 4 + {b}")

    def assign(self) -> str:
        if self.number(3) == 0:
            return f"{self.one(*REALS)} = {self.real()};"
        if self.number(6) == 0:
            return f"own[{self.one(*WORDS)} % 4] = {self.word()};"
        return f"{self.one(*WORDS)} {self.one('=', '+=', '^=')} {self.word()};"

    def alone(self) -> str:
        """What threads do by themselves, perhaps apart from each other."""
        a, few = self.one(*WORDS), " ".join(self.assign() for _ in range(1 + self.number(2)))
        self.names += 1
        i = f"i{self.names}"
        return self.one(
            *(few, few),
            f"if ({a} % 3 == {self.number(3)}) {{ {few} }} else {{ {self.assign()} }}",
            f"for (uint {i} = t; {i} < p[2] + 40; {i} += 16) {{ {few} u1 += a[{i} % 64]; }}",
            f"for (uint {i} = 0; {i} < {a} % 5; {i}++) {{ if (u0 % 7 == {i}) break; {few} }}",
            f"if (t == {self.number(40)}) {{ {few} }}",
            f"atomic_fetch_add_explicit(&counts[{a} % 8], {i[1:]}u, memory_order_relaxed);",
        )

    def exchange(self) -> str:
        """Threads read what others have written."""
        barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
        if self.number(3) == 0:
            name, step = self.one(*REALS), self.number(40)
            return f"f[t] = {name}; {barrier} {name} += f[(t + {step}) % n]; {barrier}"
        name, step = self.one(*WORDS), self.number(40)
        return f"s[t] = {name}; {barrier} {name} ^= s[(t + {step}) % n] * 3; {barrier}"

    def share(self) -> str:
        """A simdgroup function, which all lanes call. Lanes that do not exist are not read."""
        word, real = self.one(*WORDS), self.one(*REALS)
        return self.one(
            f"{word} += simd_sum({word});",
            f"{word} = simd_shuffle({word}, ({word} ^ 3) % min(32u, n - simd * 32));",
            f"{word} ^= simd_prefix_exclusive_sum({word} % 16);",
            f"{real} = simd_max({real});",
            f"{real} += simd_sum({real} * 0.125f);",
            f"{word} += simd_broadcast({word}, 0);",
            f"{word} += uint(uint64_t(simd_ballot({word} % 2 == 0)));",
            f"if (simd_any({word} % 5 == 1)) {{ {self.assign()} {word} += simd_min({word}); }}",
            f"if (simd == 0) {{ {word} += simd_sum(lane + {word}); }}",
            "simdgroup_barrier(mem_flags::mem_threadgroup);",
            f"s[t] = {word}; simdgroup_barrier(mem_flags::mem_threadgroup);"
            f" {word} += s[(t ^ 1) < n ? t ^ 1 : t]; simdgroup_barrier(mem_flags::mem_threadgroup);",
        )

    def together(self, depth: int) -> str:
        """What all threads do, with meetings in it."""
        kind = self.number(8 if depth else 5)
        if kind < 2:
            return self.alone()
        if kind < 5:
            return self.share() if self.lanes and self.number(2) else self.exchange()
        body = " ".join(self.together(depth - 1) for _ in range(1 + self.number(3)))
        self.names += 1
        i = f"i{self.names}"
        if kind == 5:
            return f"if (p[{self.number(4)}] > {self.number(6)}) {{ {body} }}"
        if kind == 6:
            return f"for (uint {i} = 0; {i} < p[{self.number(3)}]; {i}++) {{ {body} u2 += {i}; }}"
        other = self.exchange()
        return f"if (p[{self.number(4)}] % 2 == 0) {{ {body} }} else {{ {other} }}"

    def source(self) -> str:
        body = "\n".join("  " + self.together(2) for _ in range(6))
        return f"{HEAD}{body}{TAIL}"
