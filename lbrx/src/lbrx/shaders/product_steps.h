// Elementwise steps on the results of a product in tiles. Generated text comes before this: a struct
// `Steps` that computes one result, and macros of a kernel's parameters (kernels/product_steps.py).
#pragma once
#include <metal_stdlib>
using namespace metal;

#ifndef STEP_OPERANDS
#define STEP_PARAMETERS
#define STEP_TYPES
#endif

// The part of a result that a threadgroup computes.
struct ResultPart {
  uint row, column;    // of its first element
  uint rows, columns;  // at most
  uint first;          // row in all members of a batch
};

// The sums go through threadgroup memory: steps may need their registers, and read operands by rows.
// `Engine` has the sums of a lane; `Rounding` makes a product of a sum and its column.
template <typename G>
struct SteppedResults {
  static constant constexpr uint LEADING = G::N + 4;

  template <typename Engine>
  static void put(threadgroup float* sums, thread const Engine& engine, uint simdgroup, uint lane) {
#pragma unroll
    for (uint i = 0; i < Engine::DOWN; i++)
#pragma unroll
      for (uint j = 0; j < Engine::ACROSS; j++) {
        const uint row = Engine::row(simdgroup, lane, i), column = Engine::column(simdgroup, lane, j);
        *(threadgroup float2*)(sums + row * LEADING + column) = engine.pair(i, j);
      }
  }

  template <typename S, typename Rounding, typename Stored>
  static void store(thread const S& steps, thread const Rounding& rounded,
                    threadgroup const float* sums, device Stored* out, ulong stride,
                    ResultPart part, bool pairs, uint thread_index) {
#pragma nounroll
    for (uint i = thread_index; i < G::M * G::N / 2; i += G::THREADS) {
      const uint r = i / (G::N / 2), c = i % (G::N / 2) * 2, column = part.column + c;
      if (r >= part.rows || c >= part.columns) continue;
      const float2 pair = *(threadgroup const float2*)(sums + r * LEADING + c);
      device Stored* to = out + (part.row + r) * stride + column;
      const Stored left = steps(rounded(pair.x, column), part.first + r, column);
      if (c + 1 == part.columns) {
        to[0] = left;
        continue;
      }
      const Stored right = steps(rounded(pair.y, column + 1), part.first + r, column + 1);
      if (pairs) {
        *(device vec<Stored, 2>*)to = vec<Stored, 2>(left, right);
      } else {
        to[0] = left;
        to[1] = right;
      }
    }
  }
};
