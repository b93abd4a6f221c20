// The largest element, or the mean, under a window that moves over images.
#pragma once
#include "image_rows.h"
#include "records/pooling.h"

struct LargestInWindow {
  static float start() { return -INFINITY; }
  // NaN wins, and stays.
  static float join(float a, float x) { return a >= x || isnan(a) ? a : x; }
  static float result(float a, uint, uint) { return a; }
};
struct MeanOfWindow {
  static float start() { return 0.0f; }
  static float join(float a, float x) { return a + x; }
  static float result(float a, uint rows, uint columns) { return a / float(rows * columns); }
};

// How many of `count` places from `first` on lie within a size.
inline uint inside(int first, uint count, uint size) {
  return uint(max(min(first + int(count), int(size)) - max(first, 0), 0));
}

// A thread makes N columns of a row of results.
template <typename T, typename Join, uint N>
kernel void pool2d(device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
                   constant PoolingRecord& p [[buffer(2)]], uint3 at [[thread_position_in_grid]]) {
  x += ulong(at.z) * p.height * p.width;
  const uint column = at.x * N, columns = min(N, p.out_width - column);
  const int top = int(at.y * p.down) - p.top, left = int(column * p.right) - p.left;
  float joined[N];
  for (uint j = 0; j < N; j++) joined[j] = Join::start();
  for (uint i = 0; i < p.rows; i++) {
    const int y = top + int(i);
    if (y < 0 || y >= int(p.height)) continue;
    for (uint k = 0; k < p.columns; k++) {
      float values[N];
      load_row(values, x + ulong(y) * p.width, left + int(k), int(p.right), int(p.width),
               Join::start());
      for (uint j = 0; j < N; j++) joined[j] = Join::join(joined[j], values[j]);
    }
  }
  device T* to = out + (ulong(at.z) * p.out_height + at.y) * p.out_width + column;
  const uint rows = p.with_padding ? p.rows : inside(top, p.rows, p.height);
  for (uint j = 0; j < columns; j++) {
    const int first = left + int(j * p.right);
    const uint seen = p.with_padding ? p.columns : inside(first, p.columns, p.width);
    to[j] = T(Join::result(joined[j], rows, seen));
  }
}
