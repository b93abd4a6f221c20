// Encodes ProRes slices: a thread transforms a block, and a thread counts or writes the codes of a
// slice. Sums are rounded alike on all devices, so packets have the same bits.
#pragma once
#include "prores_entropy.h"

#pragma METAL fp contract(off)

constant constexpr uint HEADER_BYTES = 8;
// Levels are rounded up from this part on: more zeros and a finer scale have less error for the
// same size than rounding to nearest, which first coefficients have.
constant constexpr float ROUNDED_UP = 0.64f;
constant constexpr uint FINE_SCALES = 128;  // coded scales of quantization; coarser ones have gaps
constant constexpr uint RUN_BOOKS = 0, LEVEL_BOOKS = 16, DC_BOOKS = 32;

inline uint scale_of(uint coded) { return coded > FINE_SCALES ? (coded - 96) << 2 : coded; }

typedef PlaneOf<const ushort> Source;

// Half a block: four columns of its rows, or four rows of its columns.
struct HalfBlock {
  float4 at[SIDE];
};

// The discrete cosine transform of eight values, scaled by 2 for each of the two directions.
inline HalfBlock forward(HalfBlock x) {
  constexpr float C1 = 0.98078528040323044f, C2 = 0.92387953251128676f, C3 = 0.83146961230254524f,
                  C4 = 0.70710678118654752f, C5 = 0.55557023301960222f, C6 = 0.38268343236508977f,
                  C7 = 0.19509032201612827f;
  float4 s[4], d[4];
  for (uint i = 0; i < 4; i++) {
    s[i] = x.at[i] + x.at[7 - i];
    d[i] = x.at[i] - x.at[7 - i];
  }
  const float4 outer = s[0] + s[3], inner = s[1] + s[2];
  const float4 outer_less = s[0] - s[3], inner_less = s[1] - s[2];
  HalfBlock y;
  y.at[0] = (outer + inner) * C4;
  y.at[4] = (outer - inner) * C4;
  y.at[2] = outer_less * C2 + inner_less * C6;
  y.at[6] = outer_less * C6 - inner_less * C2;
  y.at[1] = d[0] * C1 + d[1] * C3 + d[2] * C5 + d[3] * C7;
  y.at[3] = d[0] * C3 - d[1] * C7 - d[2] * C1 - d[3] * C5;
  y.at[5] = d[0] * C5 - d[1] * C1 + d[2] * C7 + d[3] * C3;
  y.at[7] = d[0] * C7 - d[1] * C5 + d[2] * C3 - d[3] * C1;
  return y;
}

// Rows become columns: `left` and `right` have columns 0 to 3 and 4 to 7 of each row, afterwards
// rows 0 to 3 and 4 to 7 of each column.
inline void transpose_block(thread HalfBlock& left, thread HalfBlock& right) {
  HalfBlock upper, lower;
  for (uint i = 0; i < 4; i++) {
    upper.at[i] = float4(left.at[0][i], left.at[1][i], left.at[2][i], left.at[3][i]);
    lower.at[i] = float4(left.at[4][i], left.at[5][i], left.at[6][i], left.at[7][i]);
    upper.at[i + 4] = float4(right.at[0][i], right.at[1][i], right.at[2][i], right.at[3][i]);
    lower.at[i + 4] = float4(right.at[4][i], right.at[5][i], right.at[6][i], right.at[7][i]);
  }
  left = upper;
  right = lower;
}

// Four samples of a row, less the middle of the range; samples beyond the plane repeat its edge.
inline float4 samples_at(Source plane, uint x, uint y) {
  device const ushort* row = plane.at(0, min(y, plane.rows - 1));
  const uint last = plane.width - 1;
  const float4 four(row[min(x, last)], row[min(x + 1, last)], row[min(x + 2, last)],
                    row[min(x + 3, last)]);
  return four - float(1u << (depth() - 1));
}

// Coefficients in the order of their codes: the first one of each block, then each second one.
kernel void prores_transform(device const ProresSliceRecord* slices [[buffer(0)]],
                             device const ProresPictureRecord* pictures [[buffer(1)]],
                             device const uchar* scans [[buffer(2)]],
                             constant ProresBatchRecord& batch [[buffer(3)]],
                             device const ushort* y [[buffer(4)]],
                             device const ushort* cb [[buffer(5)]],
                             device const ushort* cr [[buffer(6)]],
                             device short* coefficients [[buffer(7)]],
                             uint3 at [[thread_position_in_grid]]) {
  const ProresSliceRecord slice = slices[at.y];
  const uint component = at.z, block = at.x, log2 = log2_blocks(slice, component);
  if (block >= 1u << log2) return;
  device const ProresPictureRecord& picture = pictures[slice.picture];
  device const ushort* samples = component == LUMA ? y : component == 1 ? cb : cr;
  const Source plane = plane_of(samples, batch, picture, component);
  const uint2 place = block_place(slice, component, block) * SIDE;
  HalfBlock left, right;
  for (uint i = 0; i < SIDE; i++) {
    left.at[i] = samples_at(plane, place.x, place.y + i);
    right.at[i] = samples_at(plane, place.x + 4, place.y + i);
  }
  left = forward(left);
  right = forward(right);
  transpose_block(left, right);
  left = forward(left);
  right = forward(right);
  // A coefficient of 1 is a quarter of an orthonormal one at 10 bits, and 1 at 12 bits.
  const float scale = HAS_12_BITS ? 0.25f : 1.0f;
  device const uchar* scan = scans + scan_by_columns(picture);
  device short* to = coefficients + first_block(slice, component) * AREA + block;
  for (uint i = 0; i < AREA; i++) {
    const uint from = scan[i], column = from / SIDE, row = from % SIDE;
    const float value = row < 4 ? left.at[column][row] : right.at[column][row - 4];
    to[i << log2] = short(rint(value * scale));
  }
}

// The size of a code, and its bits.
struct Code {
  uint bits;
  uint length;
};

inline Code code_of(uint value, uint book) {
  const uint rice = book >> 5, order = book >> 2 & 7, limit = book & 3;
  const uint first = (limit + 1) << rice;  // value of the exponential codes
  const uint exponential = value - first + (1u << order);
  // Both are computed, since a branch would often be predicted wrongly.
  const bool is_rice = value < first;
  return {is_rice ? (value & ((1u << rice) - 1)) | 1u << rice : exponential,
          is_rice ? (value >> rice) + 1 + rice : 2 * (32 - clz(exponential)) - order + limit};
}

// Counts the bits of codes.
struct BitCount {
  uint total;

  void put(Code code) { total += code.length; }
  void align() { total = (total + 7) & ~7u; }
};

// Writes a slice behind its header, as long as there is room.
struct BitWriter {
  device uchar* to;
  uint written;  // bytes
  uint room;
  ulong buffer;
  uint count;
  uint start;    // of the component
  uint size_at;  // where the header has its size

  void put(Code code) {
    buffer = buffer << code.length | code.bits;
    count += code.length;
    while (count >= 8) {
      count -= 8;
      if (written < room) to[written] = uchar(buffer >> count);
      written++;
    }
  }

  // Ends a component: fills its last byte with zeros and writes its size.
  void align() {
    if (count > 0) put({0, 8 - count});
    if (size_at == HEADER_BYTES) return;  // alpha's is what is left of the slice
    const uint size = written - start;
    to[size_at++] = uchar(size >> 8);
    to[size_at++] = uchar(size);
    start = written;
  }
};

// N coefficients times `inverse`, without their fractions after `more` was added to the magnitudes.
// A loop of constant length vectorises.
template <uint N>
inline void divide(device const short* from, device short* to, float inverse, float more) {
  float values[N];
  for (uint i = 0; i < N; i++) values[i] = float(from[i]) * inverse;
  for (uint i = 0; i < N; i++) to[i] = short(int(values[i] + (values[i] < 0 ? -more : more)));
}

// The levels of a component: coefficients divided by their weights.
inline void quantize(device const short* coefficients, device short* levels, uint log2,
                     device const uchar* weights, device const uchar* scan, uint scale) {
  const uint blocks = 1u << log2;
  for (uint i = 0; i < AREA; i++) {
    const float inverse = 1.0f / float(weights[scan[i]] * scale);
    const float more = i == 0 ? 0.5f : 1.0f - ROUNDED_UP;
    device const short* from = coefficients + (i << log2);
    device short* to = levels + (i << log2);
    if (blocks < 16) {
      for (uint b = 0; b < blocks; b += 2) divide<2>(from + b, to + b, inverse, more);
    } else {
      for (uint b = 0; b < blocks; b += 16) divide<16>(from + b, to + b, inverse, more);
    }
  }
}

// Which of the next 32 levels, or of `count`, are not zero: a bit each.
inline uint not_zero(device const short* levels, uint count) {
  uint mask = 0;
  if (count < 32) {
    for (uint i = 0; i < count; i++) mask |= uint(levels[i] != 0) << i;
  } else {
    for (uint i = 0; i < 32; i++) mask |= uint(levels[i] != 0) << i;
  }
  return mask;
}

// The codes of a component's levels; `Sink` is BitCount or BitWriter.
template <typename Sink>
inline void put_levels(thread Sink& sink, device const short* levels, uint log2,
                       device const uint* books) {
  const uint blocks = 1u << log2, count = AREA << log2;
  int before = levels[0];
  sink.put(code_of(uint(before << 1) ^ uint(before >> 31), FIRST_DC_BOOK));
  uint code = 5, sign = 0;
  for (uint b = 1; b < blocks; b++) {
    const int difference = levels[b] - before;
    before = levels[b];
    const uint own = difference < 0 ? 1 : 0, magnitude = uint(abs(difference));
    const uint wanted = magnitude == 0 ? 0 : 2 * magnitude - (own ^ sign);
    sink.put(code_of(wanted, books[DC_BOOKS + min(code, LAST_DC)]));
    code = wanted;
    sign = magnitude == 0 ? 0 : own;
  }
  uint last = blocks - 1, last_run = FIRST_RUN, last_level = FIRST_LEVEL;
  for (uint start = blocks; start < count; start += 32) {
    for (uint mask = not_zero(levels + start, count - start); mask != 0; mask &= mask - 1) {
      const uint position = start + ctz(mask), run = position - last - 1;
      const int level = levels[position];
      const uint magnitude = uint(abs(level));
      sink.put(code_of(run, books[RUN_BOOKS + min(last_run, LAST_RUN)]));
      sink.put(code_of(magnitude - 1, books[LEVEL_BOOKS + min(last_level, LAST_LEVEL)]));
      sink.put({level < 0 ? 1u : 0u, 1});
      last = position;
      last_run = run;
      last_level = magnitude;
    }
  }
}

// The 16 bits of an alpha sample; samples beyond the plane repeat its edge.
inline uint alpha_at(Source plane, uint x, uint y) {
  const uint value = *plane.at(min(x, plane.width - 1), min(y, plane.rows - 1));
  return value << (16 - depth()) | value >> (2 * depth() - 16);
}

// Alpha with 16 bits: differences to the value before, and how often a value is repeated.
template <typename Sink>
inline void put_alpha(thread Sink& bits, Source plane, ProresSliceRecord slice) {
  const uint columns = 16u << slice.log2_macroblocks, count = columns * 16;
  const uint left = slice.column * 16, top = slice.row * 16;
  uint before = 0xFFFF, i = 0;
  while (i < count) {
    const uint value = alpha_at(plane, left + i % columns, top + i / columns);
    const int difference = int(short(value - before));
    if (difference != 0 && abs(difference) <= 64) {
      bits.put({uint(abs(difference) - 1) << 1 | (difference < 0 ? 1u : 0u), 8});
    } else {
      bits.put({1u << 16 | (uint(difference) & 0xFFFF), 17});
    }
    before = value;
    uint repeats = 0;
    for (i++; i < count; i++, repeats++)
      if (alpha_at(plane, left + i % columns, top + i / columns) != value) break;
    if (repeats == 0) {
      if (i < count) bits.put({1, 1});
    } else if (repeats < 16) {
      bits.put({repeats, 5});
    } else {
      bits.put({repeats, 16});
    }
  }
  bits.align();
}

// The codes of a slice without alpha, with a scale of quantization as it is coded.
template <typename Sink>
inline void put_slice(thread Sink& sink, ProresSliceRecord slice,
                      device const ProresPictureRecord& picture, uint coded,
                      device const uchar* scans, device const uint* books,
                      device const short* coefficients, device short* levels) {
  device const uchar* scan = scans + scan_by_rows(picture);
  for (uint c = 0; c < ALPHA; c++) {
    const ulong first = first_block(slice, c) * AREA;
    const uint log2 = log2_blocks(slice, c);
    device const uchar* weights = picture.quantization[c != LUMA];
    quantize(coefficients + first, levels + first, log2, weights, scan, scale_of(coded));
    put_levels(sink, levels + first, log2, books);
    sink.align();
  }
}

// The bits of a slice by its scale, which is 0 for slices that are not counted.
kernel void prores_count(device const ProresSliceRecord* slices [[buffer(0)]],
                         device const ProresPictureRecord* pictures [[buffer(1)]],
                         device const uchar* scans [[buffer(2)]],
                         device const uint* books [[buffer(3)]],
                         device const short* coefficients [[buffer(4)]],
                         device short* levels [[buffer(5)]],
                         device const uint* scales [[buffer(6)]], device uint* sizes [[buffer(7)]],
                         uint at [[thread_position_in_grid]]) {
  if (scales[at] == 0) return;
  const ProresSliceRecord slice = slices[at];
  BitCount bits{HEADER_BYTES * 8};
  put_slice(bits, slice, pictures[slice.picture], scales[at], scans, books, coefficients, levels);
  sizes[at] = bits.total;
}

// The bits of alpha, which quantization does not change.
kernel void prores_count_alpha(device const ProresSliceRecord* slices [[buffer(0)]],
                               device const ProresPictureRecord* pictures [[buffer(1)]],
                               constant ProresBatchRecord& batch [[buffer(2)]],
                               device const ushort* alpha [[buffer(3)]],
                               device uint* sizes [[buffer(4)]],
                               uint at [[thread_position_in_grid]]) {
  const ProresSliceRecord slice = slices[at];
  BitCount bits{0};
  put_alpha(bits, plane_of(alpha, batch, pictures[slice.picture], ALPHA), slice);
  sizes[at] = bits.total;
}

// Writes slices of counted sizes, and how many bytes they would have had with more room.
kernel void prores_write(device const ProresSliceRecord* slices [[buffer(0)]],
                         device const ProresPictureRecord* pictures [[buffer(1)]],
                         device const uchar* scans [[buffer(2)]],
                         device const uint* books [[buffer(3)]],
                         device const short* coefficients [[buffer(4)]],
                         device short* levels [[buffer(5)]],
                         device const uint* scales [[buffer(6)]], device uint* sizes [[buffer(7)]],
                         constant ProresBatchRecord& batch [[buffer(8)]],
                         device const ushort* alpha [[buffer(9)]],
                         constant uint& has_alpha [[buffer(10)]],
                         device uchar* output [[buffer(11)]],
                         uint at [[thread_position_in_grid]]) {
  const ProresSliceRecord slice = slices[at];
  device const ProresPictureRecord& picture = pictures[slice.picture];
  device uchar* own = output + slice.offset;
  BitWriter bits{own, HEADER_BYTES, slice.size, 0, 0, HEADER_BYTES, 2};
  own[0] = HEADER_BYTES << 3;
  own[1] = uchar(scales[at]);
  put_slice(bits, slice, picture, scales[at], scans, books, coefficients, levels);
  if (has_alpha != 0) put_alpha(bits, plane_of(alpha, batch, picture, ALPHA), slice);
  sizes[at] = bits.written;
}
