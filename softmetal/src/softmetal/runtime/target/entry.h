// The entries of a kernel on CPUs: loops over threads, or one fiber a thread; see sm_mode in abi.h.
#ifndef SOFTMETAL_TARGET_ENTRY_H
#define SOFTMETAL_TARGET_ENTRY_H

#include <target/target.h>

namespace softmetal {

// The loops below run over the global x, or clang cannot prove that indices do not wrap. Threads
// are independent by Metal's rules: that is what assume_safety says. Locals that end up in memory
// would be shared between iterations; the `lower` stage takes the promise back for such kernels.

template <class K>
SM_INLINE void flat(const sm_launch *l, sm_u32 x0, sm_u32 x1, sm_u32 y, sm_u32 z) {
  const typename K::in_loop arguments(l, nullptr);
  const where base = K::start(l);
#pragma clang loop vectorize(assume_safety)
  for (sm_u32 x = x0; x < x1; ++x) {
    where w = base;
    w.global[0] = x, w.global[1] = y, w.global[2] = z;
    arguments.call(w);
  }
}

template <class K>
SM_INLINE void row(const typename K::in_loop &arguments, const where &base,
                   const sm_u32 (&first)[3], sm_u32 y, sm_u32 z) {
  const sm_u32 end = first[0] + base.group_size[0];
#ifdef SM_CHECK
  const sm_u32 turn = softmetal_check_first(base.group_size[0]);
  sm_u32 *const thread = softmetal_check_thread();
  for (sm_u32 i = 0; i < base.group_size[0]; ++i) {
    const sm_u32 wrap = i + turn < base.group_size[0] ? 0 : base.group_size[0];
    const sm_u32 x = first[0] + i + turn - wrap;
    *thread = (z * base.group_size[1] + y) * base.group_size[0] + x - first[0];
#else
#pragma clang loop vectorize(assume_safety)
  for (sm_u32 x = first[0]; x < end; ++x) {
#endif
    where w = base;
    w.global[0] = x, w.global[1] = first[1] + y, w.global[2] = first[2] + z;
    w.local[0] = x - first[0], w.local[1] = y, w.local[2] = z;
    w.index = (z * base.group_size[1] + y) * base.group_size[0] + w.local[0];
    arguments.call(w);
  }
}

template <class K>
SM_INLINE void groups(const sm_launch *l, char *memory, sm_u32 gx0, sm_u32 gx1, sm_u32 gy,
                      sm_u32 gz) {
  const typename K::in_loop arguments(l, memory);
  where base = K::start(l);
  for (sm_u32 gx = gx0; gx < gx1; ++gx) {
    const sm_u32 group[3] = {gx, gy, gz};
    sm_u32 first[3];
    for (int i = 0; i < 3; i++) {
      base.group[i] = group[i];
      first[i] = group[i] * base.full_group[i];
      const sm_u32 left = base.grid[i] - first[i];
      base.group_size[i] = left < base.full_group[i] ? left : base.full_group[i];
    }
    for (sm_u32 z = 0; z < base.group_size[2]; ++z)
      for (sm_u32 y = 0; y < base.group_size[1]; ++y)
        row<K>(arguments, base, first, y, z);
  }
}

template <class K>
SM_INLINE void fiber(const sm_launch *l, const sm_thread *t) {
  where w = K::start(l);
  for (int i = 0; i < 3; i++) {
    w.group[i] = t->group_position[i];
    w.group_size[i] = t->group_size[i];
    w.local[i] = t->position[i];
    w.global[i] = w.group[i] * w.full_group[i] + w.local[i];
  }
  w.index = t->index;
  K::thread(l, t->scratch, w);
}

}  // namespace softmetal

// What a kernel's shared object exports. The kernel comes last: its template arguments have commas.
#define SM_EXPORT extern "C" __attribute__((visibility("default"), used))

// __builtin_abort calls libc's abort, which ends the process. A kernel has its own, which raises a
// fault that the runtime turns into an error of the command buffer.
extern "C" [[noreturn]] void softmetal_abort() __asm__("abort");
extern "C" __attribute__((visibility("hidden"), used)) inline void softmetal_abort() {
  __builtin_trap();
}
#define SM_INFO(mode, max_threads) \
  SM_EXPORT const softmetal_kernel::info softmetal_info = \
      softmetal_kernel::describe(mode, max_threads);
#ifdef SM_CHECK
#define SM_ANCHOR                                                          \
  static thread_local char softmetal_anchor __attribute__((used)) = 0;     \
  SM_EXPORT char *softmetal_anchor_address(void) { return &softmetal_anchor; }
#else
#define SM_ANCHOR
#endif
#define SM_ENTRY_FLAT \
  SM_EXPORT void softmetal_entry(const sm_launch *l, sm_u32 x0, sm_u32 x1, sm_u32 y, sm_u32 z) { \
    softmetal::flat<softmetal_kernel>(l, x0, x1, y, z); \
  }
#define SM_ENTRY_GROUPS \
  SM_EXPORT void softmetal_entry(const sm_launch *l, char *memory, sm_u32 gx0, sm_u32 gx1, \
                                 sm_u32 gy, sm_u32 gz) { \
    softmetal::groups<softmetal_kernel>(l, memory, gx0, gx1, gy, gz); \
  }
#define SM_ENTRY_FIBERS \
  SM_EXPORT void softmetal_entry(const sm_launch *l, const sm_thread *t) { \
    softmetal::fiber<softmetal_kernel>(l, t); \
  }

#endif
