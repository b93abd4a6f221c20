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

// V: a scalar or metal::vec, whose elements stand one after the other.
template <class Op, unsigned Width, class V> SM_INLINE V reduce(V value) {
  collective(operate_reduce<Op, Width, lane_element<V>, lane_operand<V>::count>, &value);
  return value;
}

template <class Op, unsigned Width, bool Inclusive, class V> SM_INLINE V scan(V value) {
  collective(operate_scan<Op, Width, Inclusive, lane_element<V>, lane_operand<V>::count>, &value);
  return value;
}

template <class Source, unsigned Width, class V> SM_INLINE V shuffle(V value, unsigned argument) {
  constexpr unsigned size = sizeof(V);
  shuffle_slot<size> slot{__builtin_bit_cast(bytes<size>, value), argument};
  collective(operate_shuffle<Source, Width, size>, &slot);
  return __builtin_bit_cast(V, slot.value);
}

// width: a power of two.
template <bool Up, class V>
SM_INLINE V shuffle_and_fill(V value, V fill, unsigned delta, unsigned width) {
  constexpr unsigned size = sizeof(V);
  fill_slot<size> slot{__builtin_bit_cast(bytes<size>, value),
                       __builtin_bit_cast(bytes<size>, fill), delta, width};
  collective(operate_fill<Up, size>, &slot);
  return __builtin_bit_cast(V, slot.value);
}

template <unsigned Width> SM_INLINE votes vote(bool predicate) {
  vote_slot slot{predicate, 0, 0, 0};
  collective(operate_vote, &slot);
  unsigned base = slot.lane / Width * Width, mask = ~0u >> (SM_LANES - Width);
  return {slot.ballot >> base & mask, slot.active >> base & mask, slot.lane - base};
}

}  // namespace softmetal

#endif
