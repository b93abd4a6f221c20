// Fills and strided copies by the width of an element: its type does not matter.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint COPY_AXES = 8;

// Strides count elements and may be negative. The last axis is the row; the others are the grid.
struct CopyLayout {
  uint axes;
  uint row;                      // elements in a row
  uint shape[COPY_AXES];         // of the axes before the last
  long source[COPY_AXES + 1];    // strides, the last one the row's
  long target[COPY_AXES + 1];
};

template <typename T>
kernel void fill(device T* out [[buffer(0)]], constant T& value [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  out[i] = value;
}

// One thread a run of elements.
template <typename T>
kernel void fill_serial(device T* out [[buffer(0)]], constant T& value [[buffer(1)]],
                        constant uint& count [[buffer(2)]], constant uint& run [[buffer(3)]],
                        uint i [[thread_position_in_grid]]) {
  const uint start = i * run;
  const uint end = min(count, start + run);
  for (uint j = start; j < end; j++) out[j] = value;
}

// Where a row starts in the source and in the target.
inline long2 row_start(constant CopyLayout& layout, uint row) {
  long2 start = 0;
  for (uint axis = layout.axes; axis-- > 0;) {
    const long position = row % layout.shape[axis];
    row /= layout.shape[axis];
    start += position * long2(layout.source[axis], layout.target[axis]);
  }
  return start;
}

template <typename T>
kernel void copy(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                 constant CopyLayout& layout [[buffer(2)]],
                 uint2 position [[thread_position_in_grid]]) {
  const long2 start = row_start(layout, position.y);
  out[start.y + position.x * layout.target[COPY_AXES]] =
      in[start.x + position.x * layout.source[COPY_AXES]];
}

// One thread a row; rows without gaps on either side are the case worth its own loop.
template <typename T>
kernel void copy_serial(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                        constant CopyLayout& layout [[buffer(2)]],
                        uint row [[thread_position_in_grid]]) {
  const long2 start = row_start(layout, row);
  device const T* from = in + start.x;
  device T* to = out + start.y;
  const long source = layout.source[COPY_AXES];
  const long target = layout.target[COPY_AXES];
  if (source == 1 && target == 1) {
    for (uint j = 0; j < layout.row; j++) to[j] = from[j];
  } else {
    for (uint j = 0; j < layout.row; j++) to[j * target] = from[j * source];
  }
}
