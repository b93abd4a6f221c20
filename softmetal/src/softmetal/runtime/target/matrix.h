// D = A B + C on 8x8 matrices spread over a simdgroup, on the CPU.
#ifndef SOFTMETAL_TARGET_MATRIX_H
#define SOFTMETAL_TARGET_MATRIX_H

#include <softmetal/matrix_layout.h>
#include <target/target.h>

namespace softmetal {

// Where one lane keeps its two elements of each matrix.
struct multiply_slot {
  const void *a, *b, *c;
  void* d;
};

typedef float row8 __attribute__((ext_vector_type(8)));
template <class T> using row_of __attribute__((ext_vector_type(8))) = T;

// A lane's two elements move as one integer, four lanes make a row.
template <class T> struct pair_bits { using type = sm_u32; };
template <> struct pair_bits<float> { using type = sm_u64; };
template <class T> using pairs __attribute__((ext_vector_type(4))) = typename pair_bits<T>::type;

// A lane that is not active counts as zeros.
template <class T>
SM_INLINE row8 gather_row(const sm_lanes* lanes, const void* multiply_slot::* which, unsigned row) {
  pairs<T> bits = {};
#pragma clang loop unroll(full)
  for (unsigned pair = 0; pair < 4; ++pair) {
    typename pair_bits<T>::type value = 0;
    if (auto* slot = (const multiply_slot*)lanes->slot[matrix_lane(row, 2 * pair)])
      __builtin_memcpy(&value, slot->*which, sizeof(value));
    bits[pair] = value;
  }
  return __builtin_convertvector(__builtin_bit_cast(row_of<T>, bits), row8);
}

template <class T> SM_INLINE void scatter_row(const sm_lanes* lanes, row8 elements, unsigned row) {
  auto bits = __builtin_bit_cast(pairs<T>, __builtin_convertvector(elements, row_of<T>));
#pragma clang loop unroll(full)
  for (unsigned pair = 0; pair < 4; ++pair) {
    typename pair_bits<T>::type value = bits[pair];
    if (auto* slot = (const multiply_slot*)lanes->slot[matrix_lane(row, 2 * pair)])
      __builtin_memcpy(slot->d, &value, sizeof(value));
  }
}

SM_PRECISE_BEGIN
template <class D, class A, class B, class C, bool Accumulate>
inline void operate_multiply(const sm_lanes* lanes) {
  row8 b[8], d[8] = {};
#pragma clang loop unroll(full)
  for (unsigned k = 0; k < 8; ++k) b[k] = gather_row<B>(lanes, &multiply_slot::b, k);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < 8; ++i) {
    row8 a = gather_row<A>(lanes, &multiply_slot::a, i);
    if constexpr (Accumulate) d[i] = gather_row<C>(lanes, &multiply_slot::c, i);
#pragma clang loop unroll(full)
    for (unsigned k = 0; k < 8; ++k) d[i] = a[k] * b[k] + d[i];
  }
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < 8; ++i) scatter_row<D>(lanes, d[i], i);
}
SM_PRECISE_END

// Each argument points to this lane's two elements; d may be one of the others.
template <class D, class A, class B, class C>
SM_INLINE void multiply(D* d, const A* a, const B* b, const C* c) {
  multiply_slot slot{a, b, c, d};
  collective(operate_multiply<D, A, B, C, true>, &slot);
}
template <class D, class A, class B> SM_INLINE void multiply(D* d, const A* a, const B* b) {
  multiply_slot slot{a, b, nullptr, d};
  collective(operate_multiply<D, A, B, D, false>, &slot);
}

}  // namespace softmetal

#endif
