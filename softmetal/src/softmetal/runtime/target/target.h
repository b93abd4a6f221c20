// What depends on the target, for CPUs. The headers in include/ take it from the folder `target` of
// the device that they are compiled for:
//   SM_TG, group_barrier, simd_barrier, fence, before_atomic, after_atomic, lane, write_log
//   reduce, scan, shuffle, shuffle_and_fill, vote           lanes.h
//   multiply                                                matrix.h
//   the exported entries of a kernel                        entry.h
#ifndef SOFTMETAL_TARGET_H
#define SOFTMETAL_TARGET_H

#include <softmetal/config.h>

#include "../abi.h"

// Storage of `threadgroup T name[n];` in a kernel: one copy a worker, which runs one threadgroup at
// a time. Its threads stay on their worker, so clang may keep the address over barriers.
#ifdef SM_CHECK
// A gap before each variable, so that running over one does not end in another; `used`, or reading
// what is never written folds to zero.
#define SM_JOIN_(a, b) a##b
#define SM_JOIN(a, b) SM_JOIN_(a, b)
#define SM_TG                                                                             \
  static thread_local char SM_JOIN(softmetal_guard, __COUNTER__)[64] __attribute__((used)); \
  __attribute__((used)) static thread_local
#else
#define SM_TG static thread_local
#endif

namespace softmetal {

// Lanes are matched by the address that they call from. The code generator must not merge the calls
// of an if and its else (nomerge), nor duplicate a short block with a call (asm prevents that).
//
// A function of SM_MEETS computes the same from the operands of all lanes as `together` does from
// arrays of them, the first `n` of which count: compiler/regions/ calls that instead, where all lanes
// of a simdgroup arrive. The runtime does not look at it.
SM_INLINE void collective(void (*operate)(const sm_lanes*), void* slot,
                          const void* together = nullptr) {
#ifdef SM_CHECK
  together = nullptr;  // it would be checked too
#endif
  __asm__ volatile("");
  [[clang::nomerge]] softmetal_collective(operate, slot, together);
}
#ifdef SM_CHECK
#define SM_MEETS SM_INLINE
#else
#define SM_MEETS inline __attribute__((noinline, convergent, nomerge))
#endif

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

SM_INLINE void fence(unsigned flags, int order, int scope) {
#ifdef SM_CHECK
  softmetal_check_fence(flags, (sm_u32)order, (sm_u32)scope);
#endif
  __atomic_thread_fence(order);
}
SM_INLINE void before_atomic(int) {}  // the operation itself has its order
SM_INLINE void after_atomic(int) {}

// The calling thread's thread_index_in_simdgroup.
SM_INLINE sm_u32 lane() { return softmetal_lane(); }

SM_INLINE void write_log(const char* subsystem, const char* category, sm_u32 level,
                         const char* format, const sm_u8* kinds, const sm_u64* values,
                         sm_u32 count) {
  softmetal_log(subsystem, category, level, format, kinds, values, count);
}

}  // namespace softmetal

#include <target/lanes.h>
#include <target/matrix.h>

#endif
