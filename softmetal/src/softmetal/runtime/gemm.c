/* Matrix multiplication by OpenBLAS's sgemm.

   OpenBLAS divides a large product itself, so that its parts share what they pack, and gives the
   parts to our worker pool by its callback for callers that manage threads: its own threads would
   compete with the pool's for the cores. Products of many small matrices, and of float16 operands,
   are divided into tiles here, which are single-threaded calls; float16 is converted tile by tile.

   One library and one division, which depends on the shape and the number of workers only: the same
   product has the same bits in every call. numpy's copy of OpenBLAS, if the program has loaded it, is
   not used: it may be another version, its threads divide a product in another way, and a fault in
   one of its threads could not be contained. */
#include <dlfcn.h>
#include <string.h>

#include "runtime.h"

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
enum { FLOAT32, FLOAT16 };
enum { SMALLEST_TILE = 64, LARGE_TILE = 1024, TILES_A_WORKER = 4 };
enum { SHARED = 1 << 23 }; /* multiplications from which OpenBLAS divides a product */
enum { COPIED = 1 << 15 }; /* elements of a matrix that one chunk copies */

typedef __INT64_TYPE__ blas_int;
typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, blas_int m, blas_int n,
                               blas_int k, float alpha, const float *a, blas_int lda,
                               const float *b, blas_int ldb, float beta, float *c, blas_int ldc);

/* How OpenBLAS has parts of a product computed: by calling `run` with the number of each part. */
typedef void (*part_function)(int number, void *part, int argument);
typedef void (*parts_callback)(int wait, part_function run, int count, size_t size, void *parts,
                               int argument);

/* ---- the library ----------------------------------------------------------------------------- */

static sm_mutex blas_lock;
static char blas_path[4096];
static sgemm_function sgemm;
static void (*set_threads)(int);
static sm_pool *blas_pool; /* that computes the parts; OpenBLAS knows one number of threads */

static void run_parts(int wait, part_function run, int count, size_t size, void *parts,
                      int argument);

/* Where OpenBLAS is; it is loaded when the first GEMM runs. */
SM_EXPORT void softmetal_set_blas(const char *path) {
  sm_lock(&blas_lock);
  strncpy(blas_path, path, sizeof blas_path - 1);
  sm_unlock(&blas_lock);
}

static bool load_blas(sm_pool *pool, sm_submission *submission) {
  sm_lock(&blas_lock);
  if (!sgemm) {
    void *library = blas_path[0] ? dlopen(blas_path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const char *reason = blas_path[0] ? dlerror() : "the package is not installed";
    void *found = library ? dlsym(library, "scipy_cblas_sgemm64_") : NULL;
    void *threads = library ? dlsym(library, "scipy_openblas_set_num_threads64_") : NULL;
    void *callback =
        library ? dlsym(library, "scipy_openblas_set_threads_callback_function64_") : NULL;
    if (found && threads) {
      sgemm = (sgemm_function)found;
      set_threads = (void (*)(int))threads;
      blas_pool = callback ? pool : NULL;
      set_threads(1);
      if (callback) ((void (*)(parts_callback))callback)(run_parts);
    } else {
      sm_fail(submission, "matrix multiplication needs OpenBLAS (pip install scipy-openblas64): %s",
              reason ? reason : "it lacks scipy_cblas_sgemm64_");
    }
  }
  sm_unlock(&blas_lock);
  return sgemm != NULL;
}

/* ---- conversion ------------------------------------------------------------------------------ */

typedef struct matrix {
  char *address;
  sm_u64 stride; /* elements from row to row */
  sm_u32 type;
} matrix;

static sm_u64 least(sm_u64 a, sm_u64 b) { return a < b ? a : b; }

static matrix member(sm_u64 address, blas_int stride, sm_u64 batch, sm_u64 row, sm_u32 type) {
  return (matrix){(char *)address + (blas_int)batch * stride, row, type};
}

static matrix at(matrix whole, sm_u64 row, sm_u64 column) {
  size_t element = whole.type == FLOAT16 ? 2 : 4;
  whole.address += (row * whole.stride + column) * element;
  return whole;
}

static void widen(float *to, matrix from, sm_u64 rows, sm_u64 columns) {
  for (sm_u64 i = 0; i < rows; i++, to += columns) {
    const _Float16 *row = (const _Float16 *)at(from, i, 0).address;
    for (sm_u64 j = 0; j < columns; j++) to[j] = (float)row[j];
  }
}

static void narrow(matrix to, const float *from, sm_u64 rows, sm_u64 columns) {
  for (sm_u64 i = 0; i < rows; i++, from += columns) {
    _Float16 *row = (_Float16 *)at(to, i, 0).address;
    for (sm_u64 j = 0; j < columns; j++) row[j] = (_Float16)from[j];
  }
}

/* The operand itself if it is float32, else a dense float32 copy (its contents if `read`). */
static bool as_float(sm_block *panel, matrix *operand, sm_u64 rows, sm_u64 columns, bool read) {
  if (operand->type == FLOAT32) return true;
  if (!sm_block_reserve(panel, rows * columns * sizeof(float) + 1)) return false;
  if (read) widen((float *)panel->address, *operand, rows, columns);
  *operand = (matrix){panel->address, columns, FLOAT32};
  return true;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef struct gemm_job {
  sm_job job;
  const sm_command_gemm *gemm;
  sm_u64 tile_m, tile_n; /* size of a tile */
  sm_u64 tiles_m, tiles_n;
  matrix a, b, c; /* of one member of the batch, where OpenBLAS divides the product */
} gemm_job;

static void multiply(const sm_command_gemm *g, sm_u64 m, sm_u64 n, matrix a, matrix b, matrix c) {
  sgemm(ROW_MAJOR, g->transpose_a ? TRANSPOSED : PLAIN, g->transpose_b ? TRANSPOSED : PLAIN,
        (blas_int)m, (blas_int)n, (blas_int)g->k, (float)g->alpha, (const float *)a.address,
        (blas_int)a.stride, (const float *)b.address, (blas_int)b.stride, (float)g->beta,
        (float *)c.address, (blas_int)c.stride);
}

static void multiply_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  gemm_job *job = (gemm_job *)base;
  const sm_command_gemm *g = job->gemm;
  sm_u64 batch = chunk / (job->tiles_m * job->tiles_n);
  sm_u64 row = chunk / job->tiles_n % job->tiles_m * job->tile_m;
  sm_u64 column = chunk % job->tiles_n * job->tile_n;
  sm_u64 m = least(job->tile_m, g->m - row), n = least(job->tile_n, g->n - column), k = g->k;
  matrix a = member(g->a, g->stride_a, batch, g->lda, g->type_a);
  matrix b = member(g->b, g->stride_b, batch, g->ldb, g->type_b);
  matrix c = member(g->c, g->stride_c, batch, g->ldc, g->type_c);
  a = g->transpose_a ? at(a, 0, row) : at(a, row, 0);
  b = g->transpose_b ? at(b, column, 0) : at(b, 0, column);
  c = at(c, row, column);
  matrix result = c;
  if (!as_float(&worker->panels[0], &a, g->transpose_a ? k : m, g->transpose_a ? m : k, true) ||
      !as_float(&worker->panels[1], &b, g->transpose_b ? n : k, g->transpose_b ? k : n, true) ||
      !as_float(&worker->panels[2], &c, m, n, g->beta != 0)) {
    atomic_store(&base->error, "no memory to convert a float16 matrix");
    return;
  }
  multiply(g, m, n, a, b, c);
  if (result.type == FLOAT16) narrow(result, (const float *)c.address, m, n);
}

/* ---- products that OpenBLAS divides ---------------------------------------------------------- */

typedef struct parts_job {
  sm_job job;
  part_function run;
  char *parts;
  size_t size;
  int argument;
} parts_job;

static _Thread_local sm_worker *multiplying; /* the stream's worker, while it is in sgemm */
static const sm_kernel subject = {.subject = "a matrix multiplication"};

static void compute_part(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)worker;
  parts_job *job = (parts_job *)base;
  job->run((int)chunk, job->parts + chunk * job->size, job->argument);
}

/* The thread that called sgemm is guarded already. */
static void run_part(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  if (worker->place == 0)
    compute_part(worker, base, chunk);
  else
    sm_run_guarded(worker, base, &subject, chunk, compute_part);
}

/* OpenBLAS's callback: its parts wait for each other, so all must run at the same time. The program
   may use the same copy of OpenBLAS from threads of its own. */
static void run_parts(int wait, part_function run, int count, size_t size, void *parts,
                      int argument) {
  (void)wait;
  parts_job job = {.job = {.run = run_part, .chunks = (sm_u64)count, .activity = SM_IN_BLAS},
                   .run = run,
                   .parts = parts,
                   .size = size,
                   .argument = argument};
  sm_worker visitor = {.pool = blas_pool};
  sm_pool_run_together(multiplying ? multiplying : &visitor, blas_pool, &job.job);
}

static void multiply_whole(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)chunk;
  gemm_job *job = (gemm_job *)base;
  multiplying = worker;
  multiply(job->gemm, job->gemm->m, job->gemm->n, job->a, job->b, job->c);
  multiplying = NULL;
}

typedef struct rows_job {
  sm_job job;
  matrix to, from;
  sm_u64 rows, columns, piece; /* rows in a chunk */
} rows_job;

static void copy_rows(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)worker;
  rows_job *job = (rows_job *)base;
  sm_u64 end = least((chunk + 1) * job->piece, job->rows);
  for (sm_u64 row = chunk * job->piece; row < end; row++)
    memcpy(at(job->to, row, 0).address, at(job->from, row, 0).address,
           job->columns * sizeof(float));
}

static void run_rows_copy(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, &subject, chunk, copy_rows);
}

/* False after a fault. */
static bool copy_matrix(sm_worker *worker, sm_submission *submission, matrix to, matrix from,
                        sm_u64 rows, sm_u64 columns) {
  sm_u64 piece = COPIED / columns + 1;
  rows_job job = {.job = {.run = run_rows_copy, .log = &submission->log, .activity = SM_BUSY},
                  .to = to,
                  .from = from,
                  .rows = rows,
                  .columns = columns,
                  .piece = piece};
  job.job.chunks = (rows + piece - 1) / piece;
  sm_pool_run(worker, &job.job, (double)(rows * columns) / 2); /* 2 floats a nanosecond */
  if (job.job.faults) sm_report_fault(submission, &subject, job.job.fault, 0);
  return !job.job.faults;
}

/* Replaces an operand that can vanish by a copy, with its contents if `read`. */
static bool replace_by_copy(sm_worker *worker, sm_submission *submission, int number, matrix *operand,
                 sm_u64 rows, sm_u64 columns, bool read) {
  sm_block *panel = &worker->panels[number];
  if (!sm_block_reserve(panel, rows * columns * sizeof(float) + 1)) {
    sm_fail(submission, "no memory to copy a matrix");
    return false;
  }
  matrix from = *operand;
  *operand = (matrix){panel->address, columns, FLOAT32};
  return !read || copy_matrix(worker, submission, *operand, from, rows, columns);
}

static void run_whole(sm_worker *worker, sm_job *base) {
  atomic_store_explicit(&worker->activity, SM_IN_BLAS, memory_order_relaxed);
  set_threads((int)blas_pool->threads);
  sm_run_guarded(worker, base, &subject, 0, multiply_whole);
  set_threads(1); /* for the program, should it use the same copy */
  atomic_store_explicit(&worker->activity, SM_BUSY, memory_order_relaxed);
}

/* A part that is left by a fault would leave the other parts waiting for it. So matrices in memory
   of the program, such as a mapped file that becomes shorter, are copied. */
static void run_member(sm_worker *worker, sm_submission *submission, const sm_command_gemm *g,
                       sm_u64 batch) {
  gemm_job job = {.gemm = g,
                  .a = member(g->a, g->stride_a, batch, g->lda, g->type_a),
                  .b = member(g->b, g->stride_b, batch, g->ldb, g->type_b),
                  .c = member(g->c, g->stride_c, batch, g->ldc, g->type_c)};
  sm_u64 a[2] = {g->m, g->k}, b[2] = {g->k, g->n};
  bool ta = g->transpose_a, tb = g->transpose_b;
  matrix result = job.c;
  if ((g->borrowed & 1 && !replace_by_copy(worker, submission, 0, &job.a, a[ta], a[!ta], true)) ||
      (g->borrowed & 2 && !replace_by_copy(worker, submission, 1, &job.b, b[tb], b[!tb], true)) ||
      (g->borrowed & 4 && !replace_by_copy(worker, submission, 2, &job.c, g->m, g->n, g->beta != 0)))
    return;
  run_whole(worker, &job.job);
  if (job.job.faults) sm_report_fault(submission, &subject, job.job.fault, 0);
  if (g->borrowed & 4) copy_matrix(worker, submission, result, job.c, g->m, g->n);
}

/* Whether OpenBLAS divides it: depends on nothing but the product and the number of workers. */
static bool is_divided_by_blas(const sm_command_gemm *g) {
  bool floats = g->type_a == FLOAT32 && g->type_b == FLOAT32 && g->type_c == FLOAT32;
  double each = (double)g->m * (double)g->n * (double)g->k;
  return blas_pool && floats && g->batch < blas_pool->threads && each >= SHARED;
}

/* ---- products that we divide ----------------------------------------------------------------- */

static sm_u64 divide_up(sm_u64 value, sm_u64 by) { return (value + by - 1) / by; }

/* Halves the longer side of the tiles until every worker has one, and large ones further to balance
   the load; every division costs time, as both tiles pack the operand that they share. */
static void cut_tiles(gemm_job *job, unsigned workers) {
  const sm_command_gemm *g = job->gemm;
  job->tile_m = g->m;
  job->tile_n = g->n;
  job->job.chunks = g->batch;
  job->tiles_m = job->tiles_n = 1;
  while (job->job.chunks < TILES_A_WORKER * workers) {
    sm_u64 *side = job->tile_m > job->tile_n ? &job->tile_m : &job->tile_n;
    if (*side < 2 * (job->job.chunks < workers ? SMALLEST_TILE : LARGE_TILE)) break;
    *side = divide_up(divide_up(*side, 2), 16) * 16;
    job->tiles_m = divide_up(g->m, job->tile_m);
    job->tiles_n = divide_up(g->n, job->tile_n);
    job->job.chunks = g->batch * job->tiles_m * job->tiles_n;
  }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* A call of sgemm that is left by a fault never frees its work area, and OpenBLAS has only a few
   hundred. So after the first fault the pages of all operands are read before sgemm is called. */
static atomic_bool faulted;

static void try_pages(const char *start, sm_u64 rows, sm_u64 columns, sm_u64 stride, sm_u32 type) {
  enum { PAGE_BYTES = 4096 };
  sm_u64 size = ((rows - 1) * stride + columns) * (type == FLOAT16 ? 2 : 4);
  const volatile char *bytes = start;
  for (sm_u64 offset = 0; offset < size; offset += PAGE_BYTES) (void)bytes[offset];
  (void)bytes[size - 1];
}

static void try_matrices(sm_worker *worker, sm_job *base, sm_u64 batch) {
  (void)worker;
  const sm_command_gemm *g = ((gemm_job *)base)->gemm;
  sm_u64 a[2] = {g->m, g->k}, b[2] = {g->k, g->n}; /* rows and columns, before transposing */
  bool ta = g->transpose_a, tb = g->transpose_b;
  blas_int i = (blas_int)batch;
  if (g->k) {
    try_pages((char *)g->a + i * g->stride_a, a[ta], a[!ta], g->lda, g->type_a);
    try_pages((char *)g->b + i * g->stride_b, b[tb], b[!tb], g->ldb, g->type_b);
  }
  try_pages((char *)g->c + i * g->stride_c, g->m, g->n, g->ldc, g->type_c);
}

static void run_trial(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, &subject, chunk, try_matrices);
}

static void run_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, &subject, chunk, multiply_tile);
}

/* Whether the job ran without an error. */
static bool run_job(sm_worker *worker, sm_submission *submission, gemm_job *job, double estimate) {
  job->job.log = &submission->log;
  sm_pool_run(worker, &job->job, estimate);
  if (job->job.faults) {
    atomic_store(&faulted, true);
    sm_report_fault(submission, &subject, job->job.fault, 0);
  }
  if (job->job.error) sm_fail(submission, "%s", job->job.error);
  return !submission->error;
}

static void run_tiles(sm_worker *worker, sm_submission *submission, const sm_command_gemm *gemm) {
  if (atomic_load(&faulted)) {
    gemm_job trial = {.job = {.run = run_trial, .chunks = gemm->batch, .activity = SM_BUSY},
                      .gemm = gemm};
    if (!run_job(worker, submission, &trial, 0)) return;
  }
  double operations = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
  operations *= (double)gemm->batch;
  gemm_job job = {.job = {.run = run_tile, .activity = SM_IN_BLAS}, .gemm = gemm};
  cut_tiles(&job, worker->pool->threads);
  run_job(worker, submission, &job, operations / 50); /* 50 per nanosecond */
}

/* The number of OpenBLAS's threads is the process's, so one product runs at a time. */
static sm_mutex product_lock;

void sm_run_gemm(sm_worker *worker, sm_submission *submission, const sm_command_gemm *gemm) {
  if (!gemm->m || !gemm->n || !gemm->batch || !load_blas(worker->pool, submission)) return;
  sm_lock(&product_lock);
  if (is_divided_by_blas(gemm)) {
    for (sm_u64 i = 0; i < gemm->batch && !submission->error; i++)
      run_member(worker, submission, gemm, i);
  } else {
    run_tiles(worker, submission, gemm);
  }
  sm_unlock(&product_lock);
}
