// The entry of a kernel on NVIDIA GPUs: a block is a threadgroup.
#ifndef SOFTMETAL_TARGET_ENTRY_H
#define SOFTMETAL_TARGET_ENTRY_H

#include <target/target.h>

extern __attribute__((shared)) char softmetal_scratch[] __attribute__((aligned(256)));

namespace softmetal {

SM_INLINE void unflatten(sm_u32 (&position)[3], sm_u32 index, const sm_u32 (&size)[3]) {
  position[0] = index % size[0];
  position[1] = index / size[0] % size[1];
  position[2] = index / size[0] / size[1];
}

// The first thread of a grid.
SM_INLINE bool is_first() {
  return !(__nvvm_read_ptx_sreg_ctaid_x() | __nvvm_read_ptx_sreg_ctaid_y() |
           __nvvm_read_ptx_sreg_ctaid_z() | __nvvm_read_ptx_sreg_tid_x() |
           __nvvm_read_ptx_sreg_tid_y() | __nvvm_read_ptx_sreg_tid_z());
}

// All threads wait here until the kernels before this one have ended and their memory is visible; the next
// one may start as soon as all blocks are past it. Sizes and the like, which every kernel reads first, are
// on their way to the L2 cache meanwhile: one thread asks for them, since requests for one line queue up.
template <class Kernel>
SM_INLINE void await_previous(const sm_launch& l) {
#if __CUDA_ARCH__ >= 900
  if (is_first())
    Kernel::each_constant(&l, [](const void* address) {
      __asm__ volatile("prefetch.global.L2 [%0];" ::"l"(address));
    });
  __asm__ volatile("griddepcontrol.wait;" ::: "memory");
  __asm__ volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the thread exists. At a ragged edge a threadgroup is smaller than its block: its threads
// are the block's first ones, so that simdgroups are filled as Metal fills them.
SM_INLINE bool find_thread(const sm_launch& l, where& w) {
  for (int i = 0; i < 3; i++) {
    w.grid[i] = l.grid[i], w.groups[i] = l.groups[i], w.full_group[i] = l.group[i];
  }
  if (l.flat_grid) {
    unflatten(w.group, __nvvm_read_ptx_sreg_ctaid_x(), l.groups);
  } else {
    w.group[0] = __nvvm_read_ptx_sreg_ctaid_x();
    w.group[1] = __nvvm_read_ptx_sreg_ctaid_y();
    w.group[2] = __nvvm_read_ptx_sreg_ctaid_z();
  }
  if (l.flat_group) {
    for (int i = 0; i < 3; i++) {
      const sm_u32 left = l.grid[i] - w.group[i] * l.group[i];
      w.group_size[i] = left < l.group[i] ? left : l.group[i];
    }
    w.index = __nvvm_read_ptx_sreg_tid_x();
    if (w.index >= volume(w.group_size)) return false;
    unflatten(w.local, w.index, w.group_size);
  } else {
    for (int i = 0; i < 3; i++) w.group_size[i] = l.group[i];
    w.local[0] = __nvvm_read_ptx_sreg_tid_x();
    w.local[1] = __nvvm_read_ptx_sreg_tid_y();
    w.local[2] = __nvvm_read_ptx_sreg_tid_z();
    w.index = (w.local[2] * l.group[1] + w.local[1]) * l.group[0] + w.local[0];
  }
  for (int i = 0; i < 3; i++) w.global[i] = w.group[i] * l.group[i] + w.local[i];
  return true;
}

}  // namespace softmetal

#ifdef SM_CHECK
#define SM_SET_CHECK softmetal::check_block = (softmetal::sm_check_block*)l.check;
#else
#define SM_SET_CHECK
#endif
// The compiler reads it from the IR.
#define SM_INFO(max_threads)                                                         \
  __attribute__((device, used)) extern const softmetal_kernel::info softmetal_info = \
      softmetal_kernel::describe(0, max_threads);
// The driver launches a kernel whose module has `softmetal_waits` before the previous one has ended.
#if __CUDA_ARCH__ >= 900
#define SM_WAITS __attribute__((device, used)) extern const int softmetal_waits = 1;
#else
#define SM_WAITS
#endif
#define SM_ENTRY(name)                                                                \
  SM_WAITS                                                                            \
  extern "C" __attribute__((global)) void name(const sm_launch l) {                   \
    softmetal::await_previous<softmetal_kernel>(l);                                   \
    softmetal::where w = {};                                                          \
    SM_SET_LOG SM_SET_CHECK                                                           \
    if (softmetal::find_thread(l, w))                                                 \
      softmetal_kernel::thread<softmetal_kernel::run>(&l, softmetal_scratch, w);      \
  }

#endif
