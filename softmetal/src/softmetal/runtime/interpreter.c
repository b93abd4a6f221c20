/* Streams: each has a thread that runs submitted command lists in order. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

typedef struct sm_stream {
  sm_pool *pool;
  sm_u32 number;
  sm_worker *worker;
  sm_mutex lock;
  sm_submission *first, **last;
  bool started, closed;
  atomic_uint arrivals; /* incremented by every submission; the idle thread waits on it */
  atomic_bool asleep;   /* the thread must be woken after that */
  sm_u64 ended;         /* when it ended its last list */
} sm_stream;

/* ---- commands -------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) void sm_fail(sm_submission *submission, const char *format,
                                                   ...) {
  if (submission->error) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(submission->error_text, sizeof submission->error_text, format, arguments);
  va_end(arguments);
  submission->error = submission->error_text;
}

static void run_wait(sm_worker *worker, sm_submission *submission, const sm_command_event *wait) {
  atomic_store(&worker->activity, SM_IDLE);
  while (!sm_event_wait((sm_event *)wait->event, wait->value, ~(sm_u64)0)) {
  }
  sm_check_wait(submission, sm_event_signals((sm_event *)wait->event), wait->value);
  atomic_store(&worker->activity, SM_BUSY);
}

static void run_execute(sm_worker *worker, sm_submission *submission,
                        const sm_command_execute *execute) {
  sm_u64 start = execute->start, count = execute->count;
  if (execute->range) {
    sm_u32 range[2];
    if (!sm_read_buffer(worker, submission, range, execute->range, sizeof range)) return;
    start = range[0];
    count = range[1];
  }
  if (start + count > execute->slot_count) {
    sm_fail(submission, "commands %llu to %llu of an indirect command buffer that holds %u",
            (unsigned long long)start, (unsigned long long)(start + count), execute->slot_count);
    return;
  }
  for (sm_u64 i = start; i < start + count && !submission->error; i++) {
    const char *slot = (const char *)execute->slots + i * SM_SLOT_BYTES;
    sm_run_dispatch(worker, submission, (const sm_dispatch *)slot, &execute->inherited);
    sm_checkpoint(worker);
  }
}

static void run_command(sm_worker *worker, sm_submission *submission, const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH:
      sm_run_dispatch(worker, submission, &((const sm_command_dispatch *)command)->dispatch, NULL);
      break;
    case SM_OP_COPY: {
      const sm_command_copy *copy = (const sm_command_copy *)command;
      sm_check_copy(submission, copy->source, copy->destination, copy->size);
      sm_run_copy(worker, submission, copy);
      break;
    }
    case SM_OP_FILL: {
      const sm_command_fill *fill = (const sm_command_fill *)command;
      sm_check_copy(submission, 0, fill->destination, fill->size);
      sm_run_fill(worker, submission, fill);
      break;
    }
    case SM_OP_SIGNAL: {
      const sm_command_event *signal = (const sm_command_event *)command;
      sm_check_signal(submission, sm_event_signals((sm_event *)signal->event), signal->value);
      sm_event_signal((sm_event *)signal->event, signal->value);
      break;
    }
    case SM_OP_WAIT:
      run_wait(worker, submission, (const sm_command_event *)command);
      break;
    case SM_OP_TIMESTAMP:
      *(sm_u64 *)((const sm_command_timestamp *)command)->address = sm_now();
      break;
    case SM_OP_GEMM:
      sm_run_gemm(worker, submission, (const sm_command_gemm *)command);
      break;
    case SM_OP_EXECUTE:
      run_execute(worker, submission, (const sm_command_execute *)command);
      break;
    case SM_OP_RESOURCES: {
      const sm_command_resources *resources = (const sm_command_resources *)command;
      submission->regions = resources->regions;
      submission->region_count = (sm_u32)resources->count;
      break;
    }
    case SM_OP_USE:
      break;
    case SM_OP_ORDER: {
      const sm_command_order *order = (const sm_command_order *)command;
      sm_check_order(submission, (sm_u32)order->kind, order->value);
      break;
    }
    default:
      sm_fail(submission, "unknown command %u", command->opcode);
  }
}

/* Gives the device what the program changed, and later the host what the list changed. */
static void apply_patches(sm_submission *submission) {
  sm_patches *patches = &submission->uses.patches;
  for (size_t i = 0; i < patches->count; i++) {
    sm_patch_apply(&patches->items[i], (char *)patches->items[i].device);
    sm_mirror_patched(&patches->items[i]);
  }
}

static void absorb_changes(sm_submission *submission) {
  for (size_t i = 0; i < submission->uses.count; i++) {
    const sm_used *used = &submission->uses.items[i];
    if (used->written && sm_mirror_absorbs(used->mirror))
      sm_mirror_absorb(used->mirror, (char *)used->mirror->device);
  }
}

/* After an error only signals are executed, so that other queues do not wait forever. */
static void run_list(sm_worker *worker, sm_submission *submission) {
  const char *at = submission->list, *end = at + submission->size;
  apply_patches(submission);
  while (at < end) {
    const sm_command *command = (const sm_command *)at;
    sm_checkpoint(worker);
    if (command->opcode == SM_OP_SIGNAL) absorb_changes(submission);
    if (!submission->error || command->opcode == SM_OP_SIGNAL)
      run_command(worker, submission, command);
    at += command->size;
  }
  absorb_changes(submission);
  sm_uses_end(&submission->uses);
}

/* ---- submissions ----------------------------------------------------------------------------- */

static void release_submission(sm_submission *submission) {
  if (atomic_fetch_sub(&submission->references, 1) != 1) return;
  sm_log_free(&submission->log);
  sm_check_free(submission);
  sm_uses_free(&submission->uses);
  free(submission);
}

static void run_submission(sm_worker *worker, sm_submission *submission, sm_u32 queue) {
  sm_check_started(submission, queue);
  atomic_store(&worker->activity, SM_BUSY);
  sm_current_log = &submission->log;
  submission->start = sm_now();
  atomic_store(&submission->state, SM_RUNNING);
  atomic_fetch_add(&worker->pool->lists, 1);
  run_list(worker, submission);
  atomic_fetch_sub(&worker->pool->lists, 1);
  submission->end = sm_now();
  sm_current_log = NULL;
  atomic_store(&submission->state, SM_DONE);
  sm_futex_wake(&submission->state, INT_MAX);
  release_submission(submission);
  atomic_store(&worker->activity, SM_IDLE);
}

/* Waits for at most `nanoseconds` or until a signal comes: whether the submission is done. */
static bool wait_for(sm_submission *submission, sm_u64 nanoseconds) {
  sm_u64 deadline = sm_now() + nanoseconds;
  unsigned state;
  while ((state = atomic_load(&submission->state)) != SM_DONE) {
    sm_u64 now = sm_now();
    if (now >= deadline) return false;
    sm_futex_wait(&submission->state, state, deadline - now);
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

/* ---- streams --------------------------------------------------------------------------------- */

/* The next submission; null once the stream is closed and empty. */
static sm_submission *take_submission(sm_stream *stream) {
  for (;;) {
    unsigned arrivals = atomic_load(&stream->arrivals);
    sm_lock(&stream->lock);
    sm_submission *submission = stream->first;
    bool closed = stream->closed;
    if (submission && !(stream->first = submission->next)) stream->last = &stream->first;
    sm_unlock(&stream->lock);
    if (submission || closed) return submission;
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
    sm_pool_expect(stream->pool, sm_now() - stream->ended);
    run_submission(stream->worker, submission, stream->number);
    stream->ended = sm_now();
  }
  sm_unguard_thread();
  sm_worker_free(stream->worker);
  free(stream);
  return NULL;
}

SM_EXPORT sm_stream *softmetal_new_queue(sm_pool *pool) {
  sm_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return NULL;
  static atomic_uint streams;
  stream->number = atomic_fetch_add(&streams, 1);
  stream->pool = pool;
  stream->last = &stream->first;
  stream->worker = sm_worker_new(pool);
  sm_watch(pool);
  if (stream->worker && sm_thread_start(&stream->worker->thread, stream_main, stream))
    return stream;
  if (stream->worker) sm_worker_free(stream->worker);
  free(stream);
  return NULL;
}

SM_EXPORT void softmetal_free_queue(sm_stream *stream) {
  sm_lock(&stream->lock);
  stream->closed = true;
  atomic_fetch_add(&stream->arrivals, 1);
  sm_futex_wake(&stream->arrivals, 1);
  sm_unlock(&stream->lock);
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
  const char *error = sm_uses_collect(&submission->uses, &stream->pool->mirrors, submission->list, size,
                                      written_buffers);
  if (error) sm_fail(submission, "%s", error);
  atomic_init(&submission->references, 2);
  sm_check_submitted(submission);
  sm_lock(&stream->lock);
  *stream->last = submission;
  stream->last = &submission->next;
  atomic_fetch_add(&stream->arrivals, 1);
  sm_unlock(&stream->lock);
  if (atomic_load(&stream->asleep)) sm_futex_wake(&stream->arrivals, 1);
  return submission;
}
