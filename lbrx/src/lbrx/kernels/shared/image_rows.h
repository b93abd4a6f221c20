// Rows of images, as windows that move over them see them.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Every `step`th element of a row from `first` on, as floats; `beyond` where the row has none.
template <uint N, typename T>
inline void load_row(thread float (&values)[N], device const T* row, int first, int step,
                     int width, float beyond) {
  if (first >= 0 && first + int(N - 1) * step < width) {
    if (step == 1) {
      for (uint j = 0; j < N; j++) values[j] = float(row[first + int(j)]);
    } else {
      for (uint j = 0; j < N; j++) values[j] = float(row[first + int(j) * step]);
    }
  } else {
    for (uint j = 0; j < N; j++) {
      const int at = first + int(j) * step;
      const bool inside = at >= 0 && at < width;
      values[j] = inside ? float(row[inside ? at : 0]) : beyond;
    }
  }
}
