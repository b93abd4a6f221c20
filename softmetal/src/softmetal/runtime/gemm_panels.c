/* The two inner parts of a matrix multiplication: packing lines of an operand into panels, and
   multiplying a panel of one operand by a panel of the other.

   A panel holds a few rows of the left or columns of the right matrix as float32, interleaved:
   first their elements at depth 0, then those at depth 1 and so on. */
#include "gemm_panels.h"

#if defined(__x86_64__)
#define WHOLE_VECTORS __attribute__((min_vector_width(32 * WIDTH)))
#else
#define WHOLE_VECTORS
#endif
/* Of few turns: as vectors and unrolled they would take a third of the time of compiling this file. */
#define SHORT_LOOP _Pragma("clang loop vectorize(disable) unroll(disable)")
#define INLINE static inline __attribute__((always_inline)) WHOLE_VECTORS

typedef float vector __attribute__((ext_vector_type(WIDTH)));
typedef float loose_vector __attribute__((ext_vector_type(WIDTH), aligned(4)));
typedef _Float16 loose_halves __attribute__((ext_vector_type(WIDTH), aligned(2)));

/* ---- packing --------------------------------------------------------------------------------- */

#if defined(__AVX512F__)
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#endif

INLINE vector load_vector(const char *from, bool half) {
  if (half) return __builtin_convertvector(*(const loose_halves *)from, vector);
  return *(const loose_vector *)from;
}

INLINE float load_one(const char *from, bool half) {
  return half ? (float)*(const _Float16 *)from : *(const float *)from;
}

INLINE void transpose(vector block[WIDTH]) {
  for (int step = 1; step < WIDTH; step *= 2) {
    vector next[WIDTH];
    for (int i = 0; i < WIDTH / 2; i++) {
      next[2 * i] = __builtin_shufflevector(block[i], block[i + WIDTH / 2], LOW);
      next[2 * i + 1] = __builtin_shufflevector(block[i], block[i + WIDTH / 2], HIGH);
    }
    for (int i = 0; i < WIDTH; i++) block[i] = next[i];
  }
}

/* At most WIDTH lines that run along the depth, to every `width` floats. What it writes beyond the
   width, the next depth overwrites. */
INLINE void interleave(const char *from, sm_u64 stride, bool half, sm_u64 lines, sm_u64 depth,
                       float *to, sm_u64 width) {
  size_t element = half ? 2 : 4;
  sm_u64 d = 0;
  for (; d + WIDTH <= depth; d += WIDTH) {
    vector block[WIDTH];
    for (sm_u64 i = 0; i < WIDTH; i++)
      block[i] = i < lines ? load_vector(from + (i * stride + d) * element, half) : (vector)0;
    transpose(block);
    for (sm_u64 i = 0; i < WIDTH; i++) *(loose_vector *)(to + (d + i) * width) = block[i];
  }
  SHORT_LOOP for (; d < depth; d++)
    SHORT_LOOP for (sm_u64 i = 0; i < WIDTH && i < width; i++)
      to[d * width + i] = i < lines ? load_one(from + (i * stride + d) * element, half) : 0;
}

/* Lines that are columns of the matrix, to panels of `width` that are `size` floats apart. */
INLINE void copy_columns(const char *from, sm_u64 stride, bool half, sm_u64 lines, sm_u64 depth,
                         float *to, sm_u64 width, sm_u64 size) {
  size_t element = half ? 2 : 4;
  for (sm_u64 d = 0; d < depth; d++, to += width, from += stride * element) {
    float *panel = to;
    for (sm_u64 first = 0; first < lines; first += width, panel += size) {
      const char *row = from + first * element;
      sm_u64 count = lines - first < width ? lines - first : width, i = 0;
      for (; i + WIDTH <= count; i += WIDTH)
        *(loose_vector *)(panel + i) = load_vector(row + i * element, half);
      SHORT_LOOP for (; i < count; i++) panel[i] = load_one(row + i * element, half);
      SHORT_LOOP for (; i < width; i++) panel[i] = 0;
    }
  }
}

INLINE void interleave_panel(const sm_operand *x, sm_u64 first, sm_u64 lines, bool half,
                             sm_u64 width, float *to) {
  size_t element = half ? 2 : 4;
  for (sm_u64 i = 0; i < width; i += WIDTH)
    interleave(x->address + (first + (i < lines ? i : 0)) * x->stride * element, x->stride, half,
               i < lines ? lines - i : 0, x->depth, to + i, width);
}

static sm_u64 lines_of(const sm_operand *x, sm_u64 first, sm_u64 most) {
  return x->lines - first < most ? x->lines - first : most;
}

INLINE void pack_rows(const sm_operand *x, sm_u64 panel, bool half, float *to) {
  sm_u64 first = panel * x->width, width = sm_panel_height(x, panel);
  sm_u64 lines = lines_of(x, first, width);
  const char *start = x->address + first * (half ? 2 : 4);
  if (x->along_depth)
    interleave_panel(x, first, lines, half, width, to);
  else
    copy_columns(start, x->stride, half, lines, x->depth, to, width, 0);
}

INLINE void pack_columns(const sm_operand *x, sm_u64 panel, sm_u64 panels, sm_u64 from, sm_u64 end,
                         bool half, float *to) {
  sm_u64 first = panel * SM_PANEL_COLUMNS, size = sm_panel_size(x);
  if (!x->along_depth) {
    const char *start = x->address + (from * x->stride + first) * (half ? 2 : 4);
    sm_u64 lines = lines_of(x, first, panels * SM_PANEL_COLUMNS);
    copy_columns(start, x->stride, half, lines, end - from, to + from * SM_PANEL_COLUMNS,
                 SM_PANEL_COLUMNS, size);
    return;
  }
  for (sm_u64 i = 0; i < panels; i++, first += SM_PANEL_COLUMNS)
    interleave_panel(x, first, lines_of(x, first, SM_PANEL_COLUMNS), half, SM_PANEL_COLUMNS,
                     to + i * size);
}

WHOLE_VECTORS void sm_pack_rows(const sm_operand *x, sm_u64 panel, float *to) {
  if (x->half)
    pack_rows(x, panel, true, to);
  else
    pack_rows(x, panel, false, to);
}

WHOLE_VECTORS void sm_pack_columns(const sm_operand *x, sm_u64 panel, sm_u64 panels, sm_u64 from,
                                   sm_u64 end, float *to) {
  if (x->half)
    pack_columns(x, panel, panels, from, end, true, to);
  else
    pack_columns(x, panel, panels, from, end, false, to);
}

/* ---- multiplying ----------------------------------------------------------------------------- */

#if defined(__x86_64__) && !defined(__FMA__)
#define MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum)) /* a fused one would be a call an element */
#else
#define MULTIPLY_ADD(x, y, sum) __builtin_elementwise_fma(x, y, sum)
#endif

/* Sums over the depth in order. */
INLINE void multiply(sm_u64 rows, const sm_panels *p) {
  vector sum[SM_PANEL_ROWS][VECTORS];
  for (sm_u64 i = 0; i < rows; i++)
    for (int v = 0; v < VECTORS; v++) sum[i][v] = (vector)0;
  const float *left = p->left, *right = p->right;
  for (sm_u64 d = p->depth; d; d--, left += rows, right += p->right_stride) {
    vector column[VECTORS];
    for (int v = 0; v < VECTORS; v++) column[v] = ((const loose_vector *)right)[v];
    const float *ahead = right + AHEAD * p->right_stride;
    for (int v = 0; v < VECTORS; v++) __builtin_prefetch(ahead + v * WIDTH);
    for (sm_u64 i = 0; i < rows; i++)
      for (int v = 0; v < VECTORS; v++)
        sum[i][v] = MULTIPLY_ADD((vector)(left[i]), column[v], sum[i][v]);
  }
  for (sm_u64 i = 0; i < rows; i++) {
    loose_vector *to = (loose_vector *)(p->result + i * p->result_stride);
    for (int v = 0; v < VECTORS; v++) to[v] = p->adds ? to[v] + sum[i][v] : sum[i][v];
  }
}

WHOLE_VECTORS void sm_multiply_panels(sm_u64 rows, const sm_panels *panels) {
#define HEIGHT(n)        \
  case n:                \
    multiply(n, panels); \
    break;
  switch (rows) { SM_PANEL_HEIGHTS(HEIGHT) }
#undef HEIGHT
}
