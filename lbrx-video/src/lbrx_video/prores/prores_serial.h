// ProRes for CPUs: a thread decodes a slice, codes and transform, through its first-level cache.
#pragma once
#include "prores_entropy.h"
#include "prores_transform.h"
#include "wide.h"

constant constexpr uint PAIR = 16;  // lanes: a row or column of two blocks
template <uint N> using Ushorts = ushort __attribute__((ext_vector_type(N)));
template <uint N> using Uints = uint __attribute__((ext_vector_type(N)));
// A part of a row of samples or coefficients, aligned to its elements only.
template <typename T>
using Samples8 __attribute__((ext_vector_type(8), aligned(2))) = T;
template <typename T>
using Samples16 __attribute__((ext_vector_type(16), aligned(2))) = T;

// Bits from bytes of memory. Eight bytes from any byte of a slice on can be read.
struct ByteBits : BitBuffer {
  device const uchar* at;
  device const uchar* end;

  ByteBits(device const uchar* data, Span span) : at(data + span.start), end(data + span.end) {
    buffer = 0;
    count = 0;
  }

  // Eight bytes, the first one highest.
  ulong eight() const {
    return ulong(at[0]) << 56 | ulong(at[1]) << 48 | ulong(at[2]) << 40 | ulong(at[3]) << 32 |
           ulong(at[4]) << 24 | ulong(at[5]) << 16 | ulong(at[6]) << 8 | ulong(at[7]);
  }

  // The same with zeros beyond the end.
  ulong load() const {
    const long valid = end - at;
    return valid >= 8 ? eight() : eight() & ~0ul << (64 - 8 * valid);
  }

  // Bits that are already there are read again and do not change. 56 or more are there afterwards.
  void refill() {
    if (at < end) add(load());
  }

  void add(ulong bytes) {
    buffer |= bytes >> count;
    at += (63 - count) >> 3;
    count |= 56;
  }

  int left() const { return int(end - at) * 8 + int(count); }
};

// Coefficients of a slice's component, each block by columns.
struct ThreadBlocks {
  thread short* blocks;
  void operator()(uint i, short value) const { blocks[i] = value; }
};

struct ThreadSamples {
  thread ushort* samples;
  void operator()(uint i, ushort value) const { samples[i] = value; }
};

// A vector for each column becomes one for each row, in both blocks.
inline void transpose_pair(thread Shorts<PAIR> (&x)[SIDE]) {
#pragma unroll
  for (uint round = 0; round < 3; round++) {
    Shorts<PAIR> next[SIDE];
#pragma unroll
    for (uint i = 0; i < SIDE / 2; i++) {
      const Shorts<PAIR> a = x[i], b = x[i + SIDE / 2];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26,
                                            11, 27);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29,
                                                14, 30, 15, 31);
    }
#pragma unroll
    for (uint i = 0; i < SIDE; i++) x[i] = next[i];
  }
}

inline Uints<PAIR> widened(Shorts<PAIR> x) {
  return __builtin_bit_cast(Uints<PAIR>, __builtin_convertvector(x, Ints<PAIR>));
}

inline Ints<PAIR> limited(Ints<PAIR> x, int low, int high) {
  return __builtin_elementwise_min(__builtin_elementwise_max(x, Ints<PAIR>(low)), Ints<PAIR>(high));
}

template <bool SATURATES>
inline Shorts<PAIR> shifted(Uints<PAIR> x, uint by) {
  const Ints<PAIR> whole = __builtin_bit_cast(Ints<PAIR>, x) >> int(by);
  return __builtin_convertvector(SATURATES ? limited(whole, -32768, 32767) : whole, Shorts<PAIR>);
}

inline Shorts<PAIR> raised(Shorts<PAIR> x) {
  return __builtin_bit_cast(Shorts<PAIR>, __builtin_bit_cast(Ushorts<PAIR>, x) + HALF_RANGE);
}

inline Ushorts<PAIR> clipped(Uints<PAIR> sums, uint shift) {
  const Ints<PAIR> samples = __builtin_bit_cast(Ints<PAIR>, sums) >> int(shift);
  return __builtin_convertvector(limited(samples, LOWEST, highest()), Ushorts<PAIR>);
}

// Column k of two blocks, times its weights.
inline Ushorts<PAIR> weighted(thread const short* blocks, thread const ushort* weights, uint k) {
  thread const Samples8<ushort>* columns = reinterpret_cast<thread const Samples8<ushort>*>(blocks);
  const Samples8<ushort> by = reinterpret_cast<thread const Samples8<ushort>*>(weights)[k];
  const Samples8<ushort> a = columns[k] * by, b = columns[k + SIDE] * by;
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// The samples of two blocks: `rows` has their rows side by side.
template <typename C>
inline void transform_pair(thread const short* blocks, thread const ushort* weights,
                           thread Ushorts<PAIR> (&rows)[SIDE]) {
  Uints<PAIR> in[SIDE], out[SIDE];
  Shorts<PAIR> between[SIDE];
  Ushorts<PAIR> others = 0;
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    const Ushorts<PAIR> column = weighted(blocks, weights, k);
    if (k > 0) others |= column;
    in[k] = widened(__builtin_bit_cast(Shorts<PAIR>, column));
  }
  const Shorts<PAIR> lone = shifted<false>(in[0] + 1, 1);
  const Ushorts<PAIR> below_first = {0, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF,
                                     0, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF};
  const Ushorts<PAIR> first = __builtin_convertvector(in[0], Ushorts<PAIR>);
  if (__builtin_reduce_or(others | (first & below_first)) == 0) {  // flat blocks
    const Shorts<PAIR> level = __builtin_shufflevector(lone, lone, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8,
                                                       8, 8, 8, 8, 8);
    const Uints<PAIR> sums = widened(raised(level)) * C::W4 + column_rounding<C>();
    const Ushorts<PAIR> row = clipped(sums, C::COLUMN_SHIFT);
#pragma unroll
    for (uint k = 0; k < SIDE; k++) rows[k] = row;
    return;
  }
  transform<C>(in, Uints<PAIR>(1u << (C::ROW_SHIFT - 1)), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    between[k] = shifted<C::SATURATES>(out[k], C::ROW_SHIFT);
    if (C::ROUNDS_LONE_DC) between[k] = others == 0 ? lone : between[k];
  }
  transpose_pair(between);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) in[k] = widened(k == 0 ? raised(between[0]) : between[k]);
  transform<C>(in, Uints<PAIR>(column_rounding<C>()), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) rows[k] = clipped(out[k], C::COLUMN_SHIFT);
}

// Eight rows of a block, those parts of them that are within the plane.
inline void put_block(Plane plane, uint2 place, thread const Ushorts<PAIR> (&rows)[SIDE],
                      uint second) {
  const uint x = place.x * SIDE, y = place.y * SIDE;
  if (x >= plane.width) return;
  const uint columns = min(plane.width - x, SIDE);
  for (uint k = 0; k < SIDE && y + k < plane.rows; k++)
    for (uint i = 0; i < columns; i++) plane.at(x, y + k)[i] = rows[k][second * SIDE + i];
}

inline void put_pair(Plane plane, uint2 place, bool beside,
                     thread const Ushorts<PAIR> (&rows)[SIDE]) {
  const uint x = place.x * SIDE, y = place.y * SIDE;
  const uint2 end = beside ? uint2(x + PAIR, y + SIDE) : uint2(x + SIDE, y + PAIR);
  if (end.x > plane.width || end.y > plane.rows) {
    put_block(plane, place, rows, 0);
    put_block(plane, place + (beside ? uint2(1, 0) : uint2(0, 1)), rows, 1);
    return;
  }
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    if (beside) {
      *reinterpret_cast<device Samples16<ushort>*>(plane.at(x, y + k)) = rows[k];
    } else {
      *reinterpret_cast<device Samples8<ushort>*>(plane.at(x, y + k)) = rows[k].lo;
      *reinterpret_cast<device Samples8<ushort>*>(plane.at(x, y + k + SIDE)) = rows[k].hi;
    }
  }
}

// A slice with what its picture and its header say.
struct OpenSlice {
  ProresSliceRecord slice;
  device const ProresPictureRecord* picture;
  SliceHeader header;
  alignas(64) ushort weights[2][AREA];  // of luma and chroma, by columns

  void open(device const uchar* data, device const ProresSliceRecord* from,
            device const ProresPictureRecord* pictures) {
    slice = *from;
    picture = pictures + slice.picture;
    header = read_slice_header(data, slice, picture->alpha_bits != 0);
    for (uint kind = 0; kind < 2; kind++) {
      device const uchar* matrix = picture->quantization[kind];
      for (uint i = 0; i < AREA; i++)
        weights[kind][i] = ushort(matrix[i % SIDE * SIDE + i / SIDE] * header.scale);
    }
  }
};

// The codes of a slice's component, and where its coefficients go.
struct Codes {
  ByteBits bits;
  CodeState state;
  uint log2;  // of blocks
  device const uchar* scan;
  ThreadBlocks store;
  Step step;

  Codes(thread const OpenSlice& open, uint component, device const uchar* data,
        device const uint* tables, device const uchar* scans, thread short* to)
      : bits(data, open.header.span(open.slice, component)),
        state{tables[RUN_STARTS + FIRST_RUN], tables[LEVEL_STARTS + FIRST_LEVEL], 0},
        log2(log2_blocks(open.slice, component)),
        scan(scans + scan_by_columns(*open.picture)),
        store{to},
        step(Step::MORE) {
    state.position = (1u << log2) - 1;
  }

  void clear() {
    const uint count = AREA << log2;
    for (uint i = 0; i < count; i++) store.blocks[i] = 0;
  }

  // Whether eight bytes can be read within the component.
  bool is_inside() const { return bits.end - bits.at >= 8; }

  bool read(device const uint* tables) {
    step = read_coefficient(bits, state, tables, scan, log2, store);
    return step == Step::MORE;
  }

  void read_rest(device const uint* tables) {
    if (step != Step::MORE) return;
    do bits.refill();
    while (read(tables));
  }
};

// The first coefficients of two slices in turns.
inline void read_first(thread Codes& a, thread Codes& b, device const uint* tables) {
  a.clear();
  b.clear();
  FirstCoefficients in_a, in_b;
  in_a.start(a.bits, a.store);
  in_b.start(b.bits, b.store);
  const uint count_a = 1u << a.log2, count_b = 1u << b.log2, both = min(count_a, count_b);
  for (uint block = 1; block < both; block++) {
    in_a.next(a.bits, tables, block, a.store);
    in_b.next(b.bits, tables, block, b.store);
  }
  for (uint block = both; block < count_a; block++) in_a.next(a.bits, tables, block, a.store);
  for (uint block = both; block < count_b; block++) in_b.next(b.bits, tables, block, b.store);
  if (in_a.damaged || a.bits.left() < 0) a.step = Step::DAMAGE;
  if (in_b.damaged || b.bits.left() < 0) b.step = Step::DAMAGE;
}

// Coefficients of two slices in turns: each code depends on the one before it, and a processor
// works on both while it waits. After a refill there are bits for two coefficients of usual length.
// A function of its own has the registers for itself.
__attribute__((noinline)) inline void read_pair(thread Codes& first, thread Codes& second,
                                                device const uint* tables) {
  Codes a = first, b = second;
  read_first(a, b, tables);
  if (a.step == Step::MORE && b.step == Step::MORE) {
    while (a.is_inside() && b.is_inside()) {
      a.bits.add(a.bits.eight());
      b.bits.add(b.bits.eight());
      if (!a.read(tables) || !b.read(tables)) break;
      if (!a.read(tables) || !b.read(tables)) break;
    }
  }
  a.read_rest(tables);
  b.read_rest(tables);
  first.step = a.step;
  second.step = b.step;
}

// The part of a plane that belongs to a slice, with one value.
inline void fill(Plane plane, ProresSliceRecord slice, uint component, ushort value) {
  const uint width = slice_columns(component);
  const uint left = slice.column * width, top = slice.row * 2 * SIDE;
  const uint right = min(left + (width << slice.log2_macroblocks), plane.width);
  const uint bottom = min(top + 2 * SIDE, plane.rows);
  for (uint row = top; row < bottom; row++)
    for (uint column = left; column < right; column++) *plane.at(column, row) = value;
}

// Stores the samples of a component and returns its state.
template <typename C>
inline uint put_component(thread const OpenSlice& open, uint component, bool intact, Plane plane,
                          thread const short* blocks) {
  if (component != LUMA && !open.header.has_chroma()) {
    fill(plane, open.slice, component, no_chroma());
    return open.header.state;
  }
  const uint count = 1u << log2_blocks(open.slice, component);
  for (uint block = 0; block < count; block += 2) {
    Ushorts<PAIR> rows[SIDE];
    transform_pair<C>(blocks + block * AREA, open.weights[component != LUMA], rows);
    put_pair(plane, block_place(open.slice, component, block), component == LUMA, rows);
  }
  return open.header.state | (intact ? INTACT : BAD_CODES);
}

// Stores the samples of alpha and returns its state.
inline uint put_alpha(thread const OpenSlice& open, device const uchar* data, Plane plane,
                      thread ushort* samples) {
  const ProresSliceRecord slice = open.slice;
  const uint log2 = slice.log2_macroblocks + 4, columns = 1u << log2, count = columns * 2 * SIDE;
  const uint x = slice.column * 2 * SIDE, y = slice.row * 2 * SIDE;
  ByteBits bits(data, open.header.span(slice, ALPHA));
  const bool intact = read_alpha(bits, open.picture->alpha_bits, count, ThreadSamples{samples});
  const uint right = min(x + columns, plane.width), bottom = min(y + 2 * SIDE, plane.rows);
  for (uint row = y; row < bottom; row++) {
    thread const ushort* from = samples + ((row - y) << log2);
    for (uint column = x; column < right; column++) *plane.at(column, row) = from[column - x];
  }
  return intact || open.header.sizes[ALPHA] == 0 ? INTACT : BAD_CODES;
}

// A thread for two slices. Without a second one, the last slice is read twice and stored once.
kernel void prores_slices(device const uchar* data [[buffer(0)]],
                          device const ProresSliceRecord* slices [[buffer(1)]],
                          device const ProresPictureRecord* pictures [[buffer(2)]],
                          constant ProresBatchRecord& batch [[buffer(3)]],
                          device const uint* tables [[buffer(4)]],
                          device const uchar* scans [[buffer(5)]], device ushort* y [[buffer(6)]],
                          device ushort* cb [[buffer(7)]], device ushort* cr [[buffer(8)]],
                          device ushort* alpha [[buffer(9)]], device uint* states [[buffer(10)]],
                          uint at [[thread_position_in_grid]]) {
  const uint first = 2 * at, count = min(batch.slices - first, 2u);
  device ushort* const planes[COMPONENTS] = {y, cb, cr, alpha};
  alignas(64) short blocks[2][MOST_BLOCKS * AREA];
  OpenSlice open[2];
  for (uint s = 0; s < 2; s++) open[s].open(data, slices + first + min(s, count - 1), pictures);
  for (uint c = 0; c < ALPHA; c++) {
    Codes a(open[0], c, data, tables, scans, blocks[0]);
    Codes b(open[1], c, data, tables, scans, blocks[1]);
    read_pair(a, b, tables);
    for (uint s = 0; s < count; s++) {
      const Plane plane = plane_of(planes[c], batch, *open[s].picture, c);
      const bool intact = (s == 0 ? a.step : b.step) == Step::END;
      states[(first + s) * COMPONENTS + c] =
          HAS_12_BITS ? put_component<Cosines12>(open[s], c, intact, plane, blocks[s])
                      : put_component<Cosines10>(open[s], c, intact, plane, blocks[s]);
    }
  }
  for (uint s = 0; s < count; s++) {
    uint state = INTACT;
    if (open[s].picture->alpha_bits != 0) {
      const Plane plane = plane_of(alpha, batch, *open[s].picture, ALPHA);
      state = put_alpha(open[s], data, plane, reinterpret_cast<thread ushort*>(blocks[s]));
    }
    states[(first + s) * COMPONENTS + ALPHA] = state;
  }
}
