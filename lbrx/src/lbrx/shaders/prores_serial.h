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
struct ByteBits {
  device const uchar* at;
  device const uchar* end;
  ulong buffer;
  uint count;

  ByteBits(device const uchar* data, Span span)
      : at(data + span.start), end(data + span.end), buffer(0), count(0) {}

  // Eight bytes, the first one highest; zeros beyond the end.
  ulong load() const {
    const ulong all = ulong(at[0]) << 56 | ulong(at[1]) << 48 | ulong(at[2]) << 40 |
                      ulong(at[3]) << 32 | ulong(at[4]) << 24 | ulong(at[5]) << 16 |
                      ulong(at[6]) << 8 | ulong(at[7]);
    const long valid = end - at;
    return valid >= 8 ? all : all & ~0ul << (64 - 8 * valid);
  }

  // Bits that are already there are read again and do not change.
  void refill() {
    if (at >= end) return;
    buffer |= load() >> count;
    at += (63 - count) >> 3;
    count |= 56;
  }

  void skip(uint n) {
    buffer <<= n;
    count -= n;
  }

  uint next(uint n) {
    const uint value = uint(buffer >> (64 - n));
    skip(n);
    return value;
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

// The samples of two blocks: `rows` has their rows side by side.
template <typename C>
inline void transform_pair(thread const short* blocks, thread const ushort* scale,
                           thread Ushorts<PAIR> (&rows)[SIDE]) {
  Uints<PAIR> in[SIDE], out[SIDE];
  Shorts<PAIR> between[SIDE];
  Ushorts<PAIR> others = 0;
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    thread const Samples8<ushort>* first =
        reinterpret_cast<thread const Samples8<ushort>*>(blocks + k * SIDE);
    const Samples8<ushort> weights =
        *reinterpret_cast<thread const Samples8<ushort>*>(scale + k * SIDE);
    const Samples8<ushort> a = first[0] * weights, b = first[AREA / SIDE] * weights;
    const Ushorts<PAIR> both =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (k > 0) others |= both;
    in[k] = widened(__builtin_bit_cast(Shorts<PAIR>, both));
  }
  transform<C>(in, Uints<PAIR>(1u << (C::ROW_SHIFT - 1)), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) between[k] = shifted<C::SATURATES>(out[k], C::ROW_SHIFT);
  if (C::ROUNDS_LONE_DC) {
    const Shorts<PAIR> lone = shifted<false>(in[0] + 1, 1);
#pragma unroll
    for (uint k = 0; k < SIDE; k++) between[k] = others == 0 ? lone : between[k];
  }
  transpose_pair(between);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) in[k] = widened(k == 0 ? raised(between[0]) : between[k]);
  transform<C>(in, Uints<PAIR>(column_rounding<C>()), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    const Ints<PAIR> sums = __builtin_bit_cast(Ints<PAIR>, out[k]) >> int(C::COLUMN_SHIFT);
    rows[k] = __builtin_convertvector(limited(sums, LOWEST, highest()), Ushorts<PAIR>);
  }
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

// A component of a slice; false if it is damaged. What was read until then is transformed.
template <typename C>
inline bool decode_component(Slice slice, uint component, ByteBits bits, device const uint* tables,
                             device const uchar* scan, thread const ushort* scale, Plane plane,
                             thread short* blocks) {
  const uint log2 = log2_blocks(slice, component), count = 1u << log2;
  for (uint i = 0; i < count * AREA; i++) blocks[i] = 0;
  const ThreadBlocks store{blocks};
  const bool intact =
      read_dc(bits, tables, count, store) && read_ac(bits, tables, scan, log2, store);
  for (uint block = 0; block < count; block += 2) {
    Ushorts<PAIR> rows[SIDE];
    transform_pair<C>(blocks + block * AREA, scale, rows);
    put_pair(plane, block_place(slice, component, block), component == LUMA, rows);
  }
  return intact;
}

// The part of a plane that belongs to a slice, with one value.
inline void fill(Plane plane, Slice slice, uint component, ushort value) {
  const uint width = slice_columns(component);
  const uint left = slice.column * width, top = slice.row * 2 * SIDE;
  const uint right = min(left + (width << slice.log2_macroblocks), plane.width);
  const uint bottom = min(top + 2 * SIDE, plane.rows);
  for (uint row = top; row < bottom; row++)
    for (uint column = left; column < right; column++) *plane.at(column, row) = value;
}

inline bool decode_alpha(Slice slice, uint coded_bits, ByteBits bits, Plane plane,
                         thread ushort* samples) {
  const uint log2 = slice.log2_macroblocks + 4, columns = 1u << log2, count = columns * 2 * SIDE;
  const uint x = slice.column * 2 * SIDE, y = slice.row * 2 * SIDE;
  const bool intact = read_alpha(bits, coded_bits, count, ThreadSamples{samples});
  const uint right = min(x + columns, plane.width), bottom = min(y + 2 * SIDE, plane.rows);
  for (uint row = y; row < bottom; row++) {
    thread const ushort* from = samples + ((row - y) << log2);
    for (uint column = x; column < right; column++) *plane.at(column, row) = from[column - x];
  }
  return intact;
}

// Decodes a slice; `states` says of each component whether it is intact.
template <typename C>
inline void decode_slice(device const uchar* data, Slice slice, device const Picture& picture,
                         device const uint* tables, device const uchar* scan,
                         thread const Plane (&planes)[COMPONENTS], device uint* states) {
  const SliceHeader header = read_slice_header(data, slice, picture.alpha_bits != 0);
  alignas(64) short blocks[MOST_BLOCKS * AREA];
  alignas(64) ushort scale[2][AREA];
  for (uint kind = 0; kind < 2; kind++) {
    device const uchar* weights = picture.quantization[kind];
    for (uint i = 0; i < AREA; i++)
      scale[kind][i] = ushort(weights[i % SIDE * SIDE + i / SIDE] * header.scale);
  }
  for (uint c = 0; c < ALPHA; c++) {
    if (c != LUMA && !header.has_chroma()) {
      fill(planes[c], slice, c, no_chroma());
      states[c] = header.state;
      continue;
    }
    const bool intact =
        decode_component<C>(slice, c, ByteBits(data, header.span(slice, c)), tables, scan,
                            scale[c != LUMA], planes[c], blocks);
    states[c] = intact ? header.state : header.state | BAD_CODES;
  }
  states[ALPHA] = INTACT;
  if (picture.alpha_bits == 0) return;
  const bool intact =
      decode_alpha(slice, picture.alpha_bits, ByteBits(data, header.span(slice, ALPHA)),
                   planes[ALPHA], reinterpret_cast<thread ushort*>(blocks));
  if (!intact && header.sizes[ALPHA] != 0) states[ALPHA] = BAD_CODES;
}

kernel void prores_slices(device const uchar* data [[buffer(0)]],
                          device const Slice* slices [[buffer(1)]],
                          device const Picture* pictures [[buffer(2)]],
                          constant FrameSize& size [[buffer(3)]],
                          device const uint* tables [[buffer(4)]],
                          device const uchar* scans [[buffer(5)]], device ushort* y [[buffer(6)]],
                          device ushort* cb [[buffer(7)]], device ushort* cr [[buffer(8)]],
                          device ushort* alpha [[buffer(9)]], device uint* states [[buffer(10)]],
                          uint at [[thread_position_in_grid]]) {
  const Slice slice = slices[at];
  device const Picture& picture = pictures[slice.picture];
  const Plane planes[COMPONENTS] = {
      plane_of(y, size, picture, LUMA), plane_of(cb, size, picture, 1),
      plane_of(cr, size, picture, 2), plane_of(alpha, size, picture, ALPHA)};
  device const uchar* scan = scans + scan_by_columns(picture);
  device uint* own = states + at * COMPONENTS;
  if (!HAS_12_BITS) {
    decode_slice<Cosines10>(data, slice, picture, tables, scan, planes, own);
  } else {
    decode_slice<Cosines12>(data, slice, picture, tables, scan, planes, own);
  }
}
