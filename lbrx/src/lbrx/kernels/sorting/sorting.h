// Sorting by keys: unsigned integers in the wanted order, NaN last. An entry is a key and the index of
// its element; no two entries are equal, so that every algorithm is stable.
#pragma once
#include "records/sorting.h"
using namespace metal;

constant constexpr uint UNSIGNED = 0, SIGNED = 1, HALF = 2, BFLOAT = 3, FLOAT = 4;

constant constexpr uint DIGITS = 256;  // values of one digit
constant constexpr uint SHORT_RUN = 48;  // up to this length insertion sort is faster than counting
constant constexpr uint SCANNED = 64;  // keys that are compared at once

template <typename Bits>
inline Bits key_of(Bits bits) {
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(Bits) - 1));
  bool nan = false;
  Bits key = bits;
  if (KIND == SIGNED) key = bits ^ sign;
  if (KIND >= HALF) {
    const Bits infinity = Bits(KIND == HALF ? 0x7C00u : (KIND == BFLOAT ? 0x7F80u : 0x7F800000u));
    const Bits size = bits & Bits(~sign);
    nan = size > infinity;
    // 0 and -0 are equal.
    key = bits > sign ? Bits(~bits) : Bits(size | sign);
  }
  if (DESCENDING) key = Bits(~key);
  return nan ? Bits(~Bits(0)) : key;
}

struct SmallEntry {
  ulong both;
  static SmallEntry make(uint key, uint index) { return {ulong(key) << 32 | index}; }
  uint index() const { return uint(both); }
  uint digit(uint place) const { return uint(both >> (32 + 8 * place)) % DIGITS; }
};
struct LargeEntry {
  ulong key;
  ulong at;
  static LargeEntry make(ulong key, uint index) { return {key, index}; }
  uint index() const { return uint(at); }
  uint digit(uint place) const { return uint(key >> (8 * place)) % DIGITS; }
};
inline bool before(SmallEntry a, SmallEntry b) { return a.both < b.both; }
inline bool before(LargeEntry a, LargeEntry b) {
  return a.key < b.key || (a.key == b.key && a.at < b.at);
}
inline SmallEntry last_entry(SmallEntry) { return {~0ul}; }
inline LargeEntry last_entry(LargeEntry) { return {~0ul, ~0ul}; }

// ---- serial: one thread sorts a block of a row ----

template <typename Entry>
inline void insertion_sort(device Entry* entries, uint count) {
  for (uint i = 1; i < count; i++) {
    const Entry moved = entries[i];
    uint j = i;
    for (; j > 0 && before(moved, entries[j - 1]); j--) entries[j] = entries[j - 1];
    entries[j] = moved;
  }
}

// From the least significant digit; digits in which all keys agree are skipped.
template <typename Entry, uint PLACES>
inline void radix_sort(device Entry* entries, device Entry* other, uint count,
                       thread uint (&counts)[PLACES][DIGITS]) {
  device Entry* from = entries;
  device Entry* to = other;
  for (uint place = 0; place < PLACES; place++) {
    thread uint* starts = counts[place];
    if (starts[Entry(from[0]).digit(place)] == count) continue;
    uint sum = 0;
    for (uint d = 0; d < DIGITS; d++) {
      const uint own = starts[d];
      starts[d] = sum;
      sum += own;
    }
    for (uint i = 0; i < count; i++) {
      const Entry moved = from[i];
      to[starts[moved.digit(place)]++] = moved;
    }
    device Entry* swapped = from;
    from = to;
    to = swapped;
  }
  if (from != entries)
    for (uint i = 0; i < count; i++) entries[i] = from[i];
}

template <typename Bits, typename Entry>
kernel void sort_radix(device const Bits* in [[buffer(0)]], device Entry* entries [[buffer(1)]],
                       device Entry* other [[buffer(2)]], constant BlocksRecord& blocks [[buffer(3)]],
                       uint2 at [[thread_position_in_grid]]) {
  constexpr uint PLACES = sizeof(Bits);
  const uint first = at.x * blocks.block;
  const uint count = min(blocks.block, blocks.row - first);
  const ulong start = ulong(at.y) * blocks.row + first;
  in += start;
  entries += start;
  if (count <= SHORT_RUN) {
    for (uint i = 0; i < count; i++) entries[i] = Entry::make(key_of(in[i]), first + i);
    insertion_sort(entries, count);
    return;
  }
  uint counts[PLACES][DIGITS];
  for (uint place = 0; place < PLACES; place++)
    for (uint d = 0; d < DIGITS; d++) counts[place][d] = 0;
  for (uint i = 0; i < count; i++) {
    const Entry entry = Entry::make(key_of(in[i]), first + i);
    entries[i] = entry;
    for (uint place = 0; place < PLACES; place++) counts[place][entry.digit(place)]++;
  }
  radix_sort<Entry, PLACES>(entries, other + start, count, counts);
}

// ---- merging pairs of sorted blocks ----

// How many of the first `count` merged entries come from the first block.
template <typename Entry>
inline uint taken(device const Entry* a, uint a_count, device const Entry* b, uint b_count,
                  uint count) {
  uint low = count > b_count ? count - b_count : 0;
  uint high = min(count, a_count);
  while (low < high) {
    const uint middle = (low + high) / 2;
    if (before(a[middle], b[count - 1 - middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <typename Entry>
kernel void sort_merge(device const Entry* in [[buffer(0)]], device Entry* out [[buffer(1)]],
                       constant MergingRecord& merging [[buffer(2)]],
                       uint2 at [[thread_position_in_grid]]) {
  const ulong start = ulong(at.y) * merging.row;
  const ulong pair = 2 * ulong(merging.block);
  for (ulong next = ulong(at.x) * merging.run, end = min(next + merging.run, ulong(merging.row));
       next < end;) {
    const ulong first = next / pair * pair;
    const ulong middle = min(first + merging.block, ulong(merging.row));
    const ulong last = min(first + pair, ulong(merging.row));
    device const Entry* a = in + start + first;
    device const Entry* b = in + start + middle;
    const uint a_count = uint(middle - first), b_count = uint(last - middle);
    uint i = taken(a, a_count, b, b_count, uint(next - first));
    uint j = uint(next - first) - i;
    for (const ulong stop = min(end, last); next < stop; next++) {
      const bool left = j == b_count || (i < a_count && before(a[i], b[j]));
      out[start + next] = left ? a[i] : b[j];
      i += left;
      j += !left;
    }
  }
}

// ---- a threadgroup sorts a tile in threadgroup memory and writes its first entries ----

template <typename Entry>
inline void bitonic_sort(threadgroup Entry* tile, uint count, uint lane, uint lanes) {
  for (uint size = 2; size <= count; size *= 2) {
    for (uint step = size / 2; step > 0; step /= 2) {
      for (uint i = lane; i < count / 2; i += lanes) {
        const uint low = i / step * step * 2 + i % step;
        const uint high = low + step;
        const bool up = (low & size) == 0;
        const Entry a = tile[low], b = tile[high];
        if (before(b, a) == up) {
          tile[low] = b;
          tile[high] = a;
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

template <typename Entry>
inline void put_tile(threadgroup const Entry* tile, device Entry* out, constant TilesRecord& tiles,
                     uint2 group, uint lane, uint lanes) {
  const uint first = group.x * tiles.keep;
  const uint count = min(tiles.keep, tiles.stride - first);
  out += ulong(group.y) * tiles.stride + first;
  for (uint i = lane; i < count; i += lanes) out[i] = tile[i];
}

template <typename Bits, typename Entry>
kernel void sort_tile(device const Bits* in [[buffer(0)]], device Entry* out [[buffer(1)]],
                      constant TilesRecord& tiles [[buffer(2)]],
                      threadgroup Entry* tile [[threadgroup(0)]],
                      uint2 group [[threadgroup_position_in_grid]],
                      uint2 lane [[thread_position_in_threadgroup]],
                      uint2 lanes [[threads_per_threadgroup]]) {
  const uint first = group.x * tiles.tile;
  in += ulong(group.y) * tiles.row;
  for (uint i = lane.x; i < tiles.tile; i += lanes.x) {
    const uint at = first + i;
    tile[i] = at < tiles.row ? Entry::make(key_of(in[at]), at) : last_entry(Entry());
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bitonic_sort(tile, tiles.tile, lane.x, lanes.x);
  put_tile(tile, out, tiles, group, lane.x, lanes.x);
}

// The same for entries that tiles have written.
template <typename Entry>
kernel void sort_tile_again(device const Entry* in [[buffer(0)]], device Entry* out [[buffer(1)]],
                            constant TilesRecord& tiles [[buffer(2)]],
                            threadgroup Entry* tile [[threadgroup(0)]],
                            uint2 group [[threadgroup_position_in_grid]],
                            uint2 lane [[thread_position_in_threadgroup]],
                            uint2 lanes [[threads_per_threadgroup]]) {
  const uint first = group.x * tiles.tile;
  in += ulong(group.y) * tiles.row;
  for (uint i = lane.x; i < tiles.tile; i += lanes.x)
    tile[i] = first + i < tiles.row ? in[first + i] : last_entry(Entry());
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bitonic_sort(tile, tiles.tile, lane.x, lanes.x);
  put_tile(tile, out, tiles, group, lane.x, lanes.x);
}

// ---- serial: one thread selects the first entries of a block ----

// Inserts an entry into the sorted first `count`; the last one is dropped.
template <typename Entry>
inline void insert(device Entry* best, uint count, Entry entry) {
  uint j = count - 1;
  for (; j > 0 && before(entry, best[j - 1]); j--) best[j] = best[j - 1];
  best[j] = entry;
}

template <typename Bits, typename Entry>
kernel void sort_select(device const Bits* in [[buffer(0)]], device Entry* out [[buffer(1)]],
                        constant SelectingRecord& selecting [[buffer(2)]],
                        uint2 at [[thread_position_in_grid]]) {
  const uint first = at.x * selecting.block;
  const uint count = min(selecting.block, selecting.row - first);
  const uint keep = selecting.keep;
  in += ulong(at.y) * selecting.row + first;
  device Entry* best = out + (ulong(at.y) * selecting.blocks + at.x) * keep;
  uint i = 0;
  for (; i < keep; i++) insert(best, i + 1, Entry::make(key_of(in[i]), first + i));
  Bits worst = key_of(in[Entry(best[keep - 1]).index() - first]);
  for (; i + SCANNED <= count; i += SCANNED) {
    Bits better = 0;
    for (uint j = 0; j < SCANNED; j++) better |= Bits(key_of(in[i + j]) < worst);
    if (better == 0) continue;
    for (uint j = 0; j < SCANNED; j++) {
      const Bits key = key_of(in[i + j]);
      if (key < worst) {
        insert(best, keep, Entry::make(key, first + i + j));
        worst = key_of(in[Entry(best[keep - 1]).index() - first]);
      }
    }
  }
  for (; i < count; i++) {
    const Bits key = key_of(in[i]);
    if (key < worst) {
      insert(best, keep, Entry::make(key, first + i));
      worst = key_of(in[Entry(best[keep - 1]).index() - first]);
    }
  }
}

// Merges the lists of a row's blocks.
template <typename Entry>
kernel void sort_select_again(device const Entry* in [[buffer(0)]], device Entry* out [[buffer(1)]],
                              constant SelectingRecord& selecting [[buffer(2)]],
                              uint row [[thread_position_in_grid]]) {
  const uint keep = selecting.keep;
  in += ulong(row) * selecting.blocks * keep;
  device Entry* best = out + ulong(row) * keep;
  for (uint i = 0; i < keep; i++) best[i] = in[i];
  for (uint i = keep; i < selecting.blocks * keep; i++)
    if (before(in[i], best[keep - 1])) insert(best, keep, in[i]);
}

// ---- results of entries ----

template <typename Bits, typename Entry>
kernel void sort_values(device const Bits* in [[buffer(0)]],
                        device const Entry* entries [[buffer(1)]], device Bits* out [[buffer(2)]],
                        constant ChosenRecord& chosen [[buffer(3)]],
                        uint2 at [[thread_position_in_grid]]) {
  const Entry entry = entries[ulong(at.y) * chosen.stride + at.x];
  const uint index = entry.index();
  out[ulong(at.y) * chosen.keep + at.x] = in[ulong(at.y) * chosen.row + index];
}

template <typename Entry>
kernel void sort_indices(device const Entry* entries [[buffer(0)]], device long* out [[buffer(1)]],
                         constant ChosenRecord& chosen [[buffer(2)]],
                         uint2 at [[thread_position_in_grid]]) {
  const Entry entry = entries[ulong(at.y) * chosen.stride + at.x];
  out[ulong(at.y) * chosen.keep + at.x] = entry.index();
}
