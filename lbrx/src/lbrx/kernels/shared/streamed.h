// Results that are written past the caches of a CPU. A store to memory that is not in a cache reads
// its line first; a store of a whole line past the caches does not, and leaves there what is read
// again. A thread computes results in private memory and then writes them here.
// Files that include this are not compiled by Apple's compiler.
#pragma once
#pragma softmetal extensions
#include <metal_stdlib>
using namespace metal;

constant constexpr uint CACHE_LINE = 64;  // bytes

typedef uint LineOfMemory __attribute__((ext_vector_type(16), may_alias));
typedef uint PrivateLine __attribute__((ext_vector_type(16), aligned(1), may_alias));

template <typename T>
inline void write_streamed(device T* to, thread const T* from, uint count) {
  constexpr uint N = CACHE_LINE / sizeof(T);
  const uint before = uint(-reinterpret_cast<ulong>(to) % CACHE_LINE / sizeof(T));
  uint i = 0;
  for (; i < min(before, count); i++) to[i] = from[i];
  for (; i + N <= count; i += N)
    __builtin_nontemporal_store(*reinterpret_cast<thread const PrivateLine*>(from + i),
                                reinterpret_cast<device LineOfMemory*>(to + i));
  for (; i < count; i++) to[i] = from[i];
}

constant constexpr uint OWN_BYTES = 32 << 10;  // of private memory for the results of a row

// Private memory as kernels of rows take the memory of their results.
template <typename T>
inline device T* results_in(thread T* own) {
  return (device T*)own;
}

// Asks for bytes that the thread reads soon.
inline void read_ahead(device const void* from, uint bytes) {
  for (uint i = 0; i < bytes; i += CACHE_LINE)
    __builtin_prefetch(static_cast<device const char*>(from) + i);
}
