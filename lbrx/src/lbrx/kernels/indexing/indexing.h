// Take, gather and scatter. Arrays are contiguous with shape (outer, axis, inner); elements are moved
// as integers of their width. An index out of range is reported and skipped.
#pragma once
#include "records/indexing.h"
using namespace metal;

// What the host reads after the kernel.
struct IndexReport {
  atomic_uint found;
  uint index[2];
};

inline long index_at(device const void* indices, ulong i) {
  switch (INDEX_TYPE) {
    case -1: return static_cast<device const char*>(indices)[i];
    case -2: return static_cast<device const short*>(indices)[i];
    case -4: return static_cast<device const int*>(indices)[i];
    case 1: return static_cast<device const uchar*>(indices)[i];
    case 2: return static_cast<device const ushort*>(indices)[i];
    case 4: return static_cast<device const uint*>(indices)[i];
    default: return static_cast<device const long*>(indices)[i];
  }
}

// The position of an index; the axis' size if it is out of range.
inline ulong place(long index, ulong axis) {
  const bool back = index < 0 && INDEX_TYPE < 0;
  const ulong at = ulong(index) + (back ? axis : 0);
  return min(at, axis);
}

// Only the first wrong index is reported.
inline void report(device IndexReport& report, long index) {
  if (atomic_exchange_explicit(&report.found, 1u, memory_order_relaxed) == 0) {
    report.index[0] = uint(index);
    report.index[1] = uint(ulong(index) >> 32);
  }
}

// The position of a thread: plane (z), index, and inner element.
struct Cell {
  ulong plane;
  ulong index;
  ulong inner;
};

inline Cell cell(uint3 at) {
  return ALONG_INNER ? Cell{at.z, at.y, at.x} : Cell{at.z, at.x, 0};
}

template <typename T>
kernel void take(device const T* in [[buffer(0)]], device const void* indices [[buffer(1)]],
                 device T* out [[buffer(2)]], constant PickRecord& picking [[buffer(3)]],
                 device IndexReport& wrong [[buffer(4)]], uint3 at [[thread_position_in_grid]]) {
  const Cell here = cell(at);
  const ulong inner = ALONG_INNER ? picking.inner : 1;
  const long index = index_at(indices, here.index);
  const ulong from = place(index, picking.axis);
  device T* to = out + (here.plane * picking.indices + here.index) * inner;
  if (from < picking.axis) {
    to[here.inner] = in[(here.plane * picking.axis + from) * inner + here.inner];
  } else {
    to[here.inner] = T(0);
    report(wrong, index);
  }
}

// A thread copies whole rows: `run` of them.
template <typename T>
kernel void take_rows(device const T* in [[buffer(0)]], device const void* indices [[buffer(1)]],
                      device T* out [[buffer(2)]], constant PickRecord& picking [[buffer(3)]],
                      device IndexReport& wrong [[buffer(4)]], uint3 at [[thread_position_in_grid]]) {
  const long index = index_at(indices, at.x);
  const ulong from = place(index, picking.axis);
  device T* to = out + (ulong(at.y) * picking.indices + at.x) * picking.inner;
  if (from < picking.axis) {
    device const T* row = in + (ulong(at.y) * picking.axis + from) * picking.inner;
    for (ulong i = 0; i < picking.inner; i++) to[i] = row[i];
  } else {
    for (ulong i = 0; i < picking.inner; i++) to[i] = T(0);
    report(wrong, index);
  }
}

template <typename T>
kernel void gather(device const T* in [[buffer(0)]], device const void* indices [[buffer(1)]],
                   device T* out [[buffer(2)]], constant PickRecord& picking [[buffer(3)]],
                   device IndexReport& wrong [[buffer(4)]], uint3 at [[thread_position_in_grid]]) {
  const Cell here = cell(at);
  const ulong inner = ALONG_INNER ? picking.inner : 1;
  const ulong i = (here.plane * picking.indices + here.index) * inner + here.inner;
  const long index = index_at(indices, i);
  const ulong from = place(index, picking.axis);
  if (from < picking.axis) {
    out[i] = in[(here.plane * picking.axis + from) * inner + here.inner];
  } else {
    out[i] = T(0);
    report(wrong, index);
  }
}

// ---- scatter: `out` already contains the array ----

struct Put {
  template <typename T> static T apply(T, T update) { return update; }
};
struct Add {
  template <typename T> static T apply(T old, T update) { return T(old + update); }
  static bool apply(bool old, bool update) { return old || update; }
};
struct Multiply {
  template <typename T> static T apply(T old, T update) { return T(old * update); }
  static bool apply(bool old, bool update) { return old && update; }
};
// NaN wins.
struct Min {
  template <typename T> static T apply(T old, T update) {
    return update < old || update != update ? update : old;
  }
};
struct Max {
  template <typename T> static T apply(T old, T update) {
    return update > old || update != update ? update : old;
  }
};

// Each thread reads all indices of its columns in order and writes those in its share of the axis:
// no two threads write the same element, and sums are reproducible.
template <typename Change, typename T>
kernel void scatter(device const void* indices [[buffer(0)]], device const T* updates [[buffer(1)]],
                    device T* out [[buffer(2)]], constant PickRecord& picking [[buffer(3)]],
                    device IndexReport& wrong [[buffer(4)]], constant WalkingRecord& walking [[buffer(5)]],
                    uint3 at [[thread_position_in_grid]]) {
  const ulong inner = ALONG_INNER ? picking.inner : 1;
  const ulong column = ulong(at.x) * walking.columns;
  const ulong columns = ALONG_INNER ? min(ulong(walking.columns), inner - column) : 1;
  const ulong first = at.y * walking.share;
  const ulong end = min(first + walking.share, picking.axis);
  device T* to = out + at.z * picking.axis * inner + column;
  ulong i = at.z * picking.indices * inner + column;
  for (ulong n = 0; n < picking.indices; n++, i += inner) {
    for (ulong c = 0; c < columns; c++) {
      const long index = index_at(indices, i + c);
      const ulong target = place(index, picking.axis);
      if (target >= first && target < end) {
        device T& element = to[target * inner + c];
        element = Change::apply(element, updates[i + c]);
      } else if (target >= picking.axis) {
        report(wrong, index);
      }
    }
  }
}
