// D = A B + C on 8x8 matrices spread over a simdgroup, on the CPU.
#ifndef SOFTMETAL_MATRIX_CPU_H
#define SOFTMETAL_MATRIX_CPU_H

#include <softmetal/matrix_layout.h>
#include <softmetal/target.h>

namespace softmetal {

// Where one lane keeps its two elements of each matrix; c is null for a plain product.
struct multiply_slot {
  const void *a, *b, *c;
  void* d;
};

typedef float row8 __attribute__((ext_vector_type(8)));

// A lane that is not active counts as zeros.
template <class T>
SM_INLINE void gather_matrix(const sm_lanes* lanes, const void* multiply_slot::* which,
                             row8 (&rows)[8]) {
  alignas(16) T elements[8][8];
  const T idle[2] = {};
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < SM_LANES; ++i) {
    auto* slot = (const multiply_slot*)lanes->slot[i];
    const void* pair = slot ? slot->*which : idle;
    __builtin_memcpy(&elements[matrix_row(i)][matrix_column(i)], pair, sizeof(idle));
  }
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) rows[r][c] = (float)elements[r][c];
}

template <class T>
SM_INLINE void scatter_matrix(const sm_lanes* lanes, const row8 (&rows)[8]) {
  alignas(16) T elements[8][8];
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) elements[r][c] = (T)rows[r][c];
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (auto* slot = (const multiply_slot*)lanes->slot[i])
      __builtin_memcpy(slot->d, &elements[matrix_row(i)][matrix_column(i)], 2 * sizeof(T));
}

SM_PRECISE_BEGIN
template <class D, class A, class B, class C, bool Accumulate>
inline void operate_multiply(const sm_lanes* lanes) {
  row8 a[8], b[8], c[8] = {};
  gather_matrix<A>(lanes, &multiply_slot::a, a);
  gather_matrix<B>(lanes, &multiply_slot::b, b);
  if constexpr (Accumulate) gather_matrix<C>(lanes, &multiply_slot::c, c);
#pragma clang loop unroll(full)
  for (int i = 0; i < 8; ++i)
#pragma clang loop unroll(full)
    for (int k = 0; k < 8; ++k) c[i] = a[i][k] * b[k] + c[i];
  scatter_matrix<D>(lanes, c);
}
SM_PRECISE_END

// Each argument: this lane's two elements. c may be null; d may be any of the others.
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
