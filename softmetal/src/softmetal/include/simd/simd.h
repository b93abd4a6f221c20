// The names under which headers shared with the host know the vector and matrix types.
#ifndef SIMD_SIMD_H
#define SIMD_SIMD_H

#include <metal_matrix>
#include <metal_types>

#define SM_SIMD_VECTORS(T)                       \
  typedef metal::T##2 simd_##T##2, vector_##T##2; \
  typedef metal::T##3 simd_##T##3, vector_##T##3; \
  typedef metal::T##4 simd_##T##4, vector_##T##4; \
  namespace simd {                               \
  using metal::T##2;                             \
  using metal::T##3;                             \
  using metal::T##4;                             \
  using metal::packed_##T##2;                    \
  using metal::packed_##T##3;                    \
  using metal::packed_##T##4;                    \
  }
SM_INTEGER_TYPES(SM_SIMD_VECTORS)
SM_FLOAT_TYPES(SM_SIMD_VECTORS)
#undef SM_SIMD_VECTORS

#define SM_SIMD_MATRICES(T, C)                                  \
  typedef metal::T##C##x2 simd_##T##C##x2, matrix_##T##C##x2;   \
  typedef metal::T##C##x3 simd_##T##C##x3, matrix_##T##C##x3;   \
  typedef metal::T##C##x4 simd_##T##C##x4, matrix_##T##C##x4;   \
  namespace simd {                                              \
  using metal::T##C##x2;                                        \
  using metal::T##C##x3;                                        \
  using metal::T##C##x4;                                        \
  }
SM_SIMD_MATRICES(float, 2)
SM_SIMD_MATRICES(float, 3)
SM_SIMD_MATRICES(float, 4)
SM_SIMD_MATRICES(half, 2)
SM_SIMD_MATRICES(half, 3)
SM_SIMD_MATRICES(half, 4)
#undef SM_SIMD_MATRICES

#endif
