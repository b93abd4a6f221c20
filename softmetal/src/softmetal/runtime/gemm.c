/* Matrix multiplication.

   Both operands are packed into panels once, by all workers; then the workers multiply tiles of the
   result, which need not run at the same time. Where no other tile needs a tile's part of the right
   operand, the tile packs it itself, into its core's cache. An element's products are added in the
   order of the depth, in blocks that depend on the depth alone: its bits do not depend on the number
   of threads, on the division into tiles or on the other rows and columns. */
#include "gemm_panels.h"
#include "runtime.h"

enum { FLOAT32, FLOAT16 };
enum {
  DEPTH = 384,             /* of a block, about: a left panel of it stays in the first cache */
  PACKED = 16 << 20,       /* floats of one operand that are packed at a time, at most */
  TILE_M = 20, TILE_N = 8, /* panels of a tile, at most */
  PIECE_PANELS = 8,        /* of columns that are packed together: longer runs are read */
  PIECE_DEPTH = 128,
};
/* Costs of a tile in multiplications: of a float that it fetches, for cores that multiply two vectors
   and fetch a third of one in a cycle, and of taking the tile. With half or twice as much for each,
   tiles that are chosen for ten shapes and 1 to 16 workers are within 5% of the best. */
static const double FETCH = 3.0 / 8 * WIDTH, TAKE = 3750.0 * WIDTH;
static const double LATE = 1; /* how many tiles the last worker is late */

/* A part of the product: some matrices of the batch, some rows and columns. */
typedef struct gemm_job {
  sm_job job;
  const sm_command_gemm *gemm;
  sm_operand left, right; /* of the first matrix */
  sm_u64 row, column;     /* where the part begins */
  sm_u64 left_panels, right_panels;
  sm_u64 left_floats, right_floats; /* packed, of a matrix */
  sm_u64 pieces;                    /* of the right matrix, along its depth */
  float *packed_left, *packed_right;
  bool in_place;          /* whole panels of the right matrix are not packed: each is used once */
  bool own_right;         /* tiles pack panels of the right matrix: each is used in one tile */
  sm_u64 batch, batches;
  sm_u64 tiles_m, tiles_n;
  sm_u64 block; /* depth */
} gemm_job;

static sm_u64 divide_up(sm_u64 value, sm_u64 by) { return (value + by - 1) / by; }
static sm_u64 least(sm_u64 a, sm_u64 b) { return a < b ? a : b; }
static size_t element_size(sm_u32 type) { return type == FLOAT16 ? 2 : 4; }

/* ---- packing --------------------------------------------------------------------------------- */

static sm_operand of_batch(sm_operand first, __INT64_TYPE__ stride, sm_u64 number) {
  first.address += (__INT64_TYPE__)number * stride;
  return first;
}

/* Of the right matrix, in panels that are packed together. */
static sm_u64 right_groups(const gemm_job *job) {
  return job->own_right ? 0 : divide_up(job->right_panels, PIECE_PANELS);
}

static void pack_piece(const gemm_job *job, sm_u64 matrix, sm_u64 group, sm_u64 piece) {
  const sm_operand right = of_batch(job->right, job->gemm->stride_b, job->batch + matrix);
  sm_u64 first = group * PIECE_PANELS, end = least(first + PIECE_PANELS, job->right_panels);
  if (job->in_place) { /* only the last panel, if it is not whole */
    if (right.lines % SM_PANEL_COLUMNS == 0 || end < job->right_panels) return;
    first = end - 1;
  }
  float *to = job->packed_right + matrix * job->right_floats + first * sm_panel_size(&right);
  sm_u64 depth = right.depth;
  sm_pack_columns(&right, first, end - first, piece * depth / job->pieces,
                  (piece + 1) * depth / job->pieces, to);
}

static void pack_chunk(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  (void)worker;
  gemm_job *job = (gemm_job *)base;
  sm_u64 chunks = job->left_panels + right_groups(job) * job->pieces, matrix = chunk / chunks;
  sm_u64 part = chunk % chunks;
  if (part >= job->left_panels) {
    part -= job->left_panels;
    pack_piece(job, matrix, part / job->pieces, part % job->pieces);
    return;
  }
  sm_operand left = of_batch(job->left, job->gemm->stride_a, job->batch + matrix);
  float *to = job->packed_left + matrix * job->left_floats;
  sm_pack_rows(&left, part, to + part * sm_panel_size(&left));
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef struct tile {
  sm_u64 matrix;                               /* of the job's part of the batch */
  sm_u64 left, left_end, right, right_end;     /* panels */
  sm_u64 rows, columns;                        /* of the result */
  char *result;
} tile;

static tile tile_of(const gemm_job *job, sm_u64 chunk) {
  const sm_command_gemm *g = job->gemm;
  sm_u64 j = chunk % job->tiles_n, i = chunk / job->tiles_n % job->tiles_m;
  tile t = {.matrix = chunk / (job->tiles_m * job->tiles_n),
            .left = i * job->left_panels / job->tiles_m,
            .left_end = (i + 1) * job->left_panels / job->tiles_m,
            .right = j * job->right_panels / job->tiles_n,
            .right_end = (j + 1) * job->right_panels / job->tiles_n};
  sm_u64 row = t.left * job->left.width, column = t.right * job->right.width;
  t.rows = least(t.left_end * job->left.width, job->left.lines) - row;
  t.columns = least(t.right_end * job->right.width, job->right.lines) - column;
  sm_u64 offset = (job->row + row) * g->ldc + job->column + column;
  t.result = (char *)g->c + (__INT64_TYPE__)(job->batch + t.matrix) * g->stride_c +
             offset * element_size(g->type_c);
  return t;
}

/* A block of the depth of right panels. */
typedef struct right_block {
  const float *address; /* of the first panel */
  sm_u64 size;          /* floats from panel to panel */
} right_block;

/* The tile's own panels, where the whole block stays in the core's cache. */
static bool pack_own(sm_worker *worker, const tile *t, sm_operand right, sm_u64 from, sm_u64 depth,
                     right_block *block) {
  right.address += from * (right.along_depth ? 1 : right.stride) * (right.half ? 2 : 4);
  right.depth = depth;
  sm_u64 count = t->right_end - t->right;
  block->size = sm_panel_size(&right);
  size_t bytes = count * block->size * sizeof(float);
  if (!sm_block_reserve(&worker->panels[SM_TILE_RIGHT], bytes)) return false;
  float *to = (float *)worker->panels[SM_TILE_RIGHT].address;
  sm_pack_columns(&right, t->right, count, 0, depth, to);
  block->address = to;
  return true;
}

static bool multiply_block(sm_worker *worker, const gemm_job *job, const tile *t, sm_u64 from,
                           sm_u64 depth, float *result, sm_u64 stride) {
  const sm_operand right =
      of_batch(job->right, job->gemm->stride_b, job->batch + t->matrix);
  sm_u64 size = sm_panel_size(&right);
  right_block block = {job->packed_right + t->matrix * job->right_floats + t->right * size +
                           from * SM_PANEL_COLUMNS, size};
  if (job->own_right && !pack_own(worker, t, right, from, depth, &block)) return false;
  sm_panels panels = {.depth = depth, .result_stride = stride, .adds = from > 0};
  for (sm_u64 i = t->left; i < t->left_end; i++) {
    sm_u64 rows = sm_panel_height(&job->left, i);
    panels.left = job->packed_left + t->matrix * job->left_floats +
                  i * sm_panel_size(&job->left) + from * rows;
    for (sm_u64 j = t->right; j < t->right_end; j++) {
      bool in_place = job->in_place && (j + 1) * SM_PANEL_COLUMNS <= right.lines;
      panels.right_stride = in_place ? right.stride : SM_PANEL_COLUMNS;
      panels.right = in_place ? (const float *)right.address + j * SM_PANEL_COLUMNS +
                                    from * right.stride
                              : block.address + (j - t->right) * block.size;
      panels.result = result + (i - t->left) * job->left.width * stride +
                      (j - t->right) * SM_PANEL_COLUMNS;
      sm_multiply_panels(rows, &panels);
    }
  }
  return true;
}

/* C = alpha * sums + beta * C; C is not read if beta is 0. */
static void write_result(const sm_command_gemm *g, const tile *t, const float *sums,
                         sm_u64 stride) {
  float alpha = (float)g->alpha, beta = (float)g->beta;
  for (sm_u64 i = 0; i < t->rows; i++, sums += stride) {
    char *row = t->result + i * g->ldc * element_size(g->type_c);
    float *floats = (float *)row;
    _Float16 *halves = (_Float16 *)row;
    if (g->type_c == FLOAT16)
      for (sm_u64 j = 0; j < t->columns; j++)
        halves[j] = (_Float16)(alpha * sums[j] + (beta != 0 ? beta * (float)halves[j] : 0));
    else
      for (sm_u64 j = 0; j < t->columns; j++)
        floats[j] = alpha * sums[j] + (beta != 0 ? beta * floats[j] : 0);
  }
}

static void multiply_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  gemm_job *job = (gemm_job *)base;
  const sm_command_gemm *g = job->gemm;
  tile t = tile_of(job, chunk);
  sm_u64 rows = (t.left_end - 1 - t.left) * job->left.width +
                sm_panel_height(&job->left, t.left_end - 1);
  sm_u64 columns = (t.right_end - t.right) * job->right.width;
  bool direct = g->type_c == FLOAT32 && g->alpha == 1 && g->beta == 0 && rows == t.rows &&
                columns == t.columns;
  float *sums = (float *)t.result;
  sm_u64 stride = g->ldc;
  if (!direct) {
    if (!sm_block_reserve(&worker->panels[SM_TILE_SUMS], rows * columns * sizeof(float))) {
      atomic_store(&base->error, "no memory for a tile of a matrix multiplication");
      return;
    }
    sums = (float *)worker->panels[SM_TILE_SUMS].address;
    stride = columns;
  }
  sm_u64 depth = job->left.depth, from = 0;
  do {
    if (!multiply_block(worker, job, &t, from, least(job->block, depth - from), sums, stride)) {
      atomic_store(&base->error, "no memory to pack an operand of a matrix multiplication");
      return;
    }
    from += job->block;
  } while (from < depth);
  if (!direct) write_result(g, &t, sums, stride);
}

/* What the workers need, about: a tile computes, and reads what others have packed. */
static double tiles_cost(const gemm_job *job, sm_u64 tile_m, sm_u64 tile_n, unsigned workers) {
  double tiles = (double)(job->batches * divide_up(job->left_panels, tile_m) *
                          divide_up(job->right_panels, tile_n));
  double rounds = (double)divide_up((sm_u64)tiles, workers);
  if (workers > 1 && rounds < tiles / workers + LATE) rounds = tiles / workers + LATE;
  double rows = (double)(tile_m * job->left.width), columns = (double)(tile_n * job->right.width);
  double depth = (double)job->left.depth;
  return rounds * (TAKE + depth * (rows * columns + FETCH * (rows + columns)));
}

static void cut_tiles(gemm_job *job, unsigned workers) {
  sm_u64 best_m = 1, best_n = 1;
  double best = 0;
  for (sm_u64 m = 1; m <= TILE_M && m <= job->left_panels; m++)
    for (sm_u64 n = 1; n <= TILE_N && n <= job->right_panels; n++) {
      double cost = tiles_cost(job, m, n, workers);
      if (best && cost >= best) continue;
      best = cost;
      best_m = m;
      best_n = n;
    }
  job->tiles_m = divide_up(job->left_panels, best_m);
  job->tiles_n = divide_up(job->right_panels, best_n);
  job->job.chunks = job->batches * job->tiles_m * job->tiles_n;
}

/* ---- the product ----------------------------------------------------------------------------- */

static const sm_kernel subject = {.subject = "a matrix multiplication"};

static void run_packing(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, &subject, chunk, pack_chunk);
}

static void run_tile(sm_worker *worker, sm_job *base, sm_u64 chunk) {
  sm_run_guarded(worker, base, &subject, chunk, multiply_tile);
}

/* Whether the job ran without an error; `estimate` in nanoseconds. */
static bool run_job(sm_worker *worker, sm_submission *submission, gemm_job *job, double estimate) {
  job->job.log = &submission->log;
  job->job.activity = SM_IN_KERNEL;
  sm_pool_run(worker, &job->job, estimate);
  if (job->job.faults) sm_report_fault(submission, &subject, job->job.fault, 0);
  if (job->job.error) sm_fail(submission, "%s", job->job.error);
  return !submission->error;
}

/* Multiplies what `job` describes: its operands, its place in the result and in the batch. */
static bool run_part(sm_worker *worker, sm_submission *submission, gemm_job job) {
  job.left_panels = sm_panel_count(&job.left);
  job.right_panels = sm_panel_count(&job.right);
  job.left_floats = job.left_panels * sm_panel_size(&job.left);
  job.right_floats = job.right_panels * sm_panel_size(&job.right);
  job.pieces = job.right.along_depth ? 1 : 1 + job.right.depth / PIECE_DEPTH;
  job.in_place = job.left_panels == 1 && !job.right.along_depth && !job.right.half;
  cut_tiles(&job, worker->pool->threads);
  job.own_right = job.tiles_m == 1 && !job.in_place;
  sm_u64 shared = job.own_right ? 0 : job.right_floats;
  if (!sm_block_reserve(&worker->panels[SM_LEFT], job.batches * job.left_floats * sizeof(float)) ||
      !sm_block_reserve(&worker->panels[SM_RIGHT], job.batches * shared * sizeof(float))) {
    sm_fail(submission, "no memory to pack the operands of a matrix multiplication");
    return false;
  }
  job.packed_left = (float *)worker->panels[SM_LEFT].address;
  job.packed_right = (float *)worker->panels[SM_RIGHT].address;
  gemm_job packing = job;
  packing.job.run = run_packing;
  packing.job.chunks = job.batches * (job.left_panels + right_groups(&job) * job.pieces);
  double lines = (double)job.left.lines;
  if (!job.in_place && !job.own_right) lines += (double)job.right.lines;
  double depth = (double)job.left.depth * (double)job.batches; /* 2 elements, 100 operations a ns */
  if (!run_job(worker, submission, &packing, depth * lines / 2)) return false;
  job.job.run = run_tile;
  double elements = (double)job.left.lines * (double)job.right.lines;
  return run_job(worker, submission, &job, depth * elements / 50);
}

/* Rows of a left panel: the height that divides the rows with the least waste. */
static sm_u64 panel_rows(sm_u64 rows) {
  sm_u64 height = divide_up(rows, divide_up(rows, SM_PANEL_ROWS));
  return height > WIDTH ? divide_up(height, WIDTH) * WIDTH : height;
}

static sm_operand operand(sm_u64 address, sm_u64 stride, sm_u32 type, bool along, sm_u64 first,
                          sm_u64 lines, sm_u64 depth, sm_u64 width) {
  sm_u64 offset = (along ? first * stride : first) * element_size(type);
  return (sm_operand){(const char *)address + offset, stride, type == FLOAT16, along, lines, depth,
                      width};
}

/* As many lines as may be packed at once, in whole panels. */
static sm_u64 lines_at_once(sm_u64 lines, sm_u64 depth, sm_u64 width) {
  sm_u64 most = PACKED / (depth + 1) / width * width;
  return least(lines, most > width ? most : width);
}

void sm_run_gemm(sm_worker *worker, sm_submission *submission, const sm_command_gemm *g) {
  if (!g->m || !g->n || !g->batch) return;
  sm_u64 depth = g->alpha == 0 ? 0 : g->k, height = panel_rows(g->m);
  sm_u64 rows = lines_at_once(g->m, depth, height);
  sm_u64 columns = lines_at_once(g->n, depth, SM_PANEL_COLUMNS);
  sm_u64 most = rows > columns ? rows : columns;
  sm_u64 batches = least(g->batch, PACKED / ((depth + 1) * most) + 1);
  sm_u64 block = divide_up(depth, (depth + DEPTH / 2) / DEPTH + (depth < DEPTH / 2)) + !depth;
  for (sm_u64 batch = 0; batch < g->batch; batch += batches)
    for (sm_u64 column = 0; column < g->n; column += columns)
      for (sm_u64 row = 0; row < g->m; row += rows) {
        gemm_job part = {
            .gemm = g,
            .row = row,
            .column = column,
            .batch = batch,
            .batches = least(batches, g->batch - batch),
            .block = block,
            .left = operand(g->a, g->lda, g->type_a, !g->transpose_a, row, least(rows, g->m - row),
                            depth, height),
            .right = operand(g->b, g->ldb, g->type_b, g->transpose_b, column,
                             least(columns, g->n - column), depth, SM_PANEL_COLUMNS)};
        if (!run_part(worker, submission, part)) return;
      }
}
