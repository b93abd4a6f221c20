/* Panels of matrices: see gemm_panels.c. */
#ifndef SOFTMETAL_GEMM_PANELS_H
#define SOFTMETAL_GEMM_PANELS_H

#include <stdbool.h>
#include <stddef.h>

#include "words.h"

/* WIDTH floats make a vector, VECTORS of them the columns of a right panel. The sums of the largest
   left panel times a right one fill the registers. */
#if defined(__AVX512F__)
enum { WIDTH = 16, VECTORS = 2, SM_PANEL_ROWS = 14 };
#define SM_PANEL_HEIGHTS(_) \
  _(1) _(2) _(3) _(4) _(5) _(6) _(7) _(8) _(9) _(10) _(11) _(12) _(13) _(14)
#elif defined(__AVX__)
enum { WIDTH = 8, VECTORS = 2, SM_PANEL_ROWS = 6 };
#define SM_PANEL_HEIGHTS(_) _(1) _(2) _(3) _(4) _(5) _(6)
#else
enum { WIDTH = 4, VECTORS = 3, SM_PANEL_ROWS = 8 };
#define SM_PANEL_HEIGHTS(_) _(1) _(2) _(3) _(4) _(8)
#endif
enum { SM_PANEL_COLUMNS = VECTORS * WIDTH, AHEAD = 8 /* depths that are prefetched */ };

typedef struct sm_operand {
  const char *address;
  sm_u64 stride; /* elements from row to row of the matrix */
  bool half;
  bool along_depth;    /* lines are rows of the matrix as it is stored, else columns */
  sm_u64 lines, depth; /* rows of the left, columns of the right matrix; their length */
  sm_u64 width;        /* lines of a panel; the last one of the right operand ends with zeros */
} sm_operand;

/* Floats from panel to panel: packing writes up to WIDTH beyond the end. */
static inline sm_u64 sm_panel_size(const sm_operand *x) {
  return (x->width * x->depth + 2 * WIDTH - 1) / WIDTH * WIDTH;
}

static inline sm_u64 sm_panel_count(const sm_operand *x) {
  return (x->lines + x->width - 1) / x->width;
}

/* Lines of a left panel: those of the last one are as many as are left, or a few more. */
static inline sm_u64 sm_panel_height(const sm_operand *x, sm_u64 panel) {
  sm_u64 rest = x->lines - panel * x->width;
  if (rest >= x->width) return x->width;
#define HEIGHT(n) \
  if (rest <= n) return n;
  SM_PANEL_HEIGHTS(HEIGHT)
#undef HEIGHT
  return x->width;
}

/* A left panel. */
void sm_pack_rows(const sm_operand *, sm_u64 panel, float *to);

/* Depths `from` to `end` of some right panels; `to` is the place of the first. */
void sm_pack_columns(const sm_operand *, sm_u64 panel, sm_u64 panels, sm_u64 from, sm_u64 end,
                     float *to);

typedef struct sm_panels {
  const float *left, *right;
  sm_u64 depth, right_stride; /* floats from depth to depth; those of the left are its rows */
  float *result;              /* SM_PANEL_COLUMNS of each row */
  sm_u64 result_stride;
  bool adds; /* to the result */
} sm_panels;

/* `rows` is one of SM_PANEL_HEIGHTS. */
void sm_multiply_panels(sm_u64 rows, const sm_panels *);

#endif
