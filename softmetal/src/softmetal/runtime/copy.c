/* Copies and fills; long ones are shared with the pool. */
#include <string.h>

#include "runtime.h"

enum { PIECE = 1 << 20 };

typedef struct copy_job {
  sm_job job;
  char *destination;
  const char *source; /* null: fill */
  sm_u64 size;
  int value;
} copy_job;

static void run_piece(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)worker;
  copy_job *job = (copy_job *)base;
  sm_u64 offset = chunk * PIECE;
  size_t size = job->size - offset < PIECE ? job->size - offset : PIECE;
  if (job->source)
    memcpy(job->destination + offset, job->source + offset, size);
  else
    memset(job->destination + offset, job->value, size);
}

static void run_pieces(sm_worker *worker, copy_job *job) {
  job->job.run = run_piece;
  job->job.activity = SM_BUSY;
  job->job.chunks = (job->size + PIECE - 1) / PIECE;
  sm_pool_run(worker, &job->job, (double)job->size / 10); /* at about 10 bytes per nanosecond */
}

void sm_run_copy(sm_worker *worker, sm_submission *submission, const sm_command_copy *copy) {
  char *destination = (char *)copy->destination;
  const char *source = (const char *)copy->source;
  bool apart = destination + copy->size <= source || source + copy->size <= destination;
  if (!apart || copy->size <= PIECE) {
    memmove(destination, source, copy->size);
    return;
  }
  copy_job job = {{.log = &submission->log}, destination, source, copy->size, 0};
  run_pieces(worker, &job);
}

void sm_run_fill(sm_worker *worker, sm_submission *submission, const sm_command_fill *fill) {
  char *destination = (char *)fill->destination;
  copy_job job = {{.log = &submission->log}, destination, NULL, fill->size, (int)fill->value};
  run_pieces(worker, &job);
}
