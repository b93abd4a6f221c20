// Simdgroup operations by warp shuffles. The active lanes are those that arrive together.
#ifndef SOFTMETAL_TARGET_LANES_H
#define SOFTMETAL_TARGET_LANES_H

#include <softmetal/lane_types.h>
#include <target/target.h>

namespace softmetal {

constexpr sm_u32 all_lanes = ~0u;

SM_INLINE sm_u32 active_lanes() { return (sm_u32)__nvvm_activemask(); }

// What `lane` holds, in words of 32 bits. All lanes of `mask` call; `lane` is one of them.
template <class V> SM_INLINE V from_other_lane(sm_u32 mask, V value, unsigned lane) {
  constexpr unsigned count = (sizeof(V) + 3) / 4;
  sm_u32 words[count] = {};
  __builtin_memcpy(words, &value, sizeof(V));
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < count; ++i)
    words[i] = (sm_u32)__nvvm_shfl_sync_idx_i32(mask, (int)words[i], (int)lane, 31);
  __builtin_memcpy(&value, words, sizeof(V));
  return value;
}

// What the lane whose number differs in the bits of `half` holds. All lanes call.
template <class V> SM_INLINE V from_partner(V value, unsigned half) {
  constexpr unsigned count = (sizeof(V) + 3) / 4;
  sm_u32 words[count] = {};
  __builtin_memcpy(words, &value, sizeof(V));
#pragma clang loop unroll(full)
  for (unsigned i = 0; i < count; ++i)
    words[i] = (sm_u32)__nvvm_shfl_sync_bfly_i32(all_lanes, (int)words[i], (int)half, 31);
  __builtin_memcpy(&value, words, sizeof(V));
  return value;
}

// The operand's elements, in the type that they accumulate in.
template <class V> struct lane_elements {
  using T = lane_element<V>;
  using A = typename accumulator<T>::type;
  static constexpr int count = lane_operand<V>::count;
  A x[count];

  SM_INLINE lane_elements(V value) {
    T given[count];
    __builtin_memcpy(given, &value, sizeof(given));
    for (int c = 0; c < count; ++c) x[c] = (A)given[c];
  }
  SM_INLINE V value() const {
    T rounded[count];
    for (int c = 0; c < count; ++c) rounded[c] = (T)x[c];
    V result = {};
    __builtin_memcpy(&result, rounded, sizeof(rounded));
    return result;
  }
};

// The tree of the CPU, upper half onto lower half: both lanes of a pair compute the same sum.
template <class Op, unsigned Width, class A> SM_INLINE A reduce_all(A x) {
#pragma clang loop unroll(full)
  for (unsigned half = Width / 2; half; half /= 2)
    x = Op::template apply<A>(x, from_partner(x, half));
  return x;
}

// Where lanes are missing: lane after lane. No call: ptxas cannot allocate registers around some.
template <class Op, unsigned Width, class A> SM_INLINE A reduce_some(sm_u32 mask, A own) {
  const unsigned base = lane() / Width * Width;
  A total = (A)Op::template identity<A>;
#pragma clang loop unroll(disable)
  for (unsigned i = base; i < base + Width; ++i) {
    const bool here = mask >> i & 1;
    const A x = from_other_lane(mask, own, here ? i : lane());
    if (here) total = Op::template apply<A>(total, x);
  }
  return total;
}

// One instruction for 32-bit integers, whichever lanes are active.
template <class Op, unsigned Width, class A>
constexpr bool has_instruction = __is_integral(A) && sizeof(A) <= 4 && Width == SM_LANES &&
                                 !__is_same(Op, product);
template <class Op, class A> SM_INLINE A reduce_by_instruction(sm_u32 mask, A x) {
  if constexpr (__is_same(Op, sum)) return (A)__nvvm_redux_sync_add((int)x, (int)mask);
  else if constexpr (__is_same(Op, bit_and)) return (A)__nvvm_redux_sync_and((int)x, (int)mask);
  else if constexpr (__is_same(Op, bit_or)) return (A)__nvvm_redux_sync_or((int)x, (int)mask);
  else if constexpr (__is_same(Op, bit_xor)) return (A)__nvvm_redux_sync_xor((int)x, (int)mask);
  else if constexpr (__is_same(Op, minimum) && (A)-1 < (A)0)
    return (A)__nvvm_redux_sync_min((int)x, (int)mask);
  else if constexpr (__is_same(Op, minimum))
    return (A)__nvvm_redux_sync_umin((unsigned)x, (int)mask);
  else if constexpr ((A)-1 < (A)0) return (A)__nvvm_redux_sync_max((int)x, (int)mask);
  else return (A)__nvvm_redux_sync_umax((unsigned)x, (int)mask);
}

template <class Op, unsigned Width, class V> SM_INLINE V reduce(V value) {
  const sm_u32 mask = active_lanes();
  lane_elements<V> elements(value);
  using A = typename lane_elements<V>::A;
  for (A& x : elements.x) {
    if constexpr (has_instruction<Op, Width, A>) x = reduce_by_instruction<Op>(mask, x);
    else if (mask == all_lanes) x = reduce_all<Op, Width>(x);
    else x = reduce_some<Op, Width>(mask, x);
  }
  return elements.value();
}

template <class Op, unsigned Width, class A> SM_INLINE A scan_all(A x) {
  const unsigned self = lane() % Width;
#pragma clang loop unroll(full)
  for (unsigned distance = 1; distance < Width; distance *= 2) {
    const A below = from_other_lane(all_lanes, x, lane() - (self < distance ? 0 : distance));
    if (self >= distance) x = Op::template apply<A>(below, x);
  }
  return x;
}

// Both results where some lanes are missing, lane after lane.
template <class A> struct scanned {
  A before, through;
};
template <class Op, unsigned Width, class A>
SM_INLINE scanned<A> scan_some(sm_u32 mask, A own) {
  const unsigned self = lane() % Width, base = lane() - self;
  scanned<A> result = {(A)(__is_same(Op, product) ? 1 : 0), own};
  A total = own;
  bool started = false;
#pragma clang loop unroll(disable)
  for (unsigned i = 0; i < Width; ++i) {
    const bool here = mask >> (base + i) & 1;
    const A x = from_other_lane(mask, own, here ? base + i : lane());
    if (!here) continue;
    if (i == self && started) result.before = total;
    total = started ? Op::template apply<A>(total, x) : x;
    started = true;
    if (i == self) result.through = total;
  }
  return result;
}

template <class Op, unsigned Width, bool Inclusive, class V> SM_INLINE V scan(V value) {
  const sm_u32 mask = active_lanes();
  lane_elements<V> elements(value);
  using A = typename lane_elements<V>::A;
  for (A& x : elements.x) {
    if (mask != all_lanes) {
      const scanned<A> both = scan_some<Op, Width>(mask, x);
      x = Inclusive ? both.through : both.before;
      continue;
    }
    x = scan_all<Op, Width>(x);
    if constexpr (!Inclusive) {
      const bool first = lane() % Width == 0;
      x = from_other_lane(all_lanes, x, first ? lane() : lane() - 1);
      if (first) x = (A)(__is_same(Op, product) ? 1 : 0);
    }
  }
  return elements.value();
}

template <class Source, unsigned Width, class V> SM_INLINE V shuffle(V value, unsigned argument) {
  const sm_u32 mask = active_lanes();
  const unsigned own = lane(), self = own % Width, base = own - self;
  const unsigned from = Source::at(self, argument, Width, mask >> base);
  const bool readable = from < Width && (mask >> (base + from) & 1);
  return from_other_lane(mask, value, readable ? base + from : own);
}

// width: a power of two.
template <bool Up, class V>
SM_INLINE V shuffle_and_fill(V value, V fill, unsigned delta, unsigned width) {
  const sm_u32 mask = active_lanes();
  const unsigned own = lane(), self = own & (width - 1), base = own - self;
  const unsigned from = Up ? self - delta : self + delta;
  unsigned source = base + (from & (width - 1));
  if (!(mask >> source & 1)) source = own;
  const V shifted = from_other_lane(mask, value, source);
  const V filled = from_other_lane(mask, fill, source);
  return from < width ? shifted : filled;
}

template <unsigned Width> SM_INLINE votes vote(bool predicate) {
  const sm_u32 mask = active_lanes(), ballot = (sm_u32)__nvvm_vote_ballot_sync(mask, predicate);
  const unsigned self = lane() % Width, base = lane() - self, group = ~0u >> (SM_LANES - Width);
  return {ballot >> base & group, mask >> base & group, self};
}

}  // namespace softmetal

#endif
