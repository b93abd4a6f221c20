// Masks of the differences between a tensor and its base, by magnitude. Elements are compared by the
// bits of abs(x - base), an order without ties between different values. The k-th largest of all is
// found by two histograms, of the upper 16 bits and of the lower 15 bits below a chosen upper half.
// A thread reads a long chunk; no result depends on the number of chunks.
#pragma once
#include "philox.h"
#include "records/merge_masks.h"

constant constexpr uint LOW_BITS = 15;
constant constexpr uint HIGH_BINS = 1 << 16;
constant constexpr uint LOW_BINS = 1 << LOW_BITS;
constant constexpr uint LANES = 16;  // elements that are looked at together

// Elements from a position on. Loops over lanes index it from 0, so that the compiler sees that
// indices do not wrap and makes vectors.
template <typename T>
struct Differences {
  device const T* x;
  device const T* base;

  Differences from(uint i) const { return {x + i, base + i}; }

  uint magnitude(uint i) const {
    const float value = HAS_BASE ? float(x[i]) - float(base[i]) : float(x[i]);
    return as_type<uint>(value) & 0x7FFFFFFFu;
  }
};

// Where a cut is: elements above `key` are before it, and as many equal ones as `budget` says.
struct Cut {
  uint high;       // upper half of the key
  uint remaining;  // elements with that upper half that are before the cut
  uint key;
  uint budget;
};

// One histogram for each chunk.
template <typename T>
kernel void merge_count_high(device const T* x [[buffer(0)]], device const T* base [[buffer(1)]],
                             device uint* counts [[buffer(2)]],
                             constant SelectionRecord& what [[buffer(3)]],
                             uint chunk [[thread_position_in_grid]]) {
  device uint* own = counts + ulong(chunk) * HIGH_BINS;
  for (uint bin = 0; bin < HIGH_BINS; bin++) own[bin] = 0;
  const uint begin = chunk * what.chunk, end = min(begin + what.chunk, what.size);
  const Differences<T> all{x, base};
  uint i = begin;
  for (; i + LANES <= end; i += LANES) {
    const Differences<T> here = all.from(i);
    uint bins[LANES];
    for (uint lane = 0; lane < LANES; lane++) bins[lane] = here.magnitude(lane) >> LOW_BITS;
    for (uint lane = 0; lane < LANES; lane++) own[bins[lane]]++;
  }
  for (; i < end; i++) own[all.magnitude(i) >> LOW_BITS]++;
}

// One histogram for each cut and chunk, of the elements whose upper half is the cut's.
template <typename T>
kernel void merge_count_low(device const T* x [[buffer(0)]], device const T* base [[buffer(1)]],
                            device uint* counts [[buffer(2)]],
                            constant SelectionRecord& what [[buffer(3)]],
                            device const Cut* cuts [[buffer(4)]],
                            uint2 at [[thread_position_in_grid]]) {
  device uint* own = counts + (ulong(at.y) * what.chunks + at.x) * LOW_BINS;
  for (uint bin = 0; bin < LOW_BINS; bin++) own[bin] = 0;
  const uint begin = at.x * what.chunk, end = min(begin + what.chunk, what.size);
  const uint high = cuts[at.y].high;
  const Differences<T> all{x, base};
  uint i = begin;
  for (; i + LANES <= end; i += LANES) {
    const Differences<T> here = all.from(i);
    uint keys[LANES];
    uint found = 0;
    for (uint lane = 0; lane < LANES; lane++) {
      keys[lane] = here.magnitude(lane);
      found |= uint(keys[lane] >> LOW_BITS == high);
    }
    if (!found) continue;
    for (uint lane = 0; lane < LANES; lane++)
      if (keys[lane] >> LOW_BITS == high) own[keys[lane] % LOW_BINS]++;
  }
  for (; i < end; i++) {
    const uint key = all.magnitude(i);
    if (key >> LOW_BITS == high) own[key % LOW_BINS]++;
  }
}

// The histograms of all chunks added; y is the cut.
kernel void merge_totals(device const uint* counts [[buffer(0)]], device uint* totals [[buffer(1)]],
                         constant uint2& bins_and_chunks [[buffer(2)]],
                         uint2 at [[thread_position_in_grid]]) {
  const uint bins = bins_and_chunks.x, chunks = bins_and_chunks.y;
  device const uint* own = counts + ulong(at.y) * chunks * bins;
  uint total = 0;
  for (uint chunk = 0; chunk < chunks; chunk++) total += own[ulong(chunk) * bins + at.x];
  totals[at.y * bins + at.x] = total;
}

// The bin in which the cut falls, from the largest one down, and the elements of it before the cut.
inline uint2 cut_bin(device const uint* totals, uint bins, uint rank) {
  uint left = rank, bin = bins - 1;
  for (; bin > 0 && totals[bin] < left; bin--) left -= totals[bin];
  return uint2(bin, min(left, totals[bin]));
}

kernel void merge_cut_high(device const uint* totals [[buffer(0)]], device Cut* cuts [[buffer(1)]],
                           constant SelectionRecord& what [[buffer(2)]],
                           uint cut [[thread_position_in_grid]]) {
  const uint2 found = cut_bin(totals, HIGH_BINS, what.ranks[cut]);
  cuts[cut].high = found.x;
  cuts[cut].remaining = found.y;
}

// Also tells each chunk how many of its elements equal to the cut's key are before the cut.
kernel void merge_cut_low(device const uint* totals [[buffer(0)]],
                          device const uint* counts [[buffer(1)]], device Cut* cuts [[buffer(2)]],
                          device uint* budgets [[buffer(3)]],
                          constant SelectionRecord& what [[buffer(4)]],
                          uint cut [[thread_position_in_grid]]) {
  if (what.ranks[cut] == 0) {  // nothing is before it; its elements were not counted
    cuts[cut].key = 0x80000000u;  // above all magnitudes
    for (uint chunk = 0; chunk < what.chunks; chunk++) budgets[cut * what.chunks + chunk] = 0;
    return;
  }
  const uint2 found = cut_bin(totals + cut * LOW_BINS, LOW_BINS, cuts[cut].remaining);
  cuts[cut].key = cuts[cut].high << LOW_BITS | found.x;
  uint left = found.y;
  for (uint chunk = 0; chunk < what.chunks; chunk++) {
    const uint here = counts[(ulong(cut) * what.chunks + chunk) * LOW_BINS + found.x];
    const uint taken = min(left, here);
    budgets[cut * what.chunks + chunk] = taken;
    left -= taken;
  }
}

// True for elements before the first cut and not before the second. The elements equal to a cut's key
// are all on one side of it, except in one group of lanes.
template <typename T>
kernel void merge_cut_mask(device const T* x [[buffer(0)]], device const T* base [[buffer(1)]],
                           device bool* mask [[buffer(2)]],
                           constant SelectionRecord& what [[buffer(3)]],
                           device const Cut* cuts [[buffer(4)]],
                           device const uint* budgets [[buffer(5)]],
                           uint chunk [[thread_position_in_grid]]) {
  const uint begin = chunk * what.chunk, end = min(begin + what.chunk, what.size);
  const uint outer = cuts[0].key, inner = cuts[1].key;
  uint outer_left = budgets[chunk], inner_left = budgets[what.chunks + chunk];
  const Differences<T> all{x, base};
  for (uint start = begin; start < end; start += LANES) {
    const Differences<T> here = all.from(start);
    device bool* to = mask + start;
    const uint count = min(LANES, end - start);
    uint keys[LANES];
    uint outers = 0, inners = 0;
    if (count == LANES) {
      for (uint lane = 0; lane < LANES; lane++) {
        keys[lane] = here.magnitude(lane);
        outers += uint(keys[lane] == outer);
        inners += uint(keys[lane] == inner);
      }
      const uint from = outer + uint(outer_left < outers), below = inner + uint(inner_left < inners);
      if ((outer_left >= outers || outer_left == 0) && (inner_left >= inners || inner_left == 0)) {
        for (uint lane = 0; lane < LANES; lane++) to[lane] = keys[lane] >= from && keys[lane] < below;
        outer_left -= min(outer_left, outers);
        inner_left -= min(inner_left, inners);
        continue;
      }
    }
    for (uint lane = 0; lane < count; lane++) {
      const uint key = here.magnitude(lane);
      bool before = key > outer, inside = key > inner;
      if (key == outer && outer_left) { before = true; outer_left--; }
      if (key == inner && inner_left) { inside = true; inner_left--; }
      to[lane] = before && !inside;
    }
  }
}

// ---- random masks ----

constant constexpr uint GROUP = 8 * LANES;  // elements whose draws are made together

// 16-bit draws from Philox, with neighbouring counters in lanes: the compiler makes vectors of the
// inner loops. The lower and upper halves of a counter's four words belong to elements LANES apart.
inline void draw(StreamRecord stream, uint first, thread ushort (&draws)[GROUP]) {
  uint a[LANES], b[LANES], c[LANES], d[LANES];
  for (uint lane = 0; lane < LANES; lane++) {
    const ulong counter = stream.counter + first + lane;
    a[lane] = uint(counter);
    b[lane] = uint(counter >> 32);
    c[lane] = d[lane] = 0;
  }
  uint2 key = as_type<uint2>(stream.key);
  for (int round = 0; round < 10; round++) {
    for (uint lane = 0; lane < LANES; lane++) {
      const ulong first = ulong(a[lane]) * 0xD2511F53u, second = ulong(c[lane]) * 0xCD9E8D57u;
      a[lane] = uint(second >> 32) ^ b[lane] ^ key.x;
      c[lane] = uint(first >> 32) ^ d[lane] ^ key.y;
      b[lane] = uint(second);
      d[lane] = uint(first);
    }
    key += uint2(0x9E3779B9u, 0xBB67AE85u);
  }
  for (uint lane = 0; lane < LANES; lane++) {
    draws[lane] = ushort(a[lane]);
    draws[LANES + lane] = ushort(a[lane] >> 16);
    draws[2 * LANES + lane] = ushort(b[lane]);
    draws[3 * LANES + lane] = ushort(b[lane] >> 16);
    draws[4 * LANES + lane] = ushort(c[lane]);
    draws[5 * LANES + lane] = ushort(c[lane] >> 16);
    draws[6 * LANES + lane] = ushort(d[lane]);
    draws[7 * LANES + lane] = ushort(d[lane] >> 16);
  }
}

// Sums of all magnitudes of a row and of the kept ones, a part for each place in a group.
struct Norms {
  float all[GROUP] = {};
  float kept[GROUP] = {};

  void store(device float* norms) const {
    float total = 0, part = 0;
    for (uint i = 0; i < GROUP; i++) {
      total += all[i];
      part += kept[i];
    }
    norms[0] = total;
    norms[1] = part;
  }
};

// One probability for all elements. A worker takes every n-th row.
template <typename T>
kernel void merge_bernoulli(device const T* x [[buffer(0)]], device const T* base [[buffer(1)]],
                            device bool* mask [[buffer(2)]], device float* norms [[buffer(3)]],
                            constant MaskRowsRecord& what [[buffer(4)]],
                            constant StreamRecord& stream [[buffer(5)]],
                            uint worker [[thread_position_in_grid]]) {
  const uint length = what.length, groups = (length + GROUP - 1) / GROUP;
  const StreamRecord own = stream;
  const float limit = what.low;
  for (uint row = worker; row < what.rows; row += what.workers) {
    const Differences<T> elements = Differences<T>{x, base}.from(row * length);
    Norms sums;
    for (uint group = 0; group < groups; group++) {
      ushort draws[GROUP];
      draw(own, (row * groups + group) * LANES, draws);
      const Differences<T> here = elements.from(group * GROUP);
      device bool* to = mask + (row * length + group * GROUP);
      const uint count = min(GROUP, length - group * GROUP);
      for (uint i = 0; i < count; i++) {
        const float size = as_type<float>(here.magnitude(i));
        const bool keep = float(draws[i]) < limit;
        to[i] = keep;
        sums.all[i] += size;
        sums.kept[i] += keep ? size : 0.0f;
      }
    }
    sums.store(norms + 2 * row);
  }
}

// Bins of a row: eight octaves below its largest magnitude, 64 bins each; all smaller ones in the
// first. Magnitudes of one bin are few, or equal.
constant constexpr uint OCTAVES = 8u << 23;
constant constexpr uint BIN_BITS = 17;
constant constexpr uint RANK_BINS = (OCTAVES >> BIN_BITS) + 2;

inline uint rank_bin(uint key, uint smallest) {
  return key < smallest ? 0 : ((key - smallest) >> BIN_BITS) + 1;
}

// Elements of a row with a lower rank than the one at `own`.
inline uint rank_of(device const uint* keys, uint length, uint own) {
  const uint key = keys[own];
  uint rank = 0;
  for (uint i = 0; i < own; i++) rank += uint(keys[i] <= key);
  device const uint* rest = keys + own;
  for (uint i = 0; i < length - own; i++) rank += uint(rest[i] < key);
  return rank;
}

// Keys of a row, and for each bin the elements in lower bins; returns the first key of bin 1.
template <typename T>
inline uint count_row(Differences<T> row, uint length, device uint* keys, device uint* lower) {
  uint largest = 0;
  for (uint i = 0; i < length; i++) {
    const uint key = row.magnitude(i);
    keys[i] = key;
    largest = max(largest, key);
  }
  const uint smallest = max(largest, OCTAVES) - OCTAVES;
  for (uint bin = 0; bin <= RANK_BINS; bin++) lower[bin] = 0;
  for (uint i = 0; i < length; i++) lower[rank_bin(keys[i], smallest) + 1]++;
  uint total = 0;
  for (uint bin = 0; bin <= RANK_BINS; bin++) {
    total += lower[bin];
    lower[bin] = total;
  }
  return smallest;
}

// Scratch memory of a worker holds the keys and bins of one row. The probability rises with the rank:
// a draw decides an element unless it separates the ranks that the element's bin can have. The rank
// is counted then.
template <typename T>
kernel void merge_rank_bernoulli(device const T* x [[buffer(0)]],
                                 device const T* base [[buffer(1)]],
                                 device bool* mask [[buffer(2)]], device float* norms [[buffer(3)]],
                                 constant MaskRowsRecord& what [[buffer(4)]],
                                 constant StreamRecord& stream [[buffer(5)]],
                                 device uint* scratch [[buffer(6)]],
                                 uint worker [[thread_position_in_grid]]) {
  const uint length = what.length, groups = (length + GROUP - 1) / GROUP;
  const float low = what.low, step = what.step;
  const StreamRecord own = stream;
  device uint* keys = scratch + ulong(worker) * (length + RANK_BINS + 1);
  device uint* lower = keys + length;
  for (uint row = worker; row < what.rows; row += what.workers) {
    const Differences<T> elements = Differences<T>{x, base}.from(row * length);
    const uint smallest = count_row(elements, length, keys, lower);
    Norms sums;
    for (uint group = 0; group < groups; group++) {
      ushort draws[GROUP];
      draw(own, (row * groups + group) * LANES, draws);
      device const uint* here = keys + group * GROUP;
      device bool* to = mask + (row * length + group * GROUP);
      const uint count = min(GROUP, length - group * GROUP);
      uint first[GROUP], last[GROUP], open[GROUP] = {};
      for (uint i = 0; i < count; i++) {
        const uint bin = rank_bin(here[i], smallest);
        first[i] = lower[bin];
        last[i] = lower[bin + 1] - 1;
      }
      for (uint i = 0; i < count; i++) {
        const float drawn = float(draws[i]), size = as_type<float>(here[i]);
        const bool keep = drawn < low + float(first[i]) * step;
        open[i] = uint(drawn < low + float(last[i]) * step) & uint(!keep);
        to[i] = keep;
        sums.all[i] += size;
        sums.kept[i] += keep ? size : 0.0f;
      }
      for (uint start = 0; start < count; start += LANES) {
        uint any = 0;
        for (uint lane = 0; lane < LANES; lane++) any |= open[start + lane];
        for (uint i = start; any && i < start + LANES; i++) {
          if (!open[i]) continue;
          const float rank = float(rank_of(keys, length, group * GROUP + i));
          if (float(draws[i]) >= low + rank * step) continue;
          to[i] = true;
          sums.kept[i] += as_type<float>(here[i]);
        }
      }
    }
    sums.store(norms + 2 * row);
  }
}

// ---- inner products ----

// The sums of x x, x y and y y over rows. A worker takes every n-th row.
template <typename T>
kernel void merge_products(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                           device const T* base [[buffer(2)]], device float* out [[buffer(3)]],
                           constant MaskRowsRecord& what [[buffer(4)]],
                           uint worker [[thread_position_in_grid]]) {
  const uint length = what.length;
  for (uint row = worker; row < what.rows; row += what.workers) {
    float xx[GROUP] = {}, xy[GROUP] = {}, yy[GROUP] = {};
    for (uint start = 0; start < length; start += GROUP) {
      device const T* a = x + (row * length + start);
      device const T* b = y + (row * length + start);
      device const T* c = base + (row * length + start);
      const uint count = min(GROUP, length - start);
      for (uint i = 0; i < count; i++) {
        const float p = HAS_BASE ? float(a[i]) - float(c[i]) : float(a[i]);
        const float q = HAS_BASE ? float(b[i]) - float(c[i]) : float(b[i]);
        xx[i] += p * p;
        xy[i] += p * q;
        yy[i] += q * q;
      }
    }
    float sums[3] = {};
    for (uint i = 0; i < GROUP; i++) {
      sums[0] += xx[i];
      sums[1] += xy[i];
      sums[2] += yy[i];
    }
    for (uint i = 0; i < 3; i++) out[3 * row + i] = sums[i];
  }
}
