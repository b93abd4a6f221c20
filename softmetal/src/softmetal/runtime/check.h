/* The checking modes: their records, and the functions that the runtime calls. */
#ifndef SOFTMETAL_CHECK_H
#define SOFTMETAL_CHECK_H

#include "finding.h"
#include "runtime.h"

enum { SM_CHECK_BOUNDS = 1, SM_CHECK_RACE = 2, SM_CHECK_UNINIT = 4 };
enum { SM_CHECK_SHADOWED = SM_CHECK_RACE | SM_CHECK_UNINIT };
enum { SM_QUEUES = 32 }; /* queues beyond that share a clock, which hides races between them */

/* A threadgroup variable or constant of a kernel. */
typedef struct sm_variable {
  sm_u64 offset, size;
  sm_u64 constant; /* in the shared object, else in its thread-local storage */
} sm_variable;

typedef struct sm_kernel_checks {
  sm_u32 modes;
  sm_u64 anchor;               /* offset of what anchor_address gives in the thread-local storage */
  char *(*anchor_address)(void);
  char *image;                 /* the shared object in memory */
  sm_u32 variable_count;
  sm_variable variables[];
} sm_kernel_checks;

/* A vector clock: for each queue, the number of its dispatches that happened before. */
typedef struct sm_clock {
  sm_u32 time[SM_QUEUES];
} sm_clock;

/* The last signals of an event, each with the clock at that time. */
enum { SM_SIGNALS = 16 };
typedef struct sm_signals {
  sm_u32 count;
  struct {
    sm_u64 value;
    sm_clock clock;
  } last[SM_SIGNALS];
} sm_signals;

typedef struct sm_check sm_check;
typedef struct sm_order sm_order;

/* ---- dispatches ------------------------------------------------------------------------------ */

/* Called around a dispatch on the stream's thread; with race detection it runs alone. */
void sm_check_begin(sm_submission *, const sm_kernel *, const sm_launch *);
void sm_check_end(const sm_kernel *);

/* Called around a chunk on a worker. */
void sm_check_enter(sm_worker *, sm_submission *, const sm_kernel *, const sm_launch *,
                    const sm_u32 *scratch_lengths, sm_u32 scratch_count);
void sm_check_leave(void);

/* The next threadgroup of this worker: the one to run in the place of the `index`th. */
sm_u64 sm_check_group(sm_worker *, sm_u64 index, sm_u64 total);

void sm_check_copy(sm_submission *, sm_u64 source, sm_u64 destination, sm_u64 size);

/* ---- fibers ---------------------------------------------------------------------------------- */

/* Makes the fibers of an arena report barriers to `check` and run in its order. */
void sm_arena_check(sm_arena *, sm_check *check);
/* One of the set bits of `ready`, at random. */
sm_u32 sm_check_pick(sm_check *, sm_u32 ready);
/* All living threads are at a barrier, which is about to release them. */
void sm_check_release(sm_check *, const sm_u32 *alive, sm_u32 groups, sm_u32 threads);

/* ---- order between dispatches ---------------------------------------------------------------- */

void sm_check_submitted(sm_submission *);
void sm_check_started(sm_submission *, sm_u32 queue);
void sm_check_order(sm_submission *, sm_u32 kind, sm_u64 value);
void sm_check_signal(sm_submission *, sm_signals *, sm_u64 value);
void sm_check_wait(sm_submission *, const sm_signals *, sm_u64 value);
void sm_check_host_saw(const sm_clock *);
void sm_check_host_signal(sm_signals *, sm_u64 value);
void sm_check_host_wait(const sm_signals *, sm_u64 value);
void sm_check_free(sm_submission *);
const sm_clock *sm_order_clock(const sm_order *);

#endif
