// Metal's address spaces as clang's of C++ for OpenCL, in which pointers and references without one
// are generic: they take any of these. `threadgroup` is a part of clang's `constant` space here, as
// there is no fifth one; compiler/strict/check.py closes that gap by a second run.
#ifndef SOFTMETAL_SPACES_H
#define SOFTMETAL_SPACES_H

#define SM_THREAD __private
#ifdef SM_SWAPPED_SPACES
#define SM_DEVICE __attribute__((opencl_global_device))
#define SM_THREADGROUP __local
#else
#define SM_DEVICE __local
#define SM_THREADGROUP __attribute__((opencl_global_device))
#endif
#define SM_CONSTANT const __global
#define SM_LITERAL const __constant char*

// Names that C++ for OpenCL keeps for itself.
#define half softmetal_half
#define size_t softmetal_size_t
#define atomic_int softmetal_atomic_int
#define atomic_uint softmetal_atomic_uint
#define atomic_float softmetal_atomic_float
#define atomic_long softmetal_atomic_long
#define atomic_ulong softmetal_atomic_ulong
#define atomic_flag softmetal_atomic_flag

#endif
