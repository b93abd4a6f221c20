/* Running one kernel over its grid, cut into chunks of rows.

   A cell is a thread of a SM_FLAT kernel, else a threadgroup. A chunk is a run of cells of one row
   along x, or several whole rows. */
#include <string.h>

#include "check.h"
#include "runtime.h"

enum {
  CHUNK_NS = 4000,      /* shorter chunks cost more to hand out than they save */
  CHUNKS_A_THREAD = 32, /* more are not needed to balance the load */
  LONG_RUN = 1024,      /* chunks of cheap cells are multiples of this: whole vectors and lines */
  SHORT_RUN = 64,
  SCRATCH_ALIGNMENT = 256,
};

typedef struct dispatch_job {
  sm_job job;
  const sm_kernel *kernel;
  sm_launch launch;
  void *buffers[SM_BUFFERS];
  sm_submission *submission;
  const sm_u32 *scratch_lengths;
  sm_u32 scratch_count;
  size_t scratch;     /* bytes of dynamic threadgroup memory */
  sm_u32 threads;     /* of a full threadgroup */
  sm_u32 cells[3];
  sm_u64 run;         /* cells along x in a chunk */
  sm_u64 row_chunks;  /* chunks in a row */
  sm_u64 chunk_rows;  /* rows in a chunk */
} dispatch_job;

/* ---- chunks ---------------------------------------------------------------------------------- */

/* A threadgroup of a SM_REGIONS kernel. */
static void run_loops(sm_worker *worker, const dispatch_job *job, const sm_u32 position[3]) {
  const sm_launch *launch = &job->launch;
  sm_thread first = {.scratch = worker->scratch.address};
  for (int d = 0; d < 3; d++) {
    sm_u32 rest = launch->grid[d] - position[d] * launch->group[d];
    first.group_size[d] = rest < launch->group[d] ? rest : launch->group[d];
    first.group_position[d] = position[d];
  }
  job->kernel->entry.fibers(launch, &first);
}

static void run_row(sm_worker *worker, dispatch_job *job, sm_u32 x0, sm_u32 x1, sm_u32 y,
                    sm_u32 z) {
  const sm_kernel *kernel = job->kernel;
  if (kernel->mode == SM_FLAT) {
    kernel->entry.flat(&job->launch, x0, x1, y, z);
  } else if (kernel->mode == SM_GROUPS) {
    kernel->entry.groups(&job->launch, worker->scratch.address, x0, x1, y, z);
  } else if (kernel->mode == SM_REGIONS) {
    for (sm_u32 x = x0; x < x1; x++) run_loops(worker, job, (const sm_u32[]){x, y, z});
  } else {
    for (sm_u32 x = x0; x < x1; x++)
      sm_run_threadgroup(worker->arena, kernel, &job->launch, worker->scratch.address,
                         (const sm_u32[]){x, y, z});
  }
}

/* Gives the worker the memory that the kernel needs; returns an error text or null. */
static const char *prepare(sm_worker *worker, sm_job *base) {
  const dispatch_job *job = (dispatch_job *)base;
  const sm_kernel *kernel = job->kernel;
  bool memory = true;
  if (kernel->statics) {
    memory = sm_block_reserve(&worker->statics, kernel->statics + kernel->statics_shift);
    sm_statics = worker->statics.address + kernel->statics_shift;
  }
  if (kernel->mode != SM_FLAT) memory = memory && sm_block_reserve(&worker->scratch, job->scratch);
  if (!memory) return "no memory for threadgroup memory";
  if (!sm_has_fibers(kernel)) return NULL;
  bool each = kernel->mode == SM_FIBERS;
  return sm_arena_prepare(worker, each ? job->threads : (job->threads + SM_LANES - 1) / SM_LANES);
}

static void run_rows(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  dispatch_job *job = (dispatch_job *)base;
  sm_u64 rows = (sm_u64)job->cells[1] * job->cells[2];
  sm_u64 row = chunk / job->row_chunks * job->chunk_rows;
  sm_u64 end = row + job->chunk_rows < rows ? row + job->chunk_rows : rows;
  sm_u64 x0 = chunk % job->row_chunks * job->run;
  sm_u64 x1 = x0 + job->run < job->cells[0] ? x0 + job->run : job->cells[0];
  for (; row < end; row++)
    run_row(worker, job, (sm_u32)x0, (sm_u32)x1, (sm_u32)(row % job->cells[1]),
            (sm_u32)(row / job->cells[1]));
}

static void run_chunk_of_rows(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, ((dispatch_job *)base)->kernel, chunk, run_rows);
}

/* With a check on: threadgroup by threadgroup, in the order that the check decides. */
static void run_checked_groups(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  dispatch_job *job = (dispatch_job *)base;
  sm_u64 total = (sm_u64)job->cells[0] * job->cells[1] * job->cells[2];
  sm_u64 end = (chunk + 1) * job->run < total ? (chunk + 1) * job->run : total;
  sm_check_enter(worker, job->submission, job->kernel, &job->launch, job->scratch_lengths,
                 job->scratch_count);
  if (job->kernel->mode == SM_FIBERS) sm_arena_check(worker->arena, worker->check);
  for (sm_u64 i = chunk * job->run; i < end; i++) {
    sm_u64 group = sm_check_group(worker, i, total);
    sm_u32 x = (sm_u32)(group % job->cells[0]), row = (sm_u32)(group / job->cells[0]);
    run_row(worker, job, x, x + 1, row % job->cells[1], row / job->cells[1]);
  }
  if (job->kernel->mode == SM_FIBERS) sm_arena_check(worker->arena, NULL);
}

static void run_checked_chunk(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, ((dispatch_job *)base)->kernel, chunk, run_checked_groups);
  sm_check_leave();
}

static sm_u64 round_up(sm_u64 value, sm_u64 multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/* `cost` is nanoseconds a cell, 0 if unknown. */
static void cut(dispatch_job *job, unsigned workers, double cost) {
  sm_u64 rows = (sm_u64)job->cells[1] * job->cells[2], cells = rows * job->cells[0];
  sm_u64 run = cells;
  if (workers > 1) {
    run = cells / (workers * CHUNKS_A_THREAD) + 1;
    if (cost > 0 && (double)run * cost < CHUNK_NS) run = (sm_u64)(CHUNK_NS / cost) + 1;
    if (job->kernel->mode == SM_FLAT && run >= SHORT_RUN)
      run = round_up(run, run >= LONG_RUN ? LONG_RUN : SHORT_RUN);
  }
  if (run < job->cells[0]) {
    job->run = run;
    job->row_chunks = (job->cells[0] + run - 1) / run;
    job->chunk_rows = 1;
  } else {
    job->run = job->cells[0];
    job->row_chunks = 1;
    job->chunk_rows = run / job->cells[0];
  }
  job->job.chunks = (rows + job->chunk_rows - 1) / job->chunk_rows * job->row_chunks;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Sizes of grid and threadgroups; false if there is nothing to run or on error. */
static bool measure(sm_worker *worker, sm_submission *submission, const sm_dispatch *dispatch,
                    sm_launch *launch) {
  sm_u32 counts[3]; /* of threadgroups, if they are in a buffer */
  if (dispatch->indirect &&
      !sm_read_buffer(worker, submission, counts, dispatch->indirect, sizeof counts))
    return false;
  sm_u64 threads = 1;
  for (int d = 0; d < 3; d++) {
    sm_u64 group = dispatch->group[d];
    sm_u64 grid = dispatch->indirect ? counts[d] * group : dispatch->grid[d];
    if (!grid || !group) return false;
    if (grid > 0xffffffffu) {
      sm_fail(submission, "%u threadgroups of %u threads exceed a grid's 4294967295 threads",
              counts[d], dispatch->group[d]);
      return false;
    }
    launch->grid[d] = (sm_u32)grid;
    launch->group[d] = (sm_u32)group;
    launch->groups[d] = (sm_u32)((grid + group - 1) / group);
    threads = threads > SM_MAX_THREADS ? threads : threads * group;
  }
  if (threads <= SM_MAX_THREADS) return true;
  sm_fail(submission, "threadgroup of %u x %u x %u threads exceeds %d threads", launch->group[0],
          launch->group[1], launch->group[2], SM_MAX_THREADS);
  return false;
}

static void bind(dispatch_job *job, const sm_dispatch *dispatch, const sm_dispatch *inherited) {
  const sm_dispatch *bound = dispatch->buffer_count || !inherited ? dispatch : inherited;
  memcpy(job->buffers, bound->buffers, bound->buffer_count * sizeof(void *));
  const sm_u32 *lengths = (const sm_u32 *)(dispatch->buffers + dispatch->buffer_count);
  job->scratch_lengths = lengths;
  job->scratch_count = dispatch->threadgroup_count;
  for (sm_u32 i = 0; i < dispatch->threadgroup_count; i++) {
    job->launch.scratch_offset[i] = (sm_u32)job->scratch;
    job->scratch += round_up(lengths[i], SCRATCH_ALIGNMENT);
  }
  job->scratch += SCRATCH_ALIGNMENT; /* a valid address even if no length was set */
}

/* Costs rise at once and fall slowly: sharing a short job costs less than not sharing a long one. */
static void learn(sm_kernel *kernel, float before, double measured) {
  float cost = (float)measured;
  if (cost < before) cost = 0.75f * before + 0.25f * cost;
  atomic_store_explicit(&kernel->cost, cost, memory_order_relaxed);
}

/* Races are detected on one thread: the shadow needs no locks, and the seed determines the order. */
static void run_checked(sm_worker *worker, sm_submission *submission, dispatch_job *job) {
  const sm_kernel *kernel = job->kernel;
  sm_u64 total = (sm_u64)job->cells[0] * job->cells[1] * job->cells[2];
  bool alone = kernel->checks->modes & SM_CHECK_SHADOWED;
  job->submission = submission;
  job->run = alone ? total : total / (worker->pool->threads * CHUNKS_A_THREAD) + 1;
  job->job.run = run_checked_chunk;
  job->job.chunks = (total + job->run - 1) / job->run;
  sm_check_begin(submission, kernel, &job->launch);
  job->job.start = sm_now();
  sm_pool_run(worker, &job->job, (double)total * CHUNK_NS);
  sm_check_end(kernel);
  if (job->job.faults) sm_report_fault(submission, kernel, job->job.fault, worker->pool->timeout);
}

void sm_run_dispatch(sm_worker *worker, sm_submission *submission, const sm_dispatch *dispatch,
                     const sm_dispatch *inherited) {
  dispatch_job job = {.job = {.run = run_chunk_of_rows,
                              .prepare = prepare,
                              .log = &submission->log,
                              .activity = SM_IN_KERNEL}};
  if (!measure(worker, submission, dispatch, &job.launch)) return;
  sm_kernel *kernel = (sm_kernel *)(dispatch->kernel || !inherited ? dispatch : inherited)->kernel;
  if (!kernel) {
    sm_fail(submission, "no pipeline is set for a dispatch");
    return;
  }
  const sm_launch *launch = &job.launch;
  job.kernel = kernel;
  job.launch.buffers = job.buffers;
  job.threads = launch->group[0] * launch->group[1] * launch->group[2];
  bind(&job, dispatch, inherited);
  bool flat = kernel->mode == SM_FLAT;
  memcpy(job.cells, flat ? launch->grid : launch->groups, sizeof job.cells);
  float cost = atomic_load_explicit(&kernel->cost, memory_order_relaxed);
  const char *error = prepare(worker, &job.job);
  if (error) {
    sm_fail(submission, "%s", error);
    return;
  }
  if (kernel->checks) {
    run_checked(worker, submission, &job);
    return;
  }
  double threads = (double)launch->grid[0] * launch->grid[1] * launch->grid[2];
  cut(&job, worker->pool->threads, flat ? cost : cost * (float)job.threads);
  job.job.start = sm_now();
  sm_pool_run(worker, &job.job, cost * threads);
  if (job.job.faults) {
    sm_report_fault(submission, kernel, job.job.fault, worker->pool->timeout);
    return;
  }
  double worked = (double)(sm_now() - job.job.start) + job.job.others;
  learn(kernel, cost, worked / threads);
}
