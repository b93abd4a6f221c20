// Bytes on their way to the L2 cache before a kernel waits for those before it.
#ifndef SOFTMETAL_TARGET_PREFETCH_H
#define SOFTMETAL_TARGET_PREFETCH_H

namespace softmetal {

// Whole units of 16 bytes: a page ends at a multiple of them.
SM_INLINE void prefetch(const void* from, unsigned long bytes) {
#if __CUDA_ARCH__ >= 900
  const sm_u64 start = (sm_u64)from / 16 * 16, end = ((sm_u64)from + bytes + 15) / 16 * 16;
  if (start < end)
    __asm__ volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(start), "r"((sm_u32)(end - start)));
#endif
}

// The compiler removes the wait at the entry of a kernel that has this one (codegen.py).
SM_INLINE void await_previous() {
#if __CUDA_ARCH__ >= 900
  __asm__ volatile("griddepcontrol.wait; // here" ::: "memory");
#endif
}

// The compiler tells the driver of it (codegen.py).
SM_INLINE void reads_early() {
#if __CUDA_ARCH__ >= 900
  __asm__ volatile("// reads early" ::: "memory");
#endif
}

}  // namespace softmetal

#endif
