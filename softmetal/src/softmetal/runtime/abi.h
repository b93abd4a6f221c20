/* The interface of kernels, the C runtime and executors/cpu.py. C and C++; fixed-width types only. */
#ifndef SOFTMETAL_ABI_H
#define SOFTMETAL_ABI_H

#include "words.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the CPU runs a kernel; mirrors softmetal.types.Mode. */
enum sm_mode { SM_FLAT, SM_GROUPS, SM_FIBERS, SM_REGIONS, SM_SIMDGROUPS };

/* One dispatch, shared by all of its threads. */
typedef struct sm_launch {
  void *const *buffers;                /* SM_BUFFERS addresses, by buffer index */
  sm_u32 grid[3];                      /* threads_per_grid */
  sm_u32 group[3];                     /* dispatch_threads_per_threadgroup: the full size */
  sm_u32 groups[3];                    /* threadgroups_per_grid */
  sm_u32 scratch_offset[SM_BUFFERS];   /* of each [[threadgroup(i)]] argument in the scratch */
} sm_launch;

/* One thread of a SM_FIBERS kernel. For SM_REGIONS the first of a threadgroup, for SM_SIMDGROUPS of a
   simdgroup: the entry runs them all. */
typedef struct sm_thread {
  sm_u32 group_position[3];            /* threadgroup_position_in_grid */
  sm_u32 group_size[3];                /* threads_per_threadgroup: smaller at a ragged edge */
  sm_u32 position[3];                  /* thread_position_in_threadgroup */
  sm_u32 index;                        /* thread_index_in_threadgroup */
  char *scratch;                       /* its dynamic threadgroup memory, 256-aligned */
} sm_thread;

/* Every kernel's shared object exports `softmetal_entry`, of its mode's type, and `softmetal_info`. */
typedef void (*sm_flat_entry)(const sm_launch *, sm_u32 x0, sm_u32 x1, sm_u32 y, sm_u32 z);
typedef void (*sm_groups_entry)(const sm_launch *, char *scratch, sm_u32 gx0, sm_u32 gx1, sm_u32 gy,
                                sm_u32 gz);
typedef void (*sm_fibers_entry)(const sm_launch *, const sm_thread *);

typedef struct sm_argument {           /* argument_info in include/softmetal/entry.h */
  sm_u32 kind, index, size, alignment, writable, reference; /* kind 0 is a buffer */
} sm_argument;

typedef struct sm_info {
  sm_u32 abi, mode, argument_count, max_threads;
  sm_argument arguments[];             /* of each parameter, in their order */
} sm_info;

/* Called by SM_FIBERS kernels. `convergent` restricts LLVM's optimiser, `nomerge` its code generator:
   two calls in the branches of an `if` must keep different return addresses. */

/* threadgroup_barrier: returns when every living thread of the threadgroup has arrived. */
__attribute__((convergent, nomerge)) void softmetal_barrier(void);

/* A simdgroup operation. The lanes that arrive at one call site together are its active lanes; the
   last to arrive runs `operate` once for all of them; then each returns. slot[i] is what lane i
   passed, null where lane i is not active. */
typedef struct sm_lanes {
  void *slot[SM_LANES];
  sm_u32 active; /* bit i: lane i takes part */
} sm_lanes;
__attribute__((convergent, nomerge)) void softmetal_collective(void (*operate)(const sm_lanes *),
                                                               void *slot, const void *together);

/* The calling thread's thread_index_in_simdgroup; it never changes, so calls may be merged. */
__attribute__((const)) sm_u32 softmetal_lane(void);

/* Called by kernels compiled for checking; see check.c. */
__attribute__((convergent, nomerge)) void softmetal_check_barrier(sm_u32 flags, sm_u32 site);
void softmetal_check_simd_barrier(sm_u32 flags);
void softmetal_check_fence(sm_u32 flags, sm_u32 order, sm_u32 scope);
sm_u32 *softmetal_check_thread(void);
sm_u32 softmetal_check_first(sm_u32 count);

/* os_log from a kernel of any mode: printf semantics. kinds[i]: 'i' int64, 'u' uint64, 'f' double,
   's' const char*, 'p' pointer; values[i] holds its bits. */
void softmetal_log(const char *subsystem, const char *category, sm_u32 level, const char *format,
                   const sm_u8 *kinds, const sm_u64 *values, sm_u32 count);

#ifdef __cplusplus
}
#endif
#endif
