"""Clang's builtins and LLVM's intrinsics that kernels may use: those that compute values, access
memory where checking modes see it, or advise the optimiser.

All others are refused, as some write memory, leave the function or change the processor's state.
"""

from __future__ import annotations

import re

# Words that name a builtin, or a function of the runtime or of the checks.
_RESERVED = re.compile(
    r"__(builtin|nvvm|amdgcn|sync|atomic|c11_atomic|scoped_atomic|opencl_atomic|hip_atomic|asan|xray"
    r"|arm|aarch64|ia32)_\w+|softmetal_\w+"
)
_MATHS = (
    r"a?(sin|cos|tan)h?|sincos|sincospi|sinpi|cospi|tanpi|atan2|exp(2|10|m1)?|log(2|10|1p|b)?|powi?|sqrt|cbrt"
    r"|hypot|erfc?|[lt]gamma|fmod|remainder|fdim|fma(x|xnum|ximum|ximum_num)?|fmin(imum|imum_num)?|fabs"
    r"|copysign|ceil|floor|trunc|round(even)?|rint|nearbyint|l?l(round|rint)|ldexp|frexp|modf|scalbl?n"
    r"|ilogb|nextafter"
)
_WORDS = re.compile(
    r"__builtin_("
    r"elementwise_\w+|reduce_\w+|bit_cast|astype|shufflevector|shuffle|convertvector|vectorelements"
    # Integers. Those with overflow store through a pointer as any assignment does.
    r"|(clz|ctz|popcount|parity|ffs|clrsb)(s|l|ll|g)?|(bswap|bitreverse|rotateleft|rotateright)\d*g?"
    r"|std(c_\w+)|[su]?(add|sub|mul)l{0,2}_overflow|(add|sub)c[bs]?|(add|sub)cl{1,2}|l?l?abs"
    # Floating point.
    rf"|(inf|nans?|huge_val)(f|l|f16|f128)?|({_MATHS})(f|f16)?|is\w+|signbitf?|fpclassify|canonicalizef?"
    # Memory, which is checked like any other.
    r"|mem(cpy|move|set)(_inline)?|nontemporal_(load|store)|prefetch|addressof|launder|assume_aligned"
    r"|align_(up|down)"
    # What the compiler knows, and what it is told.
    r"|expect(_with_probability)?|assume|assume_separate_storage|unpredictable|unreachable|constant_p"
    r"|choose_expr|types_compatible_p|offsetof|(dynamic_)?object_size|LINE|COLUMN|FILE|FILE_NAME|FUNCTION"
    # They end the kernel with an error of its command buffer.
    r"|(debug)?trap|abort|verbose_trap"
    r")"
)
_INTRINSICS = (
    # Values.
    rf"({_MATHS})|(min|max)num|(min|max)imum(num)?|fmuladd|canonicalize|is\.fpclass|fpto[su]i\.sat"
    r"|convert\.(to|from)\.fp16|arithmetic\.fence|ct(lz|tz|pop)|bitreverse|bswap|fsh[lr]|abs|[su](max|min|cmp)"
    r"|[su](add|sub|shl)\.sat|[su](add|sub|mul)\.with\.overflow"
    r"|vector\.(reduce\.\w+|insert|extract|reverse|splice|(de)?interleave\d)"
    # Memory. Checking modes replace copies by their own functions; tables of a switch are relative.
    r"|mem(cpy|move|set)(\.inline)?|load\.relative|threadlocal\.address|ptrmask|prefetch"
    # Advice, and ends of a kernel.
    r"|assume|expect(\.with\.probability)?|lifetime\.(start|end)|invariant\.(start|end)|sideeffect|donothing"
    r"|launder\.invariant\.group|strip\.invariant\.group|is\.constant|objectsize|ssa\.copy|fake\.use"
    r"|(var\.|ptr\.)?annotation|dbg\.\w+|experimental\.(noalias\.scope\.decl|convergence\.\w+)|(debug|ubsan)?trap"
)


def is_refused(word: str) -> bool:
    """Whether a word of a source names a builtin that kernels cannot use."""
    return _RESERVED.fullmatch(word) is not None and _WORDS.fullmatch(word) is None


def intrinsics(of_the_target: str = "(?!)") -> re.Pattern[str]:
    """The names of LLVM's intrinsics that the code of a kernel may call, for all types."""
    return re.compile(rf"llvm\.({_INTRINSICS}|{of_the_target})(\.[\w.]+)?")
