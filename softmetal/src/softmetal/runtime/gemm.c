/* Matrix multiplication by OpenBLAS's sgemm.

   C is divided into tiles that the worker pool computes with single-threaded calls, so that threads
   of BLAS and of the pool do not compete for the cores. float16 operands are converted tile by tile.

   One library and one division into tiles, which depends on the shape and the number of workers
   only: the same product has the same bits in every call. numpy's copy of OpenBLAS, if the program
   has loaded it, is not used: it may be another version, its threads divide a product in another
   way, and a fault in one of its threads could not be contained. */
#include <dlfcn.h>
#include <string.h>

#include "runtime.h"

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
enum { FLOAT32, FLOAT16 };
enum { SMALLEST_ROWS = 128, SMALLEST_COLUMNS = 64, LARGE_TILE = 1024, TILES_A_WORKER = 4 };
enum { WIDE = 4 }; /* a tile has so many times as many columns as rows: OpenBLAS is fastest then */

typedef __INT64_TYPE__ blas_int;
typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, blas_int m, blas_int n,
                               blas_int k, float alpha, const float *a, blas_int lda,
                               const float *b, blas_int ldb, float beta, float *c, blas_int ldc);

/* ---- the library ----------------------------------------------------------------------------- */

static sm_mutex blas_lock;
static char blas_path[4096];
static sgemm_function sgemm;

/* Where OpenBLAS is; it is loaded when the first GEMM runs. */
SM_EXPORT void softmetal_set_blas(const char *path) {
  sm_lock(&blas_lock);
  strncpy(blas_path, path, sizeof blas_path - 1);
  sm_unlock(&blas_lock);
}

static bool load_blas(sm_submission *submission) {
  sm_lock(&blas_lock);
  if (!sgemm) {
    void *library = blas_path[0] ? dlopen(blas_path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const char *reason = blas_path[0] ? dlerror() : "the package is not installed";
    void (*set_threads)(int) =
        library ? (void (*)(int))dlsym(library, "scipy_openblas_set_num_threads64_") : NULL;
    sgemm_function found =
        library ? (sgemm_function)dlsym(library, "scipy_cblas_sgemm64_") : NULL;
    if (found && set_threads) {
      set_threads(1);
      sgemm = found;
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
} gemm_job;

static sm_u64 least(sm_u64 a, sm_u64 b) { return a < b ? a : b; }

static void multiply_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  gemm_job *job = (gemm_job *)base;
  const sm_command_gemm *g = job->gemm;
  sm_u64 batch = chunk / (job->tiles_m * job->tiles_n);
  sm_u64 row = chunk / job->tiles_n % job->tiles_m * job->tile_m;
  sm_u64 column = chunk % job->tiles_n * job->tile_n;
  sm_u64 m = least(job->tile_m, g->m - row), n = least(job->tile_n, g->n - column), k = g->k;
  matrix a = {(char *)g->a + (blas_int)batch * g->stride_a, g->lda, g->type_a};
  matrix b = {(char *)g->b + (blas_int)batch * g->stride_b, g->ldb, g->type_b};
  matrix c = {(char *)g->c + (blas_int)batch * g->stride_c, g->ldc, g->type_c};
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
  sgemm(ROW_MAJOR, g->transpose_a ? TRANSPOSED : PLAIN, g->transpose_b ? TRANSPOSED : PLAIN,
        (blas_int)m, (blas_int)n, (blas_int)k, (float)g->alpha, (const float *)a.address,
        (blas_int)a.stride, (const float *)b.address, (blas_int)b.stride, (float)g->beta,
        (float *)c.address, (blas_int)c.stride);
  if (result.type == FLOAT16) narrow(result, (const float *)c.address, m, n);
}

static sm_u64 divide_up(sm_u64 value, sm_u64 by) { return (value + by - 1) / by; }

/* Halves the rows or the columns of the tiles until every worker has one, and large ones further to
   balance the load; every division costs time, as both tiles pack the operand that they share. */
static void cut_tiles(gemm_job *job, unsigned workers) {
  const sm_command_gemm *g = job->gemm;
  job->tile_m = g->m;
  job->tile_n = g->n;
  job->job.chunks = g->batch;
  job->tiles_m = job->tiles_n = 1;
  while (job->job.chunks < TILES_A_WORKER * workers) {
    bool few = job->job.chunks < workers;
    sm_u64 rows = few ? SMALLEST_ROWS : LARGE_TILE, columns = few ? SMALLEST_COLUMNS : LARGE_TILE;
    bool tall = WIDE * job->tile_m > job->tile_n, narrow = job->tile_n < 2 * columns;
    bool by_rows = job->tile_m >= 2 * rows && (tall || narrow);
    if (!by_rows && narrow) break;
    sm_u64 *side = by_rows ? &job->tile_m : &job->tile_n;
    *side = divide_up(divide_up(*side, 2), 16) * 16;
    job->tiles_m = divide_up(g->m, job->tile_m);
    job->tiles_n = divide_up(g->n, job->tile_n);
    job->job.chunks = g->batch * job->tiles_m * job->tiles_n;
  }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static const sm_kernel subject = {.subject = "a matrix multiplication"};

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

void sm_run_gemm(sm_worker *worker, sm_submission *submission, const sm_command_gemm *gemm) {
  if (!gemm->m || !gemm->n || !gemm->batch || !load_blas(submission)) return;
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
