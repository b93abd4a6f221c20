#pragma once
#include <metal_stdlib>
using namespace metal;

template <typename T>
kernel void neighbours(device const T* x [[buffer(0)]], device T* result [[buffer(1)]],
                       constant uint& length [[buffer(2)]],
                       uint2 at [[thread_position_in_grid]]) {
  device const T* row = x + ulong(at.y) * (length + 1);
  result[ulong(at.y) * length + at.x] = row[at.x] + row[at.x + 1];
}
