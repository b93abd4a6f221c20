/* Streams: queues of command lists, which run in order. Each has a thread that runs them; a thread of the
   program that waits for a short list runs it itself if the stream's thread has not begun. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum {
  SHORT_NS = 200000, /* estimated: a longer list gains little when its waiter runs it, and delays Ctrl-C */
  SHORT_COMMANDS = 256,
  WATCH_NS = 10000, /* that a waiting thread looks at a running list before it sleeps */
  LOOKS = 16,       /* for each look at the clock */
};

struct sm_stream {
  sm_pool *pool;
  sm_u32 number;
  sm_worker *worker;
  atomic_uint references; /* its thread and the tickets */
  sm_mutex lock;
  sm_submission *first, **last;
  bool busy; /* a thread runs a list, with all that is the worker's */
  bool closed;
  atomic_uint arrivals; /* incremented by every submission; the idle thread waits on it */
  atomic_bool asleep;   /* the thread must be woken after that */
  sm_u64 ended;         /* when its last list ended */
  char signal_stack[SM_SIGNAL_STACK]; /* of threads of the program */
};

static void release_stream(sm_stream *stream) {
  if (atomic_fetch_sub(&stream->references, 1) == 1) free(stream);
}

static void release_submission(sm_submission *submission) {
  if (atomic_fetch_sub(&submission->references, 1) != 1) return;
  release_stream(submission->stream);
  sm_log_free(&submission->log);
  sm_check_free(submission);
  sm_uses_free(&submission->uses);
  free(submission);
}

/* ---- running --------------------------------------------------------------------------------- */

/* The first list, for the calling thread to run; null if there is none or another thread runs one. Within
   the lock. */
static sm_submission *claim(sm_stream *stream) {
  sm_submission *submission = stream->busy ? NULL : stream->first;
  if (!submission) return NULL;
  if (!(stream->first = submission->next)) stream->last = &stream->first;
  stream->busy = true;
  return submission;
}

static void notify(sm_stream *stream) {
  atomic_fetch_add(&stream->arrivals, 1);
  if (atomic_load(&stream->asleep)) sm_futex_wake(&stream->arrivals, 1);
}

/* Runs a list that this thread has claimed; whether the stream has others. */
static bool run_claimed(sm_stream *stream, sm_submission *submission) {
  sm_worker *worker = stream->worker;
  sm_pool_expect(stream->pool, sm_now() - stream->ended);
  sm_check_started(submission, stream->number);
  atomic_store(&worker->activity, SM_BUSY);
  sm_current_log = &submission->log;
  submission->start = sm_now();
  atomic_store(&submission->state, SM_RUNNING);
  atomic_fetch_add(&stream->pool->lists, 1);
  sm_run_list(worker, submission);
  atomic_fetch_sub(&stream->pool->lists, 1);
  stream->ended = submission->end = sm_now();
  sm_current_log = NULL;
  atomic_store(&submission->state, SM_DONE);
  if (atomic_load(&submission->sleepers)) sm_futex_wake(&submission->state, INT_MAX);
  atomic_store(&worker->activity, SM_IDLE);
  sm_lock(&stream->lock);
  stream->busy = false;
  bool more = stream->first || stream->closed;
  sm_unlock(&stream->lock);
  release_submission(submission);
  return more;
}

/* The next submission; null once the stream is closed and empty. */
static sm_submission *take_submission(sm_stream *stream) {
  for (;;) {
    unsigned arrivals = atomic_load(&stream->arrivals);
    sm_lock(&stream->lock);
    sm_submission *submission = claim(stream);
    bool ended = stream->closed && !stream->first && !stream->busy;
    sm_unlock(&stream->lock);
    if (submission || ended) return submission;
    if (sm_spin(stream->pool, &stream->arrivals, arrivals, true)) continue;
    atomic_store(&stream->asleep, true);
    sm_futex_wait(&stream->arrivals, arrivals, ~(sm_u64)0);
    atomic_store(&stream->asleep, false);
  }
}

static void *stream_main(void *argument) {
  sm_stream *stream = argument;
  sm_submission *submission;
  char signal_stack[SM_SIGNAL_STACK];
  sm_guard_thread(stream->worker, signal_stack);
  while ((submission = take_submission(stream))) {
    sm_guard_claimed(stream->worker);
    run_claimed(stream, submission);
  }
  sm_unguard_thread();
  sm_worker_free(stream->worker);
  release_stream(stream);
  return NULL;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Nanoseconds that a dispatch takes if its kernel takes as long as before; below 0 if that is not known. */
static double estimate_dispatch(const sm_dispatch *dispatch, const sm_dispatch *inherited) {
  const sm_kernel *kernel =
      (const sm_kernel *)(dispatch->kernel || !inherited ? dispatch : inherited)->kernel;
  if (!dispatch->group[0]) return 0; /* an empty slot */
  if (!kernel || kernel->checks || dispatch->indirect) return -1;
  float cost = atomic_load_explicit(&kernel->cost, memory_order_relaxed);
  if (cost <= 0) return -1;
  return (double)cost * dispatch->grid[0] * dispatch->grid[1] * dispatch->grid[2];
}

static double estimate_execute(const sm_command_execute *execute) {
  double total = 0;
  if (execute->range || execute->count > SHORT_COMMANDS ||
      execute->start + (sm_u64)execute->count > execute->slot_count)
    return -1;
  for (sm_u64 i = execute->start; i < execute->start + (sm_u64)execute->count; i++) {
    const char *slot = (const char *)execute->slots + i * SM_SLOT_BYTES;
    double one = estimate_dispatch((const sm_dispatch *)slot, &execute->inherited);
    if (one < 0) return one;
    total += one;
  }
  return total;
}

static double estimate_command(const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH:
      return estimate_dispatch(&((const sm_command_dispatch *)command)->dispatch, NULL);
    case SM_OP_EXECUTE:
      return estimate_execute((const sm_command_execute *)command);
    case SM_OP_COPY: /* 10 bytes per nanosecond */
      return (double)((const sm_command_copy *)command)->size / 10;
    case SM_OP_FILL:
      return (double)((const sm_command_fill *)command)->size / 10;
    case SM_OP_SIGNAL:
    case SM_OP_TIMESTAMP:
      return 0;
    default: /* a wait may last for ever */
      return -1;
  }
}

/* Whether a list is known to end soon: the thread that runs it does not see Ctrl-C before. */
static bool is_short(const sm_submission *submission) {
  double total = 0;
  unsigned commands = 0;
  if (submission->order || submission->uses.count) return false;
  for (const char *at = submission->list; at < submission->list + submission->size;) {
    const sm_command *command = (const sm_command *)at;
    double one = estimate_command(command);
    total += one;
    if (one < 0 || total > SHORT_NS || ++commands > SHORT_COMMANDS) return false;
    at += command->size;
  }
  return true;
}

/* Runs the first list of a stream on a thread of the program if it is short; whether it did. */
static bool run_here(sm_stream *stream) {
  sm_lock(&stream->lock);
  bool suits = !stream->busy && stream->first && is_short(stream->first);
  sm_submission *submission = suits ? claim(stream) : NULL;
  sm_unlock(&stream->lock);
  if (!submission) return false;
  sm_guard before;
  sm_guard_visitor(stream->worker, stream->signal_stack, &before);
  bool more = run_claimed(stream, submission);
  sm_unguard_visitor(&before);
  if (more) notify(stream);
  return true;
}

/* Looks at a list that another thread runs for about as long as sleeping and waking would take. */
static void watch(sm_submission *submission, unsigned state) {
  sm_u64 start = sm_now();
  do {
    for (int i = 0; i < LOOKS; i++) {
      if (atomic_load_explicit(&submission->state, memory_order_relaxed) != state) return;
      sm_pause();
    }
  } while (sm_now() - start < WATCH_NS);
}

/* Waits for at most `nanoseconds` or until a signal comes: whether the submission is done. */
static bool wait_for(sm_submission *submission, sm_u64 nanoseconds) {
  if (atomic_load(&submission->state) == SM_DONE) return true;
  if (!nanoseconds) return false;
  sm_u64 deadline = sm_now() + nanoseconds;
  unsigned state;
  while (atomic_load(&submission->state) == SM_QUEUED && run_here(submission->stream)) {
  }
  while ((state = atomic_load(&submission->state)) != SM_DONE) {
    watch(submission, state);
    sm_u64 now = sm_now();
    if (now >= deadline) return false;
    atomic_fetch_add(&submission->sleepers, 1);
    sm_futex_wait(&submission->state, state, deadline - now);
    atomic_fetch_sub(&submission->sleepers, 1);
    if (state == atomic_load(&submission->state)) return false;
  }
  return true;
}

/* The same, with the outcome if it is done and asked for. */
SM_EXPORT bool softmetal_wait(sm_submission *submission, sm_outcome *outcome, sm_u64 nanoseconds) {
  if (!wait_for(submission, nanoseconds)) return false;
  if (!outcome) return true;
  if (submission->order) sm_check_host_saw(sm_order_clock(submission->order));
  outcome->start = submission->start;
  outcome->end = submission->end;
  sm_outcome_error(outcome, submission->error);
  sm_log_read(&submission->log, outcome);
  return true;
}

SM_EXPORT void softmetal_forget(sm_submission *submission) { release_submission(submission); }

/* ---- queues ---------------------------------------------------------------------------------- */

SM_EXPORT sm_stream *softmetal_new_queue(sm_pool *pool) {
  sm_stream *stream = calloc(1, sizeof *stream);
  pthread_t thread;
  if (!stream) return NULL;
  static atomic_uint streams;
  stream->number = atomic_fetch_add(&streams, 1);
  stream->pool = pool;
  stream->last = &stream->first;
  stream->worker = sm_worker_new(pool);
  atomic_init(&stream->references, 1);
  sm_watch(pool);
  if (stream->worker && sm_thread_start(&thread, stream_main, stream)) return stream;
  if (stream->worker) sm_worker_free(stream->worker);
  free(stream);
  return NULL;
}

SM_EXPORT void softmetal_free_queue(sm_stream *stream) {
  atomic_fetch_add(&stream->references, 1); /* its thread may end before `notify` does */
  sm_lock(&stream->lock);
  stream->closed = true;
  sm_unlock(&stream->lock);
  notify(stream);
  release_stream(stream);
}

static sm_u32 written_buffers(sm_u64 kernel) { return ((const sm_kernel *)kernel)->written; }

/* Copies the list. The ticket is valid until softmetal_forget; null: no memory. */
SM_EXPORT sm_submission *softmetal_submit(sm_stream *stream, const char *list, size_t size) {
  sm_guard_install();
  sm_submission *submission = malloc(sizeof *submission + size);
  if (!submission) return NULL;
  memset(submission, 0, offsetof(sm_submission, error_text));
  memcpy(submission->list, list, size);
  submission->size = size;
  submission->stream = stream;
  atomic_fetch_add(&stream->references, 1);
  const char *error = sm_uses_collect(&submission->uses, &stream->pool->mirrors, submission->list, size,
                                      written_buffers);
  if (error) sm_fail(submission, "%s", error);
  atomic_init(&submission->references, 2);
  sm_check_submitted(submission);
  sm_lock(&stream->lock);
  *stream->last = submission;
  stream->last = &submission->next;
  sm_unlock(&stream->lock);
  notify(stream);
  return submission;
}
