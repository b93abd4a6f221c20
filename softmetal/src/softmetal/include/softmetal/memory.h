// Memory orders and scopes, for metal_atomic and metal_compute.
#ifndef SOFTMETAL_MEMORY_H
#define SOFTMETAL_MEMORY_H

#define __METAL_MEMORY_SCOPE_THREAD__ 0
#define __METAL_MEMORY_SCOPE_THREADGROUP__ 1
#define __METAL_MEMORY_SCOPE_DEVICE__ 2
#define __METAL_MEMORY_SCOPE_SYSTEM__ 3
#define __METAL_MEMORY_SCOPE_SIMDGROUP__ 4

namespace metal {

enum memory_order {
  memory_order_relaxed = __ATOMIC_RELAXED,
  memory_order_acquire = __ATOMIC_ACQUIRE,
  memory_order_release = __ATOMIC_RELEASE,
  memory_order_acq_rel = __ATOMIC_ACQ_REL,
  memory_order_seq_cst = __ATOMIC_SEQ_CST,
};

enum thread_scope {
  thread_scope_thread = __METAL_MEMORY_SCOPE_THREAD__,
  thread_scope_threadgroup = __METAL_MEMORY_SCOPE_THREADGROUP__,
  thread_scope_device = __METAL_MEMORY_SCOPE_DEVICE__,
  thread_scope_simdgroup = __METAL_MEMORY_SCOPE_SIMDGROUP__,
};

// Programs declare it in namespace metal, with and without looking for the macro: theirs comes first.
namespace scopes {
constexpr thread_scope thread_scope_system = thread_scope(__METAL_MEMORY_SCOPE_SYSTEM__);
}
using namespace scopes;

}  // namespace metal

#endif
