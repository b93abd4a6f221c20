// D = A B + C on 8x8 matrices spread over a simdgroup, on the CPU.
#ifndef SOFTMETAL_TARGET_MATRIX_H
#define SOFTMETAL_TARGET_MATRIX_H

#include <softmetal/matrix_layout.h>
#include <target/target.h>

namespace softmetal {

// A lane's two elements of a matrix.
template <class T> struct own_pair {
  T first, second;
};

// A lane's elements of each matrix.
template <class D, class A, class B, class C> struct multiply_slot {
  own_pair<A> a;
  own_pair<B> b;
  own_pair<C> c;
  own_pair<D> d;
};

typedef float row8 __attribute__((ext_vector_type(8)));
template <class T> using row_of __attribute__((ext_vector_type(8))) = T;

// Rows of the matrix that is `which` of the lanes' slots; a lane that is not active counts as zeros.
template <class Slot, class T>
SM_INLINE void gather(const sm_lanes* lanes, own_pair<T> Slot::* which, own_pair<T>* pairs) {
  for (unsigned i = 0; i < SM_LANES; ++i) {
    auto* slot = (const Slot*)lanes->slot[i];
    pairs[i] = slot ? slot->*which : own_pair<T>{};
  }
}

// Two neighbouring lanes hold half a row.
template <class T> using half_row __attribute__((ext_vector_type(4))) = T;

template <class T> SM_INLINE row8 row_at(const own_pair<T>* all, unsigned row) {
  half_row<T> left, right;
  __builtin_memcpy(&left, all + matrix_lane(row, 0), sizeof(left));
  __builtin_memcpy(&right, all + matrix_lane(row, 4), sizeof(right));
  return __builtin_convertvector(__builtin_shufflevector(left, right, 0, 1, 2, 3, 4, 5, 6, 7), row8);
}
template <class T> SM_INLINE void set_row(own_pair<T>* all, row8 elements, unsigned row) {
  const row_of<T> converted = __builtin_convertvector(elements, row_of<T>);
  const half_row<T> left = __builtin_shufflevector(converted, converted, 0, 1, 2, 3);
  const half_row<T> right = __builtin_shufflevector(converted, converted, 4, 5, 6, 7);
  __builtin_memcpy(all + matrix_lane(row, 0), &left, sizeof(left));
  __builtin_memcpy(all + matrix_lane(row, 4), &right, sizeof(right));
}

SM_PRECISE_BEGIN
template <class D, class A, class B, class C>
__attribute__((noinline)) inline void multiply_pairs(const own_pair<A>* __restrict a,
                                                     const own_pair<B>* __restrict b,
                                                     const own_pair<C>* __restrict c,
                                                     own_pair<D>* __restrict results) {
  row8 right[8];
#pragma clang loop unroll(full)
  for (unsigned k = 0; k < 8; ++k) right[k] = row_at(b, k);
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < 8; ++i) {
    const row8 left = row_at(a, i);
    row8 d = row_at(c, i);
#pragma clang loop unroll(full)
    for (unsigned k = 0; k < 8; ++k) d = left[k] * right[k] + d;
    set_row(results, d, i);
  }
}
SM_PRECISE_END

// Of all lanes together.
template <class D, class A, class B, class C>
inline void multiply_together(const own_pair<A>* a, const own_pair<B>* b, const own_pair<C>* c,
                              own_pair<D>* results, sm_u32 n) {
  if (__builtin_expect(n == SM_LANES, 1)) return multiply_pairs(a, b, c, results);
  own_pair<A> all_a[SM_LANES] = {};
  own_pair<B> all_b[SM_LANES] = {};
  own_pair<C> all_c[SM_LANES] = {};
  for (sm_u32 i = 0; i < n; ++i) all_a[i] = a[i], all_b[i] = b[i], all_c[i] = c[i];
  multiply_pairs(all_a, all_b, all_c, results);
}

template <class D, class A, class B, class C>
inline void operate_multiply(const sm_lanes* lanes) {
  using slot = multiply_slot<D, A, B, C>;
  own_pair<A> a[SM_LANES];
  own_pair<B> b[SM_LANES];
  own_pair<C> c[SM_LANES];
  own_pair<D> d[SM_LANES];
  gather(lanes, &slot::a, a);
  gather(lanes, &slot::b, b);
  gather(lanes, &slot::c, c);
  multiply_pairs(a, b, c, d);
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (lanes->slot[i]) ((slot*)lanes->slot[i])->d = d[i];
}

template <class D, class A, class B, class C>
SM_MEETS own_pair<D> meet_multiply(own_pair<A> a, own_pair<B> b, own_pair<C> c) {
  multiply_slot<D, A, B, C> slot{a, b, c, {}};
  collective(operate_multiply<D, A, B, C>, &slot, (void*)multiply_together<D, A, B, C>);
  return slot.d;
}

// Each argument points to this lane's two elements; d may be one of the others.
template <class D, class A, class B, class C>
SM_INLINE void multiply(D* d, const A* a, const B* b, const C* c) {
  const own_pair<D> found =
      meet_multiply<D>(own_pair<A>{a[0], a[1]}, own_pair<B>{b[0], b[1]}, own_pair<C>{c[0], c[1]});
  d[0] = found.first;
  d[1] = found.second;
}
template <class D, class A, class B> SM_INLINE void multiply(D* d, const A* a, const B* b) {
  const D zeros[2] = {};
  multiply(d, a, b, zeros);
}

#ifndef SM_CHECK
#define SM_MATRIX_MEMORY
// Loads and stores of a lane's two elements. No lane waits for another, so nothing but the name of
// a function and its `together` tells compiler/regions/ what all lanes do, if the operands other than a
// lane's elements are the same for them.
struct pair_place {
  sm_u64 first, second;
};
SM_INLINE pair_place place_of(unsigned lane, sm_u64 stride, sm_u32 transpose) {
  const sm_u64 row = matrix_row(lane), column = matrix_column(lane);
  const sm_u64 first = transpose ? column * stride + row : row * stride + column;
  return {first, first + (transpose ? stride : 1)};
}

template <class T>
__attribute__((noinline)) inline void load_together(const T* source, sm_u64 stride, sm_u32 transpose,
                                                    own_pair<T>* results, sm_u32 n) {
  if (n == SM_LANES && !transpose) {
#pragma clang loop unroll(full)
    for (unsigned row = 0; row < 8; ++row) {
      half_row<T> left, right;
      __builtin_memcpy(&left, source + row * stride, sizeof(left));
      __builtin_memcpy(&right, source + row * stride + 4, sizeof(right));
      __builtin_memcpy(results + matrix_lane(row, 0), &left, sizeof(left));
      __builtin_memcpy(results + matrix_lane(row, 4), &right, sizeof(right));
    }
    return;
  }
#pragma clang loop unroll(disable)
  for (unsigned i = 0; i < n; ++i) {
    const pair_place at = place_of(i, stride, transpose);
    results[i] = {source[at.first], source[at.second]};
  }
}
template <class T>
__attribute__((noinline)) inline void store_together(T* target, sm_u64 stride, sm_u32 transpose,
                                                     const own_pair<T>* values, sm_u32 n) {
#pragma clang loop unroll(disable)
  for (unsigned i = 0; i < n; ++i) {
    const pair_place at = place_of(i, stride, transpose);
    target[at.first] = values[i].first;
    target[at.second] = values[i].second;
  }
}

template <class T>
__attribute__((noinline)) inline own_pair<T> lanes_load(const T* source, sm_u64 stride,
                                                        sm_u32 transpose, sm_u32 lane) {
  __asm__ volatile("" : : "r"(load_together<T>));
  const pair_place at = place_of(lane, stride, transpose);
  return {source[at.first], source[at.second]};
}
template <class T>
__attribute__((noinline)) inline void lanes_store(T* target, sm_u64 stride, sm_u32 transpose,
                                                  own_pair<T> value, sm_u32 lane) {
  __asm__ volatile("" : : "r"(store_together<T>));
  const pair_place at = place_of(lane, stride, transpose);
  target[at.first] = value.first;
  target[at.second] = value.second;
}

template <class T>
SM_INLINE void load(T* own, const T* source, sm_u64 stride, bool transpose) {
  const own_pair<T> found = lanes_load(source, stride, (sm_u32)transpose, lane());
  own[0] = found.first;
  own[1] = found.second;
}
template <class T>
SM_INLINE void store(const T* own, T* target, sm_u64 stride, bool transpose) {
  lanes_store(target, stride, (sm_u32)transpose, own_pair<T>{own[0], own[1]}, lane());
}
#endif

}  // namespace softmetal

#endif
