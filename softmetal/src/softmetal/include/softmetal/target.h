// Everything that depends on the target. The CPU's version is this file and the two it ends with;
// another target supplies the same functions:
//   group_barrier, simd_barrier, fence, lane, write_log     here
//   reduce, scan, shuffle, shuffle_and_fill, vote           lanes_cpu.h
//   multiply                                                matrix_cpu.h
#ifndef SOFTMETAL_TARGET_H
#define SOFTMETAL_TARGET_H

#include <softmetal/config.h>

#include "../../runtime/abi.h"

namespace softmetal {

// Lanes are matched by the address that they call from. The code generator must not merge the calls
// of an if and its else (nomerge), nor duplicate a short block with a call (asm prevents that).
SM_INLINE void collective(void (*operate)(const sm_lanes*), void* slot) {
  __asm__ volatile("");
  [[clang::nomerge]] softmetal_collective(operate, slot);
}

// All threads of a threadgroup run on one worker, so no memory fence is needed. Only the checking
// modes use the flags of a barrier (bit 0: device memory, bit 1: threadgroup memory).
#ifdef SM_CHECK
template <unsigned Flags> inline void meet(const sm_lanes*) { softmetal_check_simd_barrier(Flags); }

SM_INLINE void group_barrier(unsigned flags) {
  [[clang::nomerge]] softmetal_check_barrier(flags, 0);  // instrument.py replaces the site
}
SM_INLINE void simd_barrier(unsigned flags) {
  flags &= 3;
  collective(flags == 3 ? meet<3> : flags == 2 ? meet<2> : flags ? meet<1> : meet<0>, nullptr);
}
#else
inline void meet(const sm_lanes*) {}

SM_INLINE void group_barrier(unsigned) { softmetal_barrier(); }
SM_INLINE void simd_barrier(unsigned) { collective(meet, nullptr); }
#endif

SM_INLINE void fence(int order) { __atomic_thread_fence(order); }

// The calling thread's thread_index_in_simdgroup.
SM_INLINE sm_u32 lane() { return softmetal_lane(); }

SM_INLINE void write_log(const char* subsystem, const char* category, sm_u32 level,
                         const char* format, const sm_u8* kinds, const sm_u64* values,
                         sm_u32 count) {
  softmetal_log(subsystem, category, level, format, kinds, values, count);
}

}  // namespace softmetal

#include <softmetal/lanes_cpu.h>
#include <softmetal/matrix_cpu.h>

#endif
