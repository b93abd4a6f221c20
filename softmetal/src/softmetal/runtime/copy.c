/* Copies and fills; long ones are shared with the pool. A buffer may be a mapped file that has
   become shorter, so every access is guarded as those of kernels are. */
#include <string.h>

#include "runtime.h"

enum { PIECE = 1 << 20 };
static const sm_kernel copy_subject = {.subject = "a copy"}, fill_subject = {.subject = "a fill"},
                       read_subject = {.subject = "an indirect command"};

typedef struct copy_job {
  sm_job job;
  const sm_kernel *subject;
  char *destination;
  const char *source; /* null: fill */
  sm_u64 size, piece;
  int value;
} copy_job;

static void access_piece(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)worker;
  copy_job *job = (copy_job *)base;
  sm_u64 offset = chunk * job->piece;
  size_t size = job->size - offset < job->piece ? job->size - offset : job->piece;
  if (job->source)
    memmove(job->destination + offset, job->source + offset, size);
  else
    memset(job->destination + offset, job->value, size);
}

static void run_piece(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, ((copy_job *)base)->subject, chunk, access_piece);
}

static bool run_pieces(sm_worker *worker, sm_submission *submission, copy_job *job) {
  job->job.run = run_piece;
  job->job.log = &submission->log;
  job->job.activity = SM_BUSY;
  job->job.chunks = (job->size + job->piece - 1) / job->piece;
  sm_pool_run(worker, &job->job, (double)job->size / 10); /* at about 10 bytes per nanosecond */
  if (job->job.faults) sm_report_fault(submission, job->subject, job->job.fault, 0);
  return !job->job.faults;
}

void sm_run_copy(sm_worker *worker, sm_submission *submission, const sm_command_copy *copy) {
  char *destination = (char *)copy->destination;
  const char *source = (const char *)copy->source;
  bool apart = destination + copy->size <= source || source + copy->size <= destination;
  sm_u64 piece = apart ? PIECE : copy->size;
  copy_job job = {{0}, &copy_subject, destination, source, copy->size, piece, 0};
  if (copy->size) run_pieces(worker, submission, &job);
}

void sm_run_fill(sm_worker *worker, sm_submission *submission, const sm_command_fill *fill) {
  char *destination = (char *)fill->destination;
  copy_job job = {{0}, &fill_subject, destination, NULL, fill->size, PIECE, (int)fill->value};
  run_pieces(worker, submission, &job);
}

bool sm_read_buffer(sm_worker *worker, sm_submission *submission, void *to, sm_u64 from,
                    size_t size) {
  copy_job job = {{0}, &read_subject, to, (const char *)from, size, size, 0};
  return run_pieces(worker, submission, &job);
}
