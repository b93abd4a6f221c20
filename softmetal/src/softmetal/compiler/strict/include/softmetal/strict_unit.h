// The precompiled header of the strict check: Metal's headers with real address spaces.
#ifndef SOFTMETAL_STRICT_UNIT_H
#define SOFTMETAL_STRICT_UNIT_H

#include <softmetal/spaces.h>

#include <metal_stdlib>

namespace softmetal {
template <class T, class U> constexpr T cast(U value) {
  if constexpr ((__is_same(T, half) && __is_same(U, bfloat)) ||
                (__is_same(T, bfloat) && __is_same(U, half)))
    return static_cast<T>(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

// `threadgroup T name[n];` in a kernel becomes a reference to this.
template <class T> SM_THREADGROUP T& threadgroup_variable();
}  // namespace softmetal

#define SM_CAST_static_cast ::softmetal::cast
#define SM_CAST_half ::softmetal::cast<half>
#define SM_CAST_bfloat ::softmetal::cast<bfloat>

// Without a value: a function constant is not a constant expression in Metal either.
#define SM_FUNCTION_CONSTANT(T, name, i) \
  extern SM_CONSTANT T name;             \
  extern SM_CONSTANT bool softmetal_defined_##name
#define is_function_constant_defined(name) softmetal_defined_##name

#endif
