/* Matrix multiplication by OpenBLAS's sgemm.

   C is divided into tiles that the worker pool computes with single-threaded calls, so that threads
   of BLAS and of the pool do not compete for the cores. float16 operands are converted tile by tile.

   numpy has a separate copy of OpenBLAS, whose threads spin for about 0.1 s after each product and
   occupy cores meanwhile. So large float32 products may also use that copy with its threads: the
   alternative that was faster recently is used. */
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "runtime.h"

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
enum { FLOAT32, FLOAT16 };
enum { SMALLEST_TILE = 64, LARGE_TILE = 1024, TILES_A_WORKER = 4 };

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

static void run_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
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

/* ---- numpy's copy ---------------------------------------------------------------------------- */

enum { TILED, SHARED, WAYS };
enum { TRY_OTHER_EVERY = 16, FIRST_TRIES = 4 };
static const double LARGE = 2e8;      /* operations: about a millisecond */
static const double CLEARLY = 1.05;   /* how much faster the shared way must be */

static sgemm_function shared_sgemm;
static int (*shared_threads)(void);
static double speed[WAYS];            /* operations per nanosecond */
static unsigned tries[WAYS], turns;

/* Stores the name only. The loader is locked here: opening the library could deadlock with a thread
   that is opening another one. */
static int note_shared(struct dl_phdr_info *object, size_t size, void *name) {
  (void)size;
  if (!strstr(object->dlpi_name, "libscipy_openblas64_")) return 0;
  if (!strcmp(object->dlpi_name, blas_path)) return 0; /* our own */
  strncpy(name, object->dlpi_name, sizeof blas_path - 1);
  return 1;
}

static void find_shared(void) {
  char name[sizeof blas_path] = "";
  void *library = dl_iterate_phdr(note_shared, name) ? dlopen(name, RTLD_NOW | RTLD_NOLOAD) : NULL;
  if (!library) return;
  shared_threads = (int (*)(void))dlsym(library, "scipy_openblas_get_num_threads64_");
  shared_sgemm = shared_threads ? (sgemm_function)dlsym(library, "scipy_cblas_sgemm64_") : NULL;
}

static int choose_way(const sm_command_gemm *g, double operations, unsigned threads) {
  if (operations < LARGE || g->type_a != FLOAT32 || g->type_b != FLOAT32 || g->type_c != FLOAT32)
    return TILED;
  sm_lock(&blas_lock);
  if (!shared_sgemm) find_shared();
  int way = TILED;
  if (shared_sgemm && shared_threads() == (int)threads) {
    way = speed[SHARED] > CLEARLY * speed[TILED] ? SHARED : TILED;
    bool new_here = tries[!way] < FIRST_TRIES && tries[!way] < tries[way];
    if (new_here || ++turns % TRY_OTHER_EVERY == 0) way = !way;
    tries[way]++;
  }
  sm_unlock(&blas_lock);
  return way;
}

static void remember_speed(int way, double operations, double nanoseconds) {
  if (operations < LARGE) return;
  sm_lock(&blas_lock);
  /* Other work on the cores only slows a product down: speeds rise at once and fall slowly. */
  double now = operations / nanoseconds;
  speed[way] = now > speed[way] ? now : 0.75 * speed[way] + 0.25 * now;
  sm_unlock(&blas_lock);
}

static void run_shared(const sm_command_gemm *g) {
  for (sm_u64 i = 0; i < g->batch; i++)
    shared_sgemm(ROW_MAJOR, g->transpose_a ? TRANSPOSED : PLAIN,
                 g->transpose_b ? TRANSPOSED : PLAIN, (blas_int)g->m, (blas_int)g->n,
                 (blas_int)g->k, (float)g->alpha,
                 (const float *)((char *)g->a + (blas_int)i * g->stride_a), (blas_int)g->lda,
                 (const float *)((char *)g->b + (blas_int)i * g->stride_b), (blas_int)g->ldb,
                 (float)g->beta, (float *)((char *)g->c + (blas_int)i * g->stride_c),
                 (blas_int)g->ldc);
}

static void run_tiled(sm_worker *worker, sm_submission *submission, const sm_command_gemm *gemm,
                      double operations) {
  gemm_job job = {.job = {.run = run_tile, .log = &submission->log, .activity = SM_IN_BLAS},
                  .gemm = gemm};
  cut_tiles(&job, worker->pool->threads);
  sm_pool_run(worker, &job.job, operations / 50); /* 50 per nanosecond */
  if (job.job.error) sm_fail(submission, "%s", job.job.error);
}

void sm_run_gemm(sm_worker *worker, sm_submission *submission, const sm_command_gemm *gemm) {
  if (!gemm->m || !gemm->n || !gemm->batch || !load_blas(submission)) return;
  double operations = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
  operations *= (double)gemm->batch;
  int way = choose_way(gemm, operations, worker->pool->threads);
  sm_u64 start = sm_now();
  if (way == SHARED) {
    enum sm_activity before = atomic_exchange(&worker->activity, SM_IN_BLAS);
    run_shared(gemm);
    atomic_store(&worker->activity, before);
  } else {
    run_tiled(worker, submission, gemm, operations);
  }
  remember_speed(way, operations, (double)(sm_now() - start + 1));
}
