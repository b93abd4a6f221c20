// D = A B + C on 8x8 matrices spread over a warp: tensor cores for half and bfloat, shuffles for float.
#ifndef SOFTMETAL_TARGET_MATRIX_H
#define SOFTMETAL_TARGET_MATRIX_H

#include <softmetal/matrix_layout.h>
#include <target/lanes.h>

namespace softmetal {

template <class T> constexpr bool is_short_real = __is_same(T, _Float16) || __is_same(T, __bf16);

// A lane's two elements as one register.
template <class T> SM_INLINE sm_u32 pair_word(const T* pair) {
  sm_u32 word;
  __builtin_memcpy(&word, pair, sizeof(word));
  return word;
}

// The lane that holds (row, columns 2 pair and 2 pair + 1) of this layout, asked by the lane of the
// tensor cores' layout, which is row * 4 + pair; and the other way round.
SM_INLINE unsigned layout_lane() { return matrix_lane(lane() / 4, lane() % 4 * 2); }
SM_INLINE unsigned tensor_lane() { return matrix_row(lane()) * 4 + matrix_column(lane()) / 2; }

// mma.m16n8k8 with zeros in the lower eight rows. B's register is the transpose of an 8x8 in the
// order of an accumulator.
template <class T>
SM_INLINE void multiply_tensor(float (&d)[2], sm_u32 a, sm_u32 b, const float (&c)[2]) {
  float lower[2];
  __asm__("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(b));
  if constexpr (__is_same(T, _Float16))
    __asm__("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%7,%8,%9,%9};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(lower[0]), "=f"(lower[1])
            : "r"(a), "r"(0), "r"(b), "f"(c[0]), "f"(c[1]), "f"(0.0f));
  else
    __asm__("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%7,%8,%9,%9};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(lower[0]), "=f"(lower[1])
            : "r"(a), "r"(0), "r"(b), "f"(c[0]), "f"(c[1]), "f"(0.0f));
}

// Element (row, column) of a matrix for each k: a lane's own row of A against its two columns of B.
SM_PRECISE_BEGIN
template <class A, class B>
SM_INLINE void multiply_shuffled(float (&d)[2], const A* a, const B* b, const float (&c)[2]) {
  const unsigned row = matrix_row(lane()), column = matrix_column(lane());
  d[0] = c[0], d[1] = c[1];
#pragma clang loop unroll(full)
  for (unsigned k = 0; k < 8; ++k) {
    const float left = from_other_lane(all_lanes, (float)a[k % 2], matrix_lane(row, k));
    const unsigned below = matrix_lane(k, column);
    const float right[2] = {from_other_lane(all_lanes, (float)b[0], below),
                            from_other_lane(all_lanes, (float)b[1], below)};
    for (int i = 0; i < 2; ++i) d[i] = __builtin_elementwise_fma(left, right[i], d[i]);
  }
}
SM_PRECISE_END

template <class A, class B>
SM_INLINE void multiply_floats(float (&d)[2], const A* a, const B* b, float (&c)[2]) {
  if constexpr (__is_same(A, B) && is_short_real<A>) {
    sm_u32 left = pair_word(a), right = pair_word(b);
    if constexpr (!matrix_is_tensor_order) {
      left = from_other_lane(all_lanes, left, layout_lane());
      right = from_other_lane(all_lanes, right, layout_lane());
      for (float& x : c) x = from_other_lane(all_lanes, x, layout_lane());
    }
    multiply_tensor<A>(d, left, right, c);
    if constexpr (!matrix_is_tensor_order)
      for (float& x : d) x = from_other_lane(all_lanes, x, tensor_lane());
  } else {
    multiply_shuffled(d, a, b, c);
  }
}

// Each argument points to this lane's two elements; d may be one of the others.
template <class D, class A, class B, class C>
SM_INLINE void multiply(D* d, const A* a, const B* b, const C* c) {
  float start[2] = {(float)c[0], (float)c[1]}, result[2];
  multiply_floats(result, a, b, start);
  d[0] = (D)result[0], d[1] = (D)result[1];
}
template <class D, class A, class B> SM_INLINE void multiply(D* d, const A* a, const B* b) {
  const D zero[2] = {};
  multiply(d, a, b, zero);
}

}  // namespace softmetal

#endif
