// Simdgroup operations on the CPU. A lane's operand stays on its stack; the last lane to arrive
// runs one of the `operate` functions for all. Groups have Width lanes: 32, or 4 for quadgroups.
#ifndef SOFTMETAL_TARGET_LANES_H
#define SOFTMETAL_TARGET_LANES_H

#include <softmetal/lane_types.h>
#include <target/target.h>

namespace softmetal {

// Operands by component, lane after lane, with the identity where a lane is not active.
template <class Op, class T, int N, class A>
SM_INLINE void gather(const sm_lanes* lanes, A (&x)[N][SM_LANES]) {
  T idle[N];
  for (int c = 0; c < N; ++c) idle[c] = (T)Op::template identity<A>;
  for (int i = 0; i < SM_LANES; ++i) {
    const T* slot = lanes->slot[i] ? (const T*)lanes->slot[i] : idle;
    for (int c = 0; c < N; ++c) x[c][i] = (A)slot[c];
  }
}

// A pairwise tree, upper half onto lower half: the same order in every run and every maths mode.
template <class Op, unsigned Width, class T, int N>
inline void operate_reduce(const sm_lanes* lanes) {
  using A = typename accumulator<T>::type;
  A x[N][SM_LANES];
  gather<Op, T, N>(lanes, x);
  for (int c = 0; c < N; ++c)
    for (unsigned base = 0; base < SM_LANES; base += Width)
      for (unsigned half = Width / 2; half; half /= 2)
        for (unsigned i = base; i < base + half; ++i)
          x[c][i] = Op::template apply<A>(x[c][i], x[c][i + half]);
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (T* slot = (T*)lanes->slot[i])
      for (int c = 0; c < N; ++c) slot[c] = (T)x[c][i / Width * Width];
}

// In lane order.
template <class Op, unsigned Width, bool Inclusive, class T, int N>
inline void operate_scan(const sm_lanes* lanes) {
  using A = typename accumulator<T>::type;
  for (int c = 0; c < N; ++c) {
    A total = (A)0;
    bool started = false;
    for (unsigned i = 0; i < SM_LANES; ++i) {
      if (i % Width == 0) started = false;
      T* slot = (T*)lanes->slot[i];
      if (!slot) continue;
      A x = (A)slot[c];
      A before = started ? total : (A)(__is_same(Op, product) ? 1 : 0);
      total = started ? Op::template apply<A>(total, x) : x;
      started = true;
      slot[c] = (T)(Inclusive ? total : before);
    }
  }
}

template <unsigned Size> struct alignas(Size) bytes {
  unsigned char data[Size];
};
template <unsigned Size> struct shuffle_slot {
  bytes<Size> value;
  unsigned argument;
};

template <class Source, unsigned Width, unsigned Size>
inline void operate_shuffle(const sm_lanes* lanes) {
  bytes<Size> values[SM_LANES];
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (auto* slot = (const shuffle_slot<Size>*)lanes->slot[i]) values[i] = slot->value;
  for (unsigned i = 0; i < SM_LANES; ++i) {
    auto* slot = (shuffle_slot<Size>*)lanes->slot[i];
    if (!slot) continue;
    unsigned base = i / Width * Width;
    unsigned from = Source::at(i - base, slot->argument, Width, lanes->active >> base);
    if (from < Width && lanes->slot[base + from]) slot->value = values[base + from];
  }
}

template <unsigned Size> struct fill_slot {
  bytes<Size> value, fill;
  unsigned delta, modulo;
};

// The fill too comes from another lane: what leaves the vector at one end enters at the other.
template <bool Up, unsigned Size> inline void operate_fill(const sm_lanes* lanes) {
  fill_slot<Size> all[SM_LANES];
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (auto* slot = (const fill_slot<Size>*)lanes->slot[i]) all[i] = *slot;
  for (unsigned i = 0; i < SM_LANES; ++i) {
    auto* slot = (fill_slot<Size>*)lanes->slot[i];
    if (!slot) continue;
    unsigned width = slot->modulo, self = i & (width - 1), base = i - self;
    unsigned from = Up ? self - slot->delta : self + slot->delta;
    bool inside = from < width;
    unsigned source = base + (from & (width - 1));
    if (!lanes->slot[source]) source = i;
    slot->value = inside ? all[source].value : all[source].fill;
  }
}

struct vote_slot {
  unsigned predicate, lane;
  sm_u32 ballot, active;
};

inline void operate_vote(const sm_lanes* lanes) {
  sm_u32 ballot = 0;
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (auto* slot = (const vote_slot*)lanes->slot[i]) ballot |= slot->predicate << i;
  for (unsigned i = 0; i < SM_LANES; ++i)
    if (auto* slot = (vote_slot*)lanes->slot[i])
      *slot = {slot->predicate, i, ballot, lanes->active};
}

// ---- all lanes of a simdgroup together ----------------------------------------------------------

template <class A, unsigned N> using lane_vector_of __attribute__((ext_vector_type(N))) = A;

template <class Op, class A, class V> SM_INLINE V combined(V a, V b) {
  if constexpr (__is_same(Op, minimum)) {
    if constexpr (__is_same(A, float)) return SM_FMIN(a, b);
    else return __builtin_elementwise_min(a, b);
  } else if constexpr (__is_same(Op, maximum)) {
    if constexpr (__is_same(A, float)) return SM_FMAX(a, b);
    else return __builtin_elementwise_max(a, b);
  } else {
    return Op::template apply<V>(a, b);
  }
}

// The upper half onto the lower, until one is left.
template <class Op, class A, unsigned N> SM_INLINE A folded(const A* x) {
  if constexpr (N == 1) return x[0];
  else {
    using V = lane_vector_of<A, N / 2>;
    V lower, upper;
    __builtin_memcpy(&lower, x, sizeof(V));
    __builtin_memcpy(&upper, x + N / 2, sizeof(V));
    lower = combined<Op, A>(lower, upper);
    A rest[N / 2];
    __builtin_memcpy(rest, &lower, sizeof(V));
    return folded<Op, A, N / 2>(rest);
  }
}

template <class Op, unsigned Width, class T>
__attribute__((noinline)) inline void reduce_together(const T* values, T* results, sm_u32 n) {
  using A = typename accumulator<T>::type;
  alignas(64) A x[SM_LANES];
  for (sm_u32 i = 0; i < SM_LANES; ++i) x[i] = (A)values[i];
  for (sm_u32 i = n; i < SM_LANES; ++i) x[i] = (A)(T)Op::template identity<A>;
  for (sm_u32 base = 0; base < SM_LANES; base += Width) {
    const T total = (T)folded<Op, A, Width>(x + base);
    for (sm_u32 i = 0; i < Width; ++i) results[base + i] = total;
  }
}

template <class Op, unsigned Width, bool Inclusive, class T>
__attribute__((noinline)) inline void scan_together(const T* values, T* results, sm_u32 n) {
  using A = typename accumulator<T>::type;
  A total = (A)0;
  for (sm_u32 i = 0; i < n; ++i) {
    const bool first = i % Width == 0;
    const A x = (A)values[i], before = first ? (A)(__is_same(Op, product) ? 1 : 0) : total;
    total = first ? x : Op::template apply<A>(total, x);
    results[i] = (T)(Inclusive ? total : before);
  }
}

template <class Source, unsigned Width, class U>
__attribute__((noinline)) inline void shuffle_together(const U* values, const unsigned* arguments,
                                                       U* results, sm_u32 n) {
  const sm_u32 active = ~0u >> (SM_LANES - n);
  for (unsigned i = 0; i < n; ++i) {
    const unsigned base = i / Width * Width;
    const unsigned from = Source::at(i - base, arguments[i], Width, active >> base);
    results[i] = values[from < Width && base + from < n ? base + from : i];
  }
}

template <bool Up, class U>
__attribute__((noinline)) inline void fill_together(const U* values, const U* fills,
                                                    const unsigned* deltas, const unsigned* widths,
                                                    U* results, sm_u32 n) {
  for (unsigned i = 0; i < n; ++i) {
    const unsigned width = widths[i], self = i & (width - 1), base = i - self;
    const unsigned from = Up ? self - deltas[i] : self + deltas[i];
    unsigned source = base + (from & (width - 1));
    if (source >= n) source = i;
    results[i] = from < width ? values[source] : fills[source];
  }
}

template <unsigned Width>
__attribute__((noinline)) inline void vote_together(const unsigned* predicates, sm_u64* results,
                                                    sm_u32 n) {
  sm_u32 ballot = 0;
  for (unsigned i = 0; i < n; ++i) ballot |= predicates[i] << i;
  const sm_u64 active = ~0u >> (SM_LANES - n);
  for (unsigned i = 0; i < SM_LANES; ++i) results[i] = active << 32 | ballot;
}

// ---- what one lane calls ------------------------------------------------------------------------

template <class Op, unsigned Width, class T> SM_MEETS T meet_reduce(T value) {
  collective(operate_reduce<Op, Width, T, 1>, &value, (void*)reduce_together<Op, Width, T>);
  return value;
}
template <class Op, unsigned Width, bool Inclusive, class T> SM_MEETS T meet_scan(T value) {
  collective(operate_scan<Op, Width, Inclusive, T, 1>, &value,
             (void*)scan_together<Op, Width, Inclusive, T>);
  return value;
}
template <class Source, unsigned Width, class U> SM_MEETS U meet_shuffle(U value, unsigned argument) {
  constexpr unsigned size = sizeof(U);
  shuffle_slot<size> slot{__builtin_bit_cast(bytes<size>, value), argument};
  collective(operate_shuffle<Source, Width, size>, &slot,
             (void*)shuffle_together<Source, Width, U>);
  return __builtin_bit_cast(U, slot.value);
}
template <bool Up, class U>
SM_MEETS U meet_fill(U value, U fill, unsigned delta, unsigned width) {
  constexpr unsigned size = sizeof(U);
  fill_slot<size> slot{__builtin_bit_cast(bytes<size>, value),
                       __builtin_bit_cast(bytes<size>, fill), delta, width};
  collective(operate_fill<Up, size>, &slot, (void*)fill_together<Up, U>);
  return __builtin_bit_cast(U, slot.value);
}
// The active lanes in the upper half, those whose predicate holds in the lower.
template <unsigned Width> SM_MEETS sm_u64 meet_vote(unsigned predicate) {
  vote_slot slot{predicate, 0, 0, 0};
  collective(operate_vote, &slot, (void*)vote_together<Width>);
  return (sm_u64)slot.active << 32 | slot.ballot;
}

// V: a scalar or metal::vec, whose elements stand one after the other.
template <class Each, class V> SM_INLINE V each_element(V value, Each each) {
  using T = lane_element<V>;
  if constexpr (lane_operand<V>::count == 1) return (V)each((T)value);
  else {
    T elements[sizeof(V) / sizeof(T)];
    __builtin_memcpy(elements, &value, sizeof(V));
    for (int c = 0; c < lane_operand<V>::count; ++c) elements[c] = each(elements[c]);
    __builtin_memcpy(&value, elements, sizeof(V));
    return value;
  }
}

template <class Op, unsigned Width, class V> SM_INLINE V reduce(V value) {
  using T = lane_element<V>;
  return each_element(value, [](T x) __attribute__((always_inline)) { return meet_reduce<Op, Width, T>(x); });
}

template <class Op, unsigned Width, bool Inclusive, class V> SM_INLINE V scan(V value) {
  using T = lane_element<V>;
  return each_element(value, [](T x) __attribute__((always_inline)) { return meet_scan<Op, Width, Inclusive, T>(x); });
}

// The words that a value of some bytes is moved in.
template <unsigned Size> struct lane_word { using type = sm_u64; };
template <> struct lane_word<1> { using type = sm_u8; };
template <> struct lane_word<2> { using type = unsigned short; };
template <> struct lane_word<4> { using type = sm_u32; };

template <class Source, unsigned Width, class V> SM_INLINE V shuffle(V value, unsigned argument) {
  using U = typename lane_word<sizeof(V)>::type;
  U words[sizeof(V) / sizeof(U)];
  __builtin_memcpy(words, &value, sizeof(V));
  for (U& word : words) word = meet_shuffle<Source, Width, U>(word, argument);
  __builtin_memcpy(&value, words, sizeof(V));
  return value;
}

// width: a power of two.
template <bool Up, class V>
SM_INLINE V shuffle_and_fill(V value, V fill, unsigned delta, unsigned width) {
  using U = typename lane_word<sizeof(V)>::type;
  constexpr unsigned count = sizeof(V) / sizeof(U);
  U words[count], fills[count];
  __builtin_memcpy(words, &value, sizeof(V));
  __builtin_memcpy(fills, &fill, sizeof(V));
  for (unsigned i = 0; i < count; ++i)
    words[i] = meet_fill<Up, U>(words[i], fills[i], delta, width);
  __builtin_memcpy(&value, words, sizeof(V));
  return value;
}

template <unsigned Width> SM_INLINE votes vote(bool predicate) {
  const sm_u64 found = meet_vote<Width>(predicate);
  const unsigned self = lane(), base = self / Width * Width, mask = ~0u >> (SM_LANES - Width);
  return {(sm_u32)found >> base & mask, (sm_u32)(found >> 32) >> base & mask, self - base};
}

}  // namespace softmetal

#endif
