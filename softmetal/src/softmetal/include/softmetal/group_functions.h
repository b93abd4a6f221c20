// The functions that simdgroups (32 lanes) and quadgroups (4) share. metal_simdgroup and
// metal_quadgroup expand SM_GROUP_FUNCTIONS once each inside namespace metal.
#ifndef SOFTMETAL_GROUP_FUNCTIONS_H
#define SOFTMETAL_GROUP_FUNCTIONS_H

#include <softmetal/lane_types.h>
#include <target/target.h>

namespace softmetal {

// simd_vote and quad_vote: bit i is lane i of the group.
template <unsigned Width> class group_vote {
 public:
  using vote_t = metal::uint64_t;
  SM_INLINE explicit constexpr group_vote(vote_t bits = 0) : bits(bits) {}
  SM_INLINE explicit constexpr operator vote_t() const { return bits; }
  SM_INLINE constexpr bool all() const { return (bits & lanes) == lanes; }
  SM_INLINE constexpr bool any() const { return (bits & lanes) != 0; }

 private:
  static constexpr vote_t lanes = ~0u >> (32 - Width);
  vote_t bits;
};

}  // namespace softmetal

#define SM_GROUP_REDUCE(name, width, op, result)                                                   \
  template <class T> SM_INLINE typename softmetal::result<T>::type name(T data) {                  \
    return softmetal::reduce<softmetal::op, width>((softmetal::lane_value<T>)data);                \
  }

#define SM_GROUP_SCAN(name, width, op, inclusive)                                                  \
  template <class T> SM_INLINE softmetal::lane_value<T> name(T data) {                             \
    return softmetal::scan<softmetal::op, width, inclusive>((softmetal::lane_value<T>)data);       \
  }

#define SM_GROUP_SHUFFLE(name, width, source, argument)                                            \
  template <class T> SM_INLINE softmetal::lane_value<T> name(T data, ushort argument) {            \
    return softmetal::shuffle<softmetal::source, width>((softmetal::lane_value<T>)data, argument); \
  }

// modulo: lanes of each of the vectors that the group is split into.
#define SM_GROUP_FILL(name, width, up)                                                             \
  template <class T>                                                                               \
  SM_INLINE softmetal::lane_value<T> name(T data, softmetal::lane_value<T> filling_data,           \
                                          ushort delta, ushort modulo = width) {                   \
    return softmetal::shuffle_and_fill<up>((softmetal::lane_value<T>)data, filling_data, delta,    \
                                           modulo);                                                \
  }

#define SM_GROUP_FUNCTIONS(p, width)                                                               \
  SM_GROUP_REDUCE(p##_sum, width, sum, lane_operand)                                               \
  SM_GROUP_REDUCE(p##_product, width, product, lane_operand)                                       \
  SM_GROUP_REDUCE(p##_min, width, minimum, lane_operand)                                           \
  SM_GROUP_REDUCE(p##_max, width, maximum, lane_operand)                                           \
  SM_GROUP_REDUCE(p##_and, width, bit_and, lane_integer)                                           \
  SM_GROUP_REDUCE(p##_or, width, bit_or, lane_integer)                                             \
  SM_GROUP_REDUCE(p##_xor, width, bit_xor, lane_integer)                                           \
  SM_GROUP_SCAN(p##_prefix_inclusive_sum, width, sum, true)                                        \
  SM_GROUP_SCAN(p##_prefix_exclusive_sum, width, sum, false)                                       \
  SM_GROUP_SCAN(p##_prefix_inclusive_product, width, product, true)                                \
  SM_GROUP_SCAN(p##_prefix_exclusive_product, width, product, false)                               \
  SM_GROUP_SHUFFLE(p##_broadcast, width, from_lane, broadcast_lane_id)                             \
  SM_GROUP_SHUFFLE(p##_shuffle, width, from_lane, lane_id)                                         \
  SM_GROUP_SHUFFLE(p##_shuffle_up, width, from_below, delta)                                       \
  SM_GROUP_SHUFFLE(p##_shuffle_down, width, from_above, delta)                                     \
  SM_GROUP_SHUFFLE(p##_shuffle_xor, width, from_xor, mask)                                         \
  SM_GROUP_SHUFFLE(p##_shuffle_rotate_up, width, rotated_up, delta)                                \
  SM_GROUP_SHUFFLE(p##_shuffle_rotate_down, width, rotated_down, delta)                            \
  SM_GROUP_FILL(p##_shuffle_and_fill_up, width, true)                                              \
  SM_GROUP_FILL(p##_shuffle_and_fill_down, width, false)                                           \
  template <class T> SM_INLINE softmetal::lane_value<T> p##_broadcast_first(T data) {              \
    return softmetal::shuffle<softmetal::from_first, width>((softmetal::lane_value<T>)data, 0);    \
  }                                                                                                \
  using p##_vote = softmetal::group_vote<width>;                                                   \
  SM_INLINE p##_vote p##_ballot(bool expr) {                                                       \
    return p##_vote(softmetal::vote<width>(expr).ballot);                                          \
  }                                                                                                \
  SM_INLINE p##_vote p##_active_threads_mask() {                                                   \
    return p##_vote(softmetal::vote<width>(true).active);                                          \
  }                                                                                                \
  SM_INLINE bool p##_any(bool expr) { return softmetal::vote<width>(expr).ballot != 0; }           \
  SM_INLINE bool p##_all(bool expr) {                                                              \
    softmetal::votes v = softmetal::vote<width>(expr);                                             \
    return v.ballot == v.active;                                                                   \
  }                                                                                                \
  SM_INLINE bool p##_is_first() {                                                                  \
    softmetal::votes v = softmetal::vote<width>(true);                                             \
    return (v.active & ((1u << v.lane) - 1)) == 0;                                                 \
  }

#endif
