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

  // All operands of a batch are read before the first result is stored, to hide latency.
  template <typename S, typename Rounding, typename Stored>
  static void store(thread const S& steps, thread const Rounding& rounded,
                    threadgroup const float* sums, device Stored* out, ulong stride,
                    ResultPart part, bool pairs, uint thread_index) {
    constexpr uint ACROSS = G::N / 2, EACH = G::M * ACROSS / G::THREADS, BATCH = EACH < 8 ? EACH : 8;
#pragma nounroll
    for (uint first = 0; first < EACH; first += BATCH) {
      vec<Stored, 2> results[BATCH];
#pragma unroll
      for (uint b = 0; b < BATCH; b++) {
        const uint i = (first + b) * G::THREADS + thread_index;
        const uint r = min(i / ACROSS, part.rows - 1), c = i % ACROSS * 2;
        const uint left = part.column + min(c, part.columns - 1);
        const uint right = part.column + min(c + 1, part.columns - 1);
        const float2 pair = *(threadgroup const float2*)(sums + r * LEADING + c);
        results[b] = vec<Stored, 2>(steps(rounded(pair.x, left), part.first + r, left),
                                    steps(rounded(pair.y, right), part.first + r, right));
      }
#pragma unroll
      for (uint b = 0; b < BATCH; b++) {
        const uint i = (first + b) * G::THREADS + thread_index, r = i / ACROSS, c = i % ACROSS * 2;
        if (r >= part.rows || c >= part.columns) continue;
        device Stored* to = out + (part.row + r) * stride + part.column + c;
        if (pairs && c + 1 < part.columns) {
          *(device vec<Stored, 2>*)to = results[b];
        } else {
          to[0] = results[b].x;
          if (c + 1 < part.columns) to[1] = results[b].y;
        }
      }
    }
  }
};
