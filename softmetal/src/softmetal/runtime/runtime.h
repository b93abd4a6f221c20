/* Shared by the files of the runtime. executors/cpu.py calls the functions marked SM_EXPORT. */
#ifndef SOFTMETAL_RUNTIME_H
#define SOFTMETAL_RUNTIME_H

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "commands.h"
#include "outcome.h"
#include "sync.h"
#include "uses.h"

#define SM_EXPORT __attribute__((visibility("default")))
#define SM_LIKELY(x) __builtin_expect(!!(x), 1)
#define SM_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- kernel.c -------------------------------------------------------------------------------- */

typedef struct sm_kernel {
  union {
    void *address;
    sm_flat_entry flat;
    sm_groups_entry groups;
    sm_fibers_entry fibers;
  } entry;
  sm_u32 mode;
  const char *subject; /* of error messages: "kernel 'name'" */
  void *library;       /* of dlopen */
  const char *code;    /* its machine code */
  size_t code_size;
  size_t statics, statics_shift; /* bytes of its threadgroup variables; see sm_statics */
  char *(*anchor_address)(void);   /* these two are null unless it was compiled for checking */
  struct sm_kernel_checks *checks;
  sm_u32 written; /* bit i: it may write buffer i */
  _Alignas(64) _Atomic float cost; /* nanoseconds per thread, measured; 0 before the first run */
} sm_kernel;

static inline bool sm_has_fibers(const sm_kernel *kernel) {
  return kernel->mode == SM_FIBERS || kernel->mode == SM_SIMDGROUPS;
}

/* Where this thread's copy of the threadgroup variables of its kernel is. Kernels declare them as
   thread-local; kernel.c makes them look here. */
extern _Thread_local char *sm_statics;

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Makes accesses to whole pages fault without splitting their mapping, as Linux can since 6.13;
   false if this one cannot. */
bool sm_light_guard(char *, size_t size);

void *softmetal_allocate(size_t length);
void softmetal_free(void *address, size_t length);

/* A stack of SM_WORKER_STACK bytes between guards, with a margin above it; null: no memory. */
char *sm_stack_new(void);
void sm_stack_free(char *);

/* ---- log.c ----------------------------------------------------------------------------------- */

typedef struct sm_log {
  char *_Atomic data; /* mapped at the first message */
  atomic_size_t used; /* reserved, may exceed the capacity */
  atomic_size_t dropped;
} sm_log;

/* The log of the submission that runs on this thread. */
extern _Thread_local sm_log *sm_current_log;
void sm_log_free(sm_log *);

/* The entries of a list that has run, up to the first that did not fit. */
void sm_log_read(sm_log *, sm_outcome *);

/* ---- pool.c ---------------------------------------------------------------------------------- */

typedef struct sm_pool sm_pool;
typedef struct sm_arena sm_arena;
/* Packed operands of a product, right panels of a tile, and its sums. */
enum { SM_LEFT, SM_RIGHT, SM_TILE_RIGHT, SM_TILE_SUMS, SM_PANELS };

typedef struct sm_worker sm_worker;
typedef struct sm_job sm_job;
typedef struct sm_submission sm_submission;

/* What a thread is doing, for sm_shutdown. */
enum sm_activity { SM_IDLE, SM_BUSY, SM_IN_KERNEL };

/* Memory between guards that grows and never shrinks. */
typedef struct sm_block {
  char *address; /* aligned to 16 KiB */
  size_t size;
} sm_block;
bool sm_block_reserve(sm_block *, size_t size);
void sm_block_free(sm_block *);

/* Why a kernel was left. */
enum sm_cause {
  SM_TIMEOUT = 1,
  SM_UNMAPPED,
  SM_PROTECTED,
  SM_BEYOND_FILE,
  SM_INVALID,
  SM_OVERFLOW,
  SM_ILLEGAL
};

typedef struct sm_fault {
  enum sm_cause cause;
  sm_u64 address; /* where the cause has one */
} sm_fault;

/* One OS thread that runs kernels. */
struct sm_worker {
  sm_pool *pool;
  unsigned place; /* which share of a job is its own: 0 for a stream's thread */
  atomic_int id; /* Linux's number of the thread, 0 until it runs */
  atomic_uint activity;
  sm_block statics;   /* threadgroup variables of kernels */
  sm_block scratch;   /* dynamic threadgroup memory */
  sm_block panels[SM_PANELS];
  sm_arena *arena;    /* fibers, from the first SM_FIBERS dispatch on */
  struct sm_check *check; /* from the first dispatch with a check on */
  sm_worker *next;    /* in the list of all workers */

  const sm_kernel *_Atomic kernel; /* the kernel it runs and may leave through `escape` */
  sigjmp_buf escape;
  char *stack; /* that kernels run on: a kernel that overwrites it does not harm the runtime */
  void (*run)(sm_worker *, sm_job *, sm_u64 chunk); /* what runs on `stack`, and its arguments */
  sm_job *job;
  sm_u64 chunk;
  sm_fault fault;          /* why it was left */
  atomic_ullong since;     /* when the kernel's dispatch began, 0 for none */
  atomic_ullong overdue;   /* the `since` that took too long */
  atomic_bool interrupted; /* a signal is on its way */
};

/* Work in `chunks` independent pieces. `run` is called with each chunk number once. */
struct sm_job {
  void (*run)(sm_worker *, sm_job *, sm_u64 chunk);
  const char *(*prepare)(sm_worker *, sm_job *); /* or null; a helper with an error takes no part */
  sm_log *log;
  sm_u64 chunks;
  enum sm_activity activity;
  const char *_Atomic error; /* static text, set by a chunk that failed */
  double others; /* nanoseconds that helpers worked, less those that the stream waited for them */
  atomic_bool faults;        /* a chunk's kernel was left */
  sm_fault fault;            /* why, for the first of them */
  sm_u64 start;              /* when it began, 0 if it has no time limit */
};

/* A thread's part of a job, on cache lines of its own: neighbours fetch lines in pairs. */
typedef struct sm_share {
  _Alignas(128) _Atomic sm_u64 chunks; /* to run: the first in the low half, the end in the high half */
  atomic_uint inside; /* the thread is about to enter the open job, or in it */
  unsigned served;    /* the generation of the last job of which it had chunks, */
  sm_u64 worked;      /* for so many nanoseconds */
} sm_share;

struct sm_pool {
  unsigned threads; /* those that may run one job, the stream's own included */
  sm_u64 timeout;   /* nanoseconds that one dispatch may take, 0 for any */
  sm_mirrors mirrors; /* shared buffers, where the device has its own memory */
  sm_worker **helpers;
  cpu_set_t processors; /* that this process may use */
  sm_share *shares;              /* of the job, one for each thread */
  int avoided;                   /* the processor that helpers avoid, or -1 */
  sm_u64 moved;                  /* when that was decided */
  _Alignas(64) atomic_uint busy; /* a stream owns the pool, with all that is above */
  _Atomic sm_u64 patience;       /* nanoseconds that threads without work spin between lists */
  _Alignas(64) atomic_uint generation; /* advances when a job is opened */
  sm_job *job;                         /* that was opened last */
  atomic_bool open;
  atomic_bool awaited; /* the stream sleeps until a helper leaves */
  _Alignas(64) atomic_uint sleepers; /* helpers that sleep */
  atomic_uint lists;                 /* of commands that streams are running */
};

sm_worker *sm_worker_new(sm_pool *);
void sm_worker_free(sm_worker *);
bool sm_thread_start(pthread_t *, void *(*body)(void *), void *argument);

/* Runs a job on the calling stream's thread and on idle pool threads, these being woken at once
   when `estimate` nanoseconds are worth it, or later when the job turns out to be long. */
void sm_pool_run(sm_worker *, sm_job *, double estimate);

/* Spins until *word differs from `seen`; false after a while. The while is longer for a thread that
   waits for the next list (`idle`) if lists have followed each other at short intervals. */
bool sm_spin(sm_pool *, atomic_uint *word, unsigned seen, bool idle);

/* A list begins, `idle` nanoseconds after the last one of its stream ended. */
void sm_pool_expect(sm_pool *, sm_u64 idle);

/* Suspends the calling thread forever once the process is exiting. */
void sm_checkpoint(sm_worker *);

/* For a signal handler: never returns once the process is exiting. */
void sm_freeze_at_exit(void);

/* Interrupts workers in dispatches that take too long. When to look again: at `retry` if there are
   such, else when the next may be due, at the latest at `latest`. */
sm_u64 sm_interrupt_overdue(sm_u64 now, sm_u64 retry, sm_u64 latest);

/* ---- fibers.c -------------------------------------------------------------------------------- */

/* Makes an arena with `fibers` fibers for the calling thread, each with a guard page below its
   stack; returns an error text or null. */
const char *sm_arena_prepare(sm_worker *, unsigned fibers);
void sm_arena_free(sm_arena *);

/* Runs one threadgroup to its end, on a fiber for each thread or each simdgroup. */
void sm_run_threadgroup(sm_arena *, const sm_kernel *, const sm_launch *, char *scratch,
                        const sm_u32 position[3]);

/* ---- guard.c --------------------------------------------------------------------------------- */

/* The signal that interrupts a kernel. QEMU's user mode does not deliver the last two. */
#define SM_INTERRUPT (SIGRTMAX - 2)

enum { SM_SIGNAL_STACK = 65536, SM_FIBER_STACK = 256 << 10, SM_WORKER_STACK = 8 << 20 };

/* Between these calls the thread can leave kernels; signal handlers run on `stack`. */
void sm_guard_thread(sm_worker *, char stack[SM_SIGNAL_STACK]);
void sm_unguard_thread(void);

/* The same for a thread of the program, whose own settings are kept in `before`. */
typedef struct sm_guard {
  stack_t stack;
  sigset_t mask;
} sm_guard;
void sm_guard_visitor(sm_worker *, char stack[SM_SIGNAL_STACK], sm_guard *before);
void sm_unguard_visitor(const sm_guard *before);

/* The calling thread is now the one that runs the worker's kernels. */
void sm_guard_claimed(sm_worker *);

/* Installs the fault handlers, again if another library has replaced them. */
void sm_guard_install(void);

/* Calls `run` for a chunk of a job on the worker's stack. A fault within leaves it by a jump, and
   the job ends with `faults`. The kernel is what error messages name: a loaded one, or a constant of
   a runtime function such as `copy`. `run` must hold no lock while it accesses the program's memory. */
void sm_run_guarded(sm_worker *, sm_job *, const sm_kernel *, sm_u64 chunk,
                    void (*run)(sm_worker *, sm_job *, sm_u64 chunk));
void sm_report_fault(sm_submission *, const sm_kernel *, sm_fault, sm_u64 timeout);

/* Sends the signal whose handler leaves an overdue kernel, or freezes the thread at exit. */
void sm_interrupt(sm_worker *);

/* Starts the watchdog for the time limit of a pool. */
void sm_watch(const sm_pool *);

/* ---- dispatch.c, gemm.c, copy.c -------------------------------------------------------------- */

void sm_run_dispatch(sm_worker *, sm_submission *, const sm_dispatch *,
                     const sm_dispatch *inherited);
void sm_run_gemm(sm_worker *, sm_submission *, const sm_command_gemm *);
void sm_run_copy(sm_worker *, sm_submission *, const sm_command_copy *);
void sm_run_fill(sm_worker *, sm_submission *, const sm_command_fill *);

/* Copies values that a command reads from a buffer when it runs; false after a fault. */
bool sm_read_buffer(sm_worker *, sm_submission *, void *to, sm_u64 from, size_t size);

/* ---- events.c -------------------------------------------------------------------------------- */

typedef struct sm_event sm_event;
void sm_event_signal(sm_event *, sm_u64 value);
struct sm_signals *sm_event_signals(sm_event *);
bool sm_event_wait(sm_event *, sm_u64 value, sm_u64 nanoseconds);

/* ---- interpreter.c, streams.c ---------------------------------------------------------------- */

typedef struct sm_stream sm_stream;
enum { SM_QUEUED, SM_RUNNING, SM_DONE };

struct sm_submission {
  sm_stream *stream;
  atomic_uint state;
  atomic_uint sleepers;   /* threads that wait for `state` to change */
  atomic_uint references; /* the stream and the ticket's owner */
  sm_u64 start, end;      /* nanoseconds, CLOCK_MONOTONIC */
  const char *error;      /* null, or error_text */
  sm_log log;
  sm_uses uses; /* of mirrors */
  struct sm_order *order; /* these for the checking modes */
  struct sm_finding *findings;
  sm_u32 finding_count, region_count;
  const sm_command_region *regions;
  sm_submission *next;
  size_t size;
  char error_text[1024]; /* here, so that reporting an error cannot fail */
  _Alignas(8) char list[];
};

void sm_run_list(sm_worker *, sm_submission *);

/* Stores the first error of a submission; later commands except signals are skipped. */
__attribute__((format(printf, 2, 3))) void sm_fail(sm_submission *, const char *format, ...);

#endif
