// Atomic functions on objects in the address space SM_SPACE, which is empty where spaces are erased.
// metal_atomic includes this file once for each space.

namespace metal {

template <class T>
SM_INLINE void atomic_store_explicit(volatile SM_SPACE atomic<T>* object,
                                     softmetal::given<T> desired, memory_order order) {
  __atomic_store((volatile T*)&object->__s, &desired, (int)order);
}

template <class T>
SM_INLINE T atomic_load_explicit(const volatile SM_SPACE atomic<T>* object, memory_order order) {
  T value;
  __atomic_load((const volatile T*)&object->__s, &value, (int)order);
  return value;
}

template <class T>
SM_INLINE T atomic_exchange_explicit(volatile SM_SPACE atomic<T>* object,
                                     softmetal::given<T> desired, memory_order order) {
  T value;
  softmetal::before_atomic((int)order);
  __atomic_exchange((volatile T*)&object->__s, &desired, &value, (int)order);
  softmetal::after_atomic((int)order);
  return value;
}

template <class T>
SM_INLINE bool atomic_compare_exchange_weak_explicit(volatile SM_SPACE atomic<T>* object,
                                                     SM_THREAD softmetal::given<T>* expected,
                                                     softmetal::given<T> desired,
                                                     memory_order success, memory_order failure) {
  return __atomic_compare_exchange((volatile T*)&object->__s, (T*)expected, &desired, true,
                                   (int)success, (int)failure);
}

#define SM_ATOMIC_FETCH(operation, types, message)                                              \
  template <class T>                                                                            \
  SM_INLINE T atomic_fetch_##operation##_explicit(volatile SM_SPACE atomic<T>* object,          \
                                                  softmetal::given<T> operand,                  \
                                                  memory_order order) {                         \
    static_assert(softmetal::types<T>, "atomic_fetch_" #operation "_explicit " message);        \
    softmetal::before_atomic((int)order);                                                       \
    T value = __atomic_fetch_##operation((volatile T*)&object->__s, operand, (int)order);       \
    softmetal::after_atomic((int)order);                                                        \
    return value;                                                                               \
  }
SM_ATOMIC_FETCH(add, is_atomic_number, "takes atomic integers and atomic_float")
SM_ATOMIC_FETCH(sub, is_atomic_number, "takes atomic integers and atomic_float")
SM_ATOMIC_FETCH(and, is_atomic_integer, "takes atomic integers")
SM_ATOMIC_FETCH(or, is_atomic_integer, "takes atomic integers")
SM_ATOMIC_FETCH(xor, is_atomic_integer, "takes atomic integers")
SM_ATOMIC_FETCH(min, is_atomic_integer, "takes atomic integers")
SM_ATOMIC_FETCH(max, is_atomic_integer, "takes atomic integers")
#undef SM_ATOMIC_FETCH

// The 64-bit forms that return nothing.
SM_INLINE void atomic_min_explicit(volatile SM_SPACE atomic_ulong* object, ulong operand,
                                   memory_order order) {
  atomic_fetch_min_explicit(object, operand, order);
}
SM_INLINE void atomic_max_explicit(volatile SM_SPACE atomic_ulong* object, ulong operand,
                                   memory_order order) {
  atomic_fetch_max_explicit(object, operand, order);
}

}  // namespace metal

// Private names that programs use, on the value inside the atomic.
#define SM_PRIVATE_NAME(operation)                                                              \
  template <class T>                                                                            \
  SM_INLINE T __metal_atomic_##operation##_explicit(                                            \
      volatile SM_SPACE T* object, softmetal::given<T> operand, int order, int = 0, int = 0) {  \
    return metal::atomic_##operation##_explicit((volatile SM_SPACE metal::atomic<T>*)object,    \
                                                operand, (metal::memory_order)order);           \
  }
SM_PRIVATE_NAME(exchange)
SM_PRIVATE_NAME(fetch_add)
SM_PRIVATE_NAME(fetch_sub)
SM_PRIVATE_NAME(fetch_and)
SM_PRIVATE_NAME(fetch_or)
SM_PRIVATE_NAME(fetch_xor)
SM_PRIVATE_NAME(fetch_min)
SM_PRIVATE_NAME(fetch_max)
#undef SM_PRIVATE_NAME

template <class T>
SM_INLINE T __metal_atomic_load_explicit(const volatile SM_SPACE T* object, int order, int = 0,
                                         int = 0) {
  return metal::atomic_load_explicit((const volatile SM_SPACE metal::atomic<T>*)object,
                                     (metal::memory_order)order);
}

template <class T>
SM_INLINE void __metal_atomic_store_explicit(volatile SM_SPACE T* object,
                                             softmetal::given<T> desired, int order, int = 0,
                                             int = 0) {
  metal::atomic_store_explicit((volatile SM_SPACE metal::atomic<T>*)object, desired,
                               (metal::memory_order)order);
}

template <class T>
SM_INLINE bool __metal_atomic_compare_exchange_weak_explicit(
    volatile SM_SPACE T* object, SM_THREAD T* expected, softmetal::given<T> desired, int success,
    int failure, int = 0, int = 0) {
  return metal::atomic_compare_exchange_weak_explicit(
      (volatile SM_SPACE metal::atomic<T>*)object, expected, desired,
      (metal::memory_order)success, (metal::memory_order)failure);
}
