// Matrix products out = activation(x y + bias): shared code, and kernels for every case.
#pragma once
#include "elementwise.h"
#include "records/matmul.h"

// Offsets of x and y for one member of the batch.
inline ulong2 batch_start(constant ProductRecord& p, uint member) {
  ulong2 start = 0;
  for (uint axis = p.axes; axis-- > 0;) {
    const ulong place = member % p.shape[axis];
    member /= p.shape[axis];
    start += place * ulong2(p.x_batch[axis], p.y_batch[axis]);
  }
  return start;
}

// ---- bias and activation ----

// The accumulator. Signed and unsigned integers of the same width wrap alike.
template <typename T> struct Accumulator { using type = float; };
template <> struct Accumulator<bool> { using type = uint; };
template <> struct Accumulator<uchar> { using type = uint; };
template <> struct Accumulator<ushort> { using type = uint; };
template <> struct Accumulator<uint> { using type = uint; };
template <> struct Accumulator<ulong> { using type = ulong; };

// An element as the accumulator's type. bfloat is the upper half of a float; written so, it vectorises.
template <typename T> inline typename Accumulator<T>::type wide(T x) {
  return typename Accumulator<T>::type(x);
}
template <> inline float wide(bfloat x) { return as_type<float>(uint(as_type<ushort>(x)) << 16); }

inline float multiply_add(float a, float b, float sum) { return fma(a, b, sum); }
inline uint multiply_add(uint a, uint b, uint sum) { return a * b + sum; }
inline ulong multiply_add(ulong a, ulong b, ulong sum) { return a * b + sum; }

template <typename S> inline S activated(S x) { return x; }
template <> inline float activated(float x) {
  switch (ACTIVATION) {
    case 1: return op::relu(x);
    case 2: return op::gelu(x);
    case 3: return op::gelu_tanh(x);
    case 4: return op::silu(x);
    case 5: return op::sigmoid(x);
    case 6: return op::tanh(x);
    default: return x;
  }
}

template <typename T, typename S = typename Accumulator<T>::type>
inline T finished(S sum, T bias) {
  return T(activated(sum + S(bias)));
}

// Adds planes of partial sums in order, then bias and activation. No planes give zeros.
template <typename T>
kernel void matmul_finish(device const float* parts [[buffer(0)]],
                          device const T* bias [[buffer(1)]], device T* out [[buffer(2)]],
                          constant uint& count [[buffer(3)]],
                          constant uint& bias_step [[buffer(4)]],
                          uint2 at [[thread_position_in_grid]], uint2 size [[threads_per_grid]]) {
  using S = typename Accumulator<T>::type;
  const ulong i = ulong(at.y) * size.x + at.x;
  const ulong plane = ulong(size.x) * size.y;
  S sum = 0;
  for (uint part = 0; part < count; part++) sum += S(parts[part * plane + i]);
  out[i] = finished<T>(sum, bias[at.x * bias_step]);
}

// ---- one thread per result ----

template <typename T>
kernel void matmul_single(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                          device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                          constant ProductRecord& p [[buffer(4)]],
                          uint3 at [[thread_position_in_grid]]) {
  const ulong2 start = batch_start(p, at.z);
  x += start.x + at.y * p.x_row;
  y += start.y + at.x * p.y_column;
  typename Accumulator<T>::type sum = 0;
  for (uint k = 0; k < p.k; k++)
    sum = multiply_add(wide(x[k * p.x_column]), wide(y[k * p.y_row]), sum);
  out[(ulong(at.z) * p.m + at.y) * p.n + at.x] = finished<T>(sum, bias[at.x * p.bias_column]);
}

// ---- one thread per block ----

// A thread computes a block of rows and columns, SERIAL_DEPTH of k at a time: the panel of y and the
// sums stay in the first-level cache.
constant constexpr uint SERIAL_ROWS = 64;
constant constexpr uint SERIAL_COLUMNS = 64;
constant constexpr uint SERIAL_DEPTH = 64;
constant constexpr uint STEP = 4;  // rows and k in one pass over the sums

// Part of y as the accumulator's type, zero-padded.
template <typename T, typename S>
inline void pack_panel(thread S (&panel)[SERIAL_DEPTH][SERIAL_COLUMNS], device const T* y,
                       constant ProductRecord& p, uint depth, uint columns) {
  for (uint i = 0; i < SERIAL_DEPTH; i++)
    for (uint j = 0; j < SERIAL_COLUMNS; j++) panel[i][j] = S(0);
  if (p.y_column == 1) {
    for (uint i = 0; i < depth; i++)
      for (uint j = 0; j < columns; j++) panel[i][j] = wide(y[i * p.y_row + j]);
  } else {
    for (uint j = 0; j < columns; j++)
      for (uint i = 0; i < depth; i++) panel[i][j] = wide(y[i * p.y_row + j * p.y_column]);
  }
}

// Every sum adds its products in order of k, for all sizes.
template <typename S>
inline void add_products(thread S (&sums)[STEP][SERIAL_COLUMNS],
                         thread const S (&left)[STEP][SERIAL_DEPTH],
                         thread const S (&panel)[SERIAL_DEPTH][SERIAL_COLUMNS]) {
  for (uint i = 0; i < SERIAL_DEPTH; i += STEP) {
    for (uint j = 0; j < SERIAL_COLUMNS; j++) {
#pragma unroll
      for (uint row = 0; row < STEP; row++) {
        S sum = sums[row][j];
#pragma unroll
        for (uint s = 0; s < STEP; s++) sum = multiply_add(left[row][i + s], panel[i + s][j], sum);
        sums[row][j] = sum;
      }
    }
  }
}

template <typename T>
kernel void matmul_serial(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                          device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                          constant ProductRecord& p [[buffer(4)]],
                          uint3 at [[thread_position_in_grid]]) {
  using S = typename Accumulator<T>::type;
  const uint row = at.y * SERIAL_ROWS, column = at.x * SERIAL_COLUMNS;
  const uint rows = min(SERIAL_ROWS, p.m - row), columns = min(SERIAL_COLUMNS, p.n - column);
  const ulong2 start = batch_start(p, at.z);
  x += start.x + row * p.x_row;
  y += start.y + column * p.y_column;
  out += (ulong(at.z) * p.m + row) * p.n + column;
  S panel[SERIAL_DEPTH][SERIAL_COLUMNS];
  S left[STEP][SERIAL_DEPTH];
  S sums[SERIAL_ROWS / STEP][STEP][SERIAL_COLUMNS];
  for (uint i = 0; i < SERIAL_ROWS; i++)
    for (uint j = 0; j < SERIAL_COLUMNS; j++) sums[i / STEP][i % STEP][j] = S(0);
  for (uint k = 0; k < p.k; k += SERIAL_DEPTH) {
    const uint depth = min(SERIAL_DEPTH, p.k - k);
    pack_panel(panel, y + k * p.y_row, p, depth, columns);
    for (uint i = 0; i < rows; i += STEP) {
      for (uint r = 0; r < STEP; r++)
        for (uint d = 0; d < SERIAL_DEPTH; d++)
          left[r][d] = i + r < rows && d < depth
                           ? wide(x[(i + r) * p.x_row + (k + d) * p.x_column]) : S(0);
      add_products(sums[i / STEP], left, panel);
    }
  }
  for (uint i = 0; i < rows; i++)
    for (uint j = 0; j < columns; j++)
      out[ulong(i) * p.n + j] =
          finished<T>(sums[i / STEP][i % STEP][j], bias[(column + j) * p.bias_column]);
}
