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
  for (; d < depth; d++)
    for (sm_u64 i = 0; i < WIDTH && i < width; i++)
      to[d * width + i] = i < lines ? load_one(from + (i * stride + d) * element, half) : 0;
}

/* Lines that are columns of the matrix. */
INLINE void copy_columns(const char *from, sm_u64 stride, bool half, sm_u64 lines, sm_u64 depth,
                         float *to, sm_u64 width) {
  size_t element = half ? 2 : 4;
  for (sm_u64 d = 0; d < depth; d++, to += width, from += stride * element) {
    sm_u64 i = 0;
    for (; i + WIDTH <= lines; i += WIDTH)
      *(loose_vector *)(to + i) = load_vector(from + i * element, half);
    for (; i < lines; i++) to[i] = load_one(from + i * element, half);
    for (; i < width; i++) to[i] = 0;
  }
}

INLINE void pack(const sm_operand *x, sm_u64 first, sm_u64 lines, bool half, float *to) {
  size_t element = half ? 2 : 4;
  if (!x->along_depth) {
    copy_columns(x->address + first * element, x->stride, half, lines, x->depth, to, x->width);
    return;
  }
  for (sm_u64 i = 0; i < x->width; i += WIDTH)
    interleave(x->address + (first + (i < lines ? i : 0)) * x->stride * element, x->stride, half,
               i < lines ? lines - i : 0, x->depth, to + i, x->width);
}

WHOLE_VECTORS void sm_pack_panel(const sm_operand *x, sm_u64 panel, float *to) {
  sm_u64 first = panel * x->width;
  sm_u64 lines = x->lines - first < x->width ? x->lines - first : x->width;
  if (x->half)
    pack(x, first, lines, true, to);
  else
    pack(x, first, lines, false, to);
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
