// SM_SWIZZLES(n): every 2-, 3- and 4-component swizzle of an n-component vec, as properties.
// A property has a setter only where its components are distinct: `v.xx = w` is an error in MSL.
#ifndef SOFTMETAL_SWIZZLE_H
#define SOFTMETAL_SWIZZLE_H

// One list of (index, xyzw name, rgba name) for each level: a macro cannot expand inside itself.
#define SM_AXES_A2(M, ...) M(0, x, r, __VA_ARGS__) M(1, y, g, __VA_ARGS__)
#define SM_AXES_B2(M, ...) M(0, x, r, __VA_ARGS__) M(1, y, g, __VA_ARGS__)
#define SM_AXES_C2(M, ...) M(0, x, r, __VA_ARGS__) M(1, y, g, __VA_ARGS__)
#define SM_AXES_D2(M, ...) M(0, x, r, __VA_ARGS__) M(1, y, g, __VA_ARGS__)
#define SM_AXES_A3(M, ...) SM_AXES_A2(M, __VA_ARGS__) M(2, z, b, __VA_ARGS__)
#define SM_AXES_B3(M, ...) SM_AXES_B2(M, __VA_ARGS__) M(2, z, b, __VA_ARGS__)
#define SM_AXES_C3(M, ...) SM_AXES_C2(M, __VA_ARGS__) M(2, z, b, __VA_ARGS__)
#define SM_AXES_D3(M, ...) SM_AXES_D2(M, __VA_ARGS__) M(2, z, b, __VA_ARGS__)
#define SM_AXES_A4(M, ...) SM_AXES_A3(M, __VA_ARGS__) M(3, w, a, __VA_ARGS__)
#define SM_AXES_B4(M, ...) SM_AXES_B3(M, __VA_ARGS__) M(3, w, a, __VA_ARGS__)
#define SM_AXES_C4(M, ...) SM_AXES_C3(M, __VA_ARGS__) M(3, w, a, __VA_ARGS__)
#define SM_AXES_D4(M, ...) SM_AXES_D3(M, __VA_ARGS__) M(3, w, a, __VA_ARGS__)

#define SM_DIFFER_00 0
#define SM_DIFFER_01 1
#define SM_DIFFER_02 1
#define SM_DIFFER_03 1
#define SM_DIFFER_10 1
#define SM_DIFFER_11 0
#define SM_DIFFER_12 1
#define SM_DIFFER_13 1
#define SM_DIFFER_20 1
#define SM_DIFFER_21 1
#define SM_DIFFER_22 0
#define SM_DIFFER_23 1
#define SM_DIFFER_30 1
#define SM_DIFFER_31 1
#define SM_DIFFER_32 1
#define SM_DIFFER_33 0
#define SM_AND_00 0
#define SM_AND_01 0
#define SM_AND_10 0
#define SM_AND_11 1
#define SM_PASTE(a, b) SM_PASTE_(a, b)
#define SM_PASTE_(a, b) a##b
#define SM_AND(a, b) SM_PASTE(SM_AND_, SM_PASTE(a, b))

#define SM_GETTER(size, suffix, ...)                                                   \
  SM_INLINE constexpr vec<T, size> get_##suffix() const {                              \
    return vec<T, size>::from(__builtin_shufflevector(get(), get(), __VA_ARGS__));     \
  }

#define SM_SWIZZLE_2(j, pj, qj, n, i, pi, qi) \
  SM_SWIZZLE_2_(SM_DIFFER_##i##j, n, i, j, pi##pj, qi##qj)
#define SM_SWIZZLE_2_(d, n, i, j, p, q) SM_SWIZZLE_2__(d, n, i, j, p, q)
#define SM_SWIZZLE_2__(d, n, i, j, p, q)                                              \
  SM_GETTER(2, i##j, i, j)                                                            \
  SM_PUT2_##d(i, j, p, q) SM_AXES_C##n(SM_SWIZZLE_3, d, n, i, j, p, q)
#define SM_PUT2_0(i, j, p, q) __declspec(property(get = get_##i##j)) vec<T, 2> p, q;
#define SM_PUT2_1(i, j, p, q)                                                         \
  SM_INLINE constexpr vec<T, 2> put_##i##j(vec<T, 2> v) {                             \
    at<i>() = v.x, at<j>() = v.y;                                                     \
    return v;                                                                         \
  }                                                                                   \
  __declspec(property(get = get_##i##j, put = put_##i##j)) vec<T, 2> p, q;

#define SM_SWIZZLE_3(k, pk, qk, d, n, i, j, p, q) \
  SM_SWIZZLE_3_(SM_AND(d, SM_AND(SM_DIFFER_##i##k, SM_DIFFER_##j##k)), n, i, j, k, p##pk, q##qk)
#define SM_SWIZZLE_3_(d, n, i, j, k, p, q) SM_SWIZZLE_3__(d, n, i, j, k, p, q)
#define SM_SWIZZLE_3__(d, n, i, j, k, p, q)                                           \
  SM_GETTER(3, i##j##k, i, j, k)                                                      \
  SM_PUT3_##d(i, j, k, p, q) SM_AXES_D##n(SM_SWIZZLE_4, d, n, i, j, k, p, q)
#define SM_PUT3_0(i, j, k, p, q) __declspec(property(get = get_##i##j##k)) vec<T, 3> p, q;
#define SM_PUT3_1(i, j, k, p, q)                                                      \
  SM_INLINE constexpr vec<T, 3> put_##i##j##k(vec<T, 3> v) {                          \
    at<i>() = v.x, at<j>() = v.y, at<k>() = v.z;                                      \
    return v;                                                                         \
  }                                                                                   \
  __declspec(property(get = get_##i##j##k, put = put_##i##j##k)) vec<T, 3> p, q;

#define SM_SWIZZLE_4(l, pl, ql, d, n, i, j, k, p, q)                                  \
  SM_SWIZZLE_4_(SM_AND(d, SM_AND(SM_DIFFER_##i##l, SM_AND(SM_DIFFER_##j##l, SM_DIFFER_##k##l))), \
                i, j, k, l, p##pl, q##ql)
#define SM_SWIZZLE_4_(d, i, j, k, l, p, q) SM_SWIZZLE_4__(d, i, j, k, l, p, q)
#define SM_SWIZZLE_4__(d, i, j, k, l, p, q) \
  SM_GETTER(4, i##j##k##l, i, j, k, l) SM_PUT4_##d(i, j, k, l, p, q)
#define SM_PUT4_0(i, j, k, l, p, q) __declspec(property(get = get_##i##j##k##l)) vec<T, 4> p, q;
#define SM_PUT4_1(i, j, k, l, p, q)                                                   \
  SM_INLINE constexpr vec<T, 4> put_##i##j##k##l(vec<T, 4> v) {                       \
    at<i>() = v.x, at<j>() = v.y, at<k>() = v.z, at<l>() = v.w;                       \
    return v;                                                                         \
  }                                                                                   \
  __declspec(property(get = get_##i##j##k##l, put = put_##i##j##k##l)) vec<T, 4> p, q;

#define SM_SWIZZLE_1(i, p, q, n) SM_AXES_B##n(SM_SWIZZLE_2, n, i, p, q)
#ifdef SM_MACROS_ONLY
#define SM_SWIZZLES(n)
#else
#define SM_SWIZZLES(n) SM_AXES_A##n(SM_SWIZZLE_1, n)
#endif

#endif
