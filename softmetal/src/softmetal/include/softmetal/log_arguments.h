// The arguments of a log call as softmetal_log takes them: a kind and 64 bits each.
#ifndef SOFTMETAL_LOG_ARGUMENTS_H
#define SOFTMETAL_LOG_ARGUMENTS_H

#include <softmetal/lane_types.h>
#include <target/target.h>

namespace softmetal {

template <class T> struct log_argument {
  static constexpr int count = 1;

  static SM_INLINE void put(T value, sm_u8* kind, sm_u64* bits) {
    if constexpr (is_real<T>) {
      *kind = 'f';
      *bits = __builtin_bit_cast(sm_u64, (double)value);
    } else if constexpr (__is_same(T, SM_LITERAL) || __is_same(T, char*)) {
      *kind = 's';
      *bits = (sm_u64)value;
    } else if constexpr (__is_pointer(T) || __is_same(T, decltype(nullptr))) {
      *kind = 'p';
      *bits = (sm_u64)(const volatile void*)value;
    } else {
      static_assert(__is_integral(T) || __is_enum(T),
                    "a log message takes numbers, vectors, strings and pointers");
      *kind = (T)-1 < (T)0 ? 'i' : 'u';
      *bits = (sm_u64)value;
    }
  }
};

// Element by element: the runtime takes as many as "%v4f" says.
template <class T, int N> struct log_argument<metal::vec<T, N>> {
  static constexpr int count = N;

  static SM_INLINE void put(metal::vec<T, N> value, sm_u8* kind, sm_u64* bits) {
    for (int i = 0; i < N; ++i) log_argument<T>::put(value[i], kind + i, bits + i);
  }
};
template <class T, int N> struct log_argument<packed<metal::vec<T, N>>>
    : log_argument<metal::vec<T, N>> {};

template <class... T> struct log_record {
  static constexpr int count = (0 + ... + log_argument<T>::count);
  sm_u8 kinds[count + 1];
  sm_u64 values[count + 1];

  SM_INLINE log_record(T... arguments) {
    int at = 0;
    ((log_argument<T>::put(arguments, kinds + at, values + at), at += log_argument<T>::count), ...);
  }
};

}  // namespace softmetal

#endif
