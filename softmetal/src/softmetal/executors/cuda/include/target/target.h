// What depends on the target, for NVIDIA GPUs: barriers, fences and logs here, simdgroup functions in
// lanes.h, matrices in matrix.h, the entry of a kernel in entry.h.
#ifndef SOFTMETAL_TARGET_H
#define SOFTMETAL_TARGET_H

#include <softmetal/config.h>
#include <target/launch.h>

typedef __UINT8_TYPE__ sm_u8;
typedef __UINT32_TYPE__ sm_u32;
typedef __UINT64_TYPE__ sm_u64;

enum { SM_ABI = 1, SM_BUFFERS = 31, SM_LANES = 32 };
#define SM_BYTE_DOTS  // target/dots.h has them
#define SM_TENSOR_TILES  // target/tiles.h has them
#define SM_PREFETCH  // target/prefetch.h has it
#define SM_EXCHANGE  // target/lanes.h has it

// Storage of `threadgroup T name[n];` in a kernel.
#define SM_TG static __attribute__((shared))

namespace softmetal {

// `bar.sync` orders all memory for the threads of a block; it does not count those that returned.
SM_INLINE void group_barrier(unsigned) { __syncthreads(); }
SM_INLINE void simd_barrier(unsigned) { __nvvm_bar_warp_sync(~0u); }
SM_INLINE void fence(unsigned, int order, int) {
  if (order != __ATOMIC_RELAXED) __nvvm_membar_gl();
}

// PTX has no order on read-modify-write: fences around it give acquire and release.
SM_INLINE void before_atomic(int order) {
  if (order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST)
    __nvvm_membar_gl();
}
SM_INLINE void after_atomic(int order) {
  if (order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST)
    __nvvm_membar_gl();
}

// The calling thread's thread_index_in_simdgroup: warps are formed as Metal forms simdgroups.
SM_INLINE sm_u32 lane() { return __nvvm_read_ptx_sreg_laneid(); }

}  // namespace softmetal

#include <target/lanes.h>
#include <target/log.h>
#include <target/matrix.h>

#endif
