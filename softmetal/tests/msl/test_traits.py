"""Limits, constants, traits, utilities, array and uniform: mostly compile-time facts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import TYPES, Case, bfloat16, check, evaluate_all

FLOATS = [np.dtype(np.float32), np.dtype(np.float16), bfloat16]


@pytest.mark.parametrize("dtype", [d for d in TYPES if d.kind in "iu"], ids=str)
def test_integer_limits(dtype: np.dtype) -> None:
    info, limits = np.iinfo(dtype), f"numeric_limits<{TYPES[dtype]}>"
    signed = dtype.kind == "i"
    cases = [Case(f"{limits}::{f}()", out=dtype) for f in ("min", "lowest", "max")]
    got = [int(v[0]) for v in evaluate_all(cases)]
    assert got == [info.min, info.min, info.max]
    check(f"""
    static_assert({limits}::is_specialized && {limits}::is_integer && {limits}::is_exact, "");
    static_assert({limits}::is_signed == {str(signed).lower()}, "");
    static_assert({limits}::digits == {info.bits - signed}, "");
    static_assert({limits}::digits10 == {len(str(info.max)) - 1} && {limits}::radix == 2, "");
    static_assert(!{limits}::has_infinity && {limits}::is_bounded, "");""")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_limits(dtype: np.dtype) -> None:
    info = ml_dtypes.finfo(dtype)
    wanted = {
        "max": info.max,
        "lowest": info.min,
        "min": info.smallest_normal,
        "denorm_min": info.smallest_subnormal,
        "epsilon": info.eps,
        "infinity": np.inf,
        "quiet_NaN": np.nan,
        "round_error": 0.5,
    }
    limits = f"numeric_limits<{TYPES[dtype]}>"
    values = evaluate_all([Case(f"{limits}::{f}()", out=dtype) for f in wanted], fast_math=False)
    got = [float(v[0]) for v in values]
    np.testing.assert_array_equal(got, [float(v) for v in wanted.values()])
    check(f"""
    static_assert({limits}::digits == {info.nmant + 1} && {limits}::max_exponent == {info.maxexp}, "");
    static_assert({limits}::min_exponent == {info.minexp + 1}, "");
    static_assert({limits}::digits10 == {int((info.nmant) * 0.30103)}, "");
    static_assert({limits}::is_signed && {limits}::is_iec559 && !{limits}::is_integer, "");""")


def test_macros() -> None:
    wanted = {
        "FLT_MAX": np.finfo(np.float32).max,
        "FLT_MIN": np.finfo(np.float32).tiny,
        "FLT_EPSILON": np.finfo(np.float32).eps,
        "MAXFLOAT": np.finfo(np.float32).max,
        "INFINITY": np.inf,
        "HUGE_VALF": np.inf,
        "float(HALF_MAX)": 65504,
        "float(HALF_MIN)": 2.0**-14,
        "float(HALF_EPSILON)": 2.0**-10,
        "float(MAXHALF)": 65504,
        "M_PI_F": np.float32(np.pi),
        "M_E_F": np.float32(np.e),
        "M_SQRT1_2_F": np.float32(0.5**0.5),
        "float(M_PI_H)": np.float16(np.pi),
        "float(M_LN2_H)": np.float16(np.log(2)),
        "NAN": np.nan,
    }
    got = [float(v[0]) for v in evaluate_all([Case(m) for m in wanted], fast_math=False)]
    np.testing.assert_array_equal(got, [float(v) for v in wanted.values()])
    integers = {"CHAR": "int8", "SHRT": "int16", "INT": "int32", "LONG": "int64"}
    lines = [
        f'static_assert({macro}_{end.upper()} == numeric_limits<{TYPES[np.dtype(t)]}>::{end}(), "");'
        for macro, t in integers.items()
        for end in ("min", "max")
    ]
    lines += [
        f'static_assert(U{m}_MAX == numeric_limits<{TYPES[np.dtype("u" + t)]}>::max(), "");'
        for m, t in integers.items()
    ]
    check("\n".join(lines))


TRUE = """
is_same_v<int, int>|!is_same_v<int, uint>|is_same<float, metal::float2>::value == false
is_integral_v<long>|is_integral_v<bool>|!is_integral_v<half>|!is_integral_v<int2>
is_floating_point_v<half>|is_floating_point_v<bfloat>|is_floating_point_v<const float>
!is_floating_point_v<int>|is_arithmetic_v<bfloat>|is_arithmetic_v<char>|!is_arithmetic_v<float4>
is_signed_v<half>|is_signed_v<char>|!is_signed_v<uint>|is_unsigned_v<ulong>|!is_unsigned_v<float>
is_scalar_v<half>|is_scalar_v<device int*>|!is_scalar_v<float4>
is_pointer_v<device float*>|!is_pointer_v<float>|is_array_v<int[3]>|is_const_v<const int>
is_enum_v<E>|is_class_v<S>|is_base_of_v<S, D>|!is_base_of_v<D, S>
is_convertible_v<int, float>|!is_convertible_v<S, int>|is_convertible_v<D, S>
is_constructible_v<float4, float2, float2>|!is_constructible_v<float4, float2>
is_trivially_copyable_v<half3>|is_default_constructible_v<S>|is_void_v<void>|is_function_v<void(int)>
is_same_v<conditional_t<true, int, float>, int>|is_same_v<enable_if_t<true, half>, half>
is_same_v<remove_cv_t<const volatile int>, int>|is_same_v<remove_const_t<const int>, int>
is_same_v<remove_reference_t<int&&>, int>|is_same_v<decay_t<const int&>, int>
is_same_v<remove_pointer_t<int*>, int>|is_same_v<add_pointer_t<int>, int*>
is_same_v<make_unsigned_t<short>, ushort>|is_same_v<make_signed_t<uint>, int>
is_same_v<underlying_type_t<E>, uchar>|is_same_v<common_type_t<int, float>, float>
is_same_v<common_type_t<char, short, long>, long>
is_same_v<invoke_result_t<F, float>, int>|is_same_v<decltype(declval<S>().x), int>
is_same_v<remove_addrspace_t<float>, float>|is_same_v<remove_cvref_t<const int&>, int>
conjunction_v<true_type, is_same<int, int>>|!conjunction_v<true_type, false_type>|conjunction_v<>
disjunction_v<false_type, true_type>|!disjunction_v<false_type>|negation_v<false_type>
_disjunction<is_same<int, float>, is_same<int, int>>::value|bool_constant<true>::value
integral_constant<int, 7>() == 7|integral_constant<int, 7>{}() == 7|true_type::value
vec_elements<float3>::value == 3|vec_elements<half>::value == 1|extent_v<int[5]> == 5
is_same_v<make_index_sequence<3>, index_sequence<0, 1, 2>>|is_same_v<vec<float, 4>, float4>
is_same_v<packed_vec<half, 3>, packed_half3>|is_same_v<matrix<float, 2, 3>, float2x3>
is_same_v<simd_float4x4, float4x4>|is_same_v<simd::float3, float3>
is_same_v<vector_uint2, uint2>|is_same_v<float4::element_type, float>
is_uniform_v<uniform<int>>|make_uniform(6) / make_uniform(4) == 1
"""


def test_traits() -> None:
    checks = [f'static_assert({c}, "");' for line in TRUE.split("\n") for c in line.split("|") if c]
    check(
        "#include <simd/simd.h>\nenum E : uchar { one }; struct S { int x; }; struct D : S {};"
        "struct F { int operator()(float) const { return 0; } };\n" + "\n".join(checks)
    )


def test_a_program_specialises_the_limits_of_its_type() -> None:
    check("""
    struct fixed { short bits; };
    template <> struct metal::_numeric_limits_impl<fixed> : metal::_fp_numeric_limits_impl_base {
      static constexpr constant int digits = 9;
      static constexpr fixed max() { return {32767}; }
    };
    static_assert(numeric_limits<fixed>::digits == 9 && numeric_limits<fixed>::is_signed, "");
    static_assert(numeric_limits<fixed>::max().bits == 32767, "");""")


def test_array_and_utilities() -> None:
    body = """
    array<int, 4> v = {a.x, a.y, 3, 4}; metal::swap(v[0], v[3]); thread int& x = v.back(); x += 10;
    int old = exchange(v[1], 7); int sum = 0; for (int e : v) sum += e;
    result = int4(sum, old, int(v.size()), metal::move(v[0]));"""
    a = np.array([[5, 6], [1, 2]], np.int32)
    got = evaluate_all([Case(body, [a], np.int32, 4)])[0]
    np.testing.assert_array_equal(got, [[4 + 7 + 3 + 15, 6, 4, 4], [4 + 7 + 3 + 11, 2, 4, 4]])


def test_headers_stand_alone() -> None:
    """Each of Apple's headers can be included by itself."""
    for header in (
        "types config type_traits utility limits array uniform integer relational math common"
        " geometric matrix pack numeric packed_vector extended_vector assert atomic compute simdgroup"
    ).split():
        check(f"#include <metal_{header}>")


def test_a_program_may_add_what_metal_lacks() -> None:
    """Real kernels define these in namespace metal, and their own swap and bfloat functions."""
    check("""
    namespace metal {
    template <typename T> struct is_empty : metal::bool_constant<__is_empty(T)> {};
    template <typename T> constexpr constant bool is_empty_v = is_empty<T>::value;
    template <typename... T> struct make_void { typedef void type; };
    template <typename... T> using void_t = typename make_void<T...>::type;
    bfloat clamp(bfloat x, bfloat low, bfloat high) { return x < low ? low : x > high ? high : x; }
    bool isnan(bfloat x) { return x != x; }
    }
    template <typename T> void swap(thread T& a, thread T& b) { T c = a; a = b; b = c; }
    void f(thread bfloat& x, thread bfloat& y) {
      swap(x, y);
      static_assert(is_same_v<decltype(clamp(x, x, y)), bfloat> && !isnan(1.0f), "");
    }""")


def test_coherent_is_accepted() -> None:
    check("kernel void f(volatile coherent(system) device uint* p [[buffer(0)]]) { p[0] = 1; }")


def test_types_of_simdgroup_functions() -> None:
    """The private trait by which programs choose an algorithm."""
    valid = ("float", "half", "int", "uint", "short", "uchar", "float4", "half2", "uint3")
    for kind in (*valid, "long", "ulong", "bfloat", "ulong2", "S"):
        value = "true" if kind in valid else "false"
        check(f"struct S {{ int a; }}; static_assert("
              f"__is_valid_simdgroup_type<{kind}>::value == {value}, \"\");")  # fmt: skip
