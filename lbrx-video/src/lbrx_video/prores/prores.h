// ProRes for GPUs: a thread decodes the codes of a slice's component into coefficients, and eight
// threads transform each block.
#pragma once
#include "prores_entropy.h"
#include "prores_transform.h"

constant constexpr uint GROUP_BLOCKS = 16;  // of a threadgroup

// Bits from aligned words of memory.
struct WordBits : BitBuffer {
  device const uint* words;
  ulong upcoming;  // word
  ulong end;       // byte

  WordBits(device const uchar* data, Span span)
      : words(reinterpret_cast<device const uint*>(data)),
        upcoming(span.start >> 2),
        end(span.end) {
    const uint skipped = uint(span.start & 3) * 8;
    buffer = ulong(word()) << (32 + skipped);
    count = 32 - skipped;
  }

  // The next four bytes, zeros beyond the end.
  uint word() {
    const ulong start = upcoming++ << 2;
    if (start >= end) return 0;
    const uint x = words[start >> 2];
    const uint swapped = x << 24 | (x & 0xFF00) << 8 | (x >> 8 & 0xFF00) | x >> 24;
    return end - start < 4 ? swapped & ~0u << (32 - 8 * uint(end - start)) : swapped;
  }

  void refill() {
    if (count > 32) return;
    buffer |= ulong(word()) << (32 - count);
    count += 32;
  }

  int left() const { return int(long(end << 3) - long(upcoming << 5)) + int(count); }
};

// Coefficients of a slice's component, each block by rows.
struct DeviceBlocks {
  device short* blocks;
  void operator()(uint i, short value) const { blocks[i] = value; }
};

// Samples of a slice's alpha, row by row; those beyond the plane are left out.
struct DeviceSamples {
  Plane plane;
  uint x, y;
  uint log2_width;

  void operator()(uint i, ushort value) const {
    const uint column = x + (i & ((1u << log2_width) - 1)), row = y + (i >> log2_width);
    if (column < plane.width && row < plane.rows) *plane.at(column, row) = value;
  }
};

// Coefficients without a code are zero.
kernel void prores_clear(device uint4* blocks [[buffer(0)]],
                         uint i [[thread_position_in_grid]]) {
  blocks[i] = uint4(0);
}

// A thread for each slice and component.
kernel void prores_codes(device const uchar* data [[buffer(0)]],
                         device const ProresSliceRecord* slices [[buffer(1)]],
                         device const ProresPictureRecord* pictures [[buffer(2)]],
                         constant ProresBatchRecord& batch [[buffer(3)]],
                         device const uint* tables [[buffer(4)]],
                         device const uchar* scans [[buffer(5)]],
                         device short* blocks [[buffer(6)]], device ushort* alpha [[buffer(7)]],
                         device uint* states [[buffer(8)]],
                         uint2 at [[thread_position_in_grid]]) {
  const ProresSliceRecord slice = slices[at.x];
  device const ProresPictureRecord& picture = pictures[slice.picture];
  const uint component = at.y;
  const SliceHeader header = read_slice_header(data, slice, picture.alpha_bits != 0);
  device uint* state = states + at.x * COMPONENTS + component;
  *state = header.state;
  if (component == ALPHA ? picture.alpha_bits == 0 : component != LUMA && !header.has_chroma())
    return;
  WordBits bits(data, header.span(slice, component));
  bool intact;
  if (component == ALPHA) {
    const uint log2 = slice.log2_macroblocks + 4;
    const DeviceSamples store{plane_of(alpha, batch, picture, ALPHA), slice.column * 2 * SIDE,
                              slice.row * 2 * SIDE, log2};
    intact = read_alpha(bits, picture.alpha_bits, 16u << log2, store) || header.sizes[ALPHA] == 0;
  } else {
    const DeviceBlocks store{blocks + first_block(slice, component) * AREA};
    const uint log2 = log2_blocks(slice, component);
    intact = read_dc(bits, tables, 1u << log2, store) &&
             read_ac(bits, tables, scans + scan_by_rows(picture), log2, store);
  }
  if (!intact) *state |= BAD_CODES;
}

// The samples of a block: each thread transforms a row, then a column.
template <typename C>
inline void transform_block(device const short* block, device const uchar* weights, uint scale,
                            uint lane, bool exists, threadgroup short* between,
                            thread uint (&out)[SIDE]) {
  uint in[SIDE];
  uint others = 0;
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    const uint i = lane * SIDE + k;
    in[k] = exists ? uint(int(short(ushort(block[i]) * weights[i] * scale))) : 0;
    if (k > 0) others |= in[k];
  }
  transform<C>(in, 1u << (C::ROW_SHIFT - 1), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    const bool lone = C::ROUNDS_LONE_DC && others == 0;
    const int value = lone ? int(in[0] + 1) >> 1 : int(out[k]) >> C::ROW_SHIFT;
    between[lane * SIDE + k] = short(C::SATURATES ? clamp(value, -32768, 32767) : value);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) in[k] = uint(int(between[k * SIDE + lane]));
  in[0] = uint(int(short(in[0] + HALF_RANGE)));
  transform<C>(in, column_rounding<C>(), out);
#pragma unroll
  for (uint k = 0; k < SIDE; k++) {
    const int sample = int(out[k]) >> C::COLUMN_SHIFT;
    out[k] = uint(clamp(sample, LOWEST, highest()));
  }
}

// A threadgroup for sixteen blocks of a component of a slice: luma has two such parts, chroma has
// one or, in 4:4:4, two.
kernel void prores_blocks(device const uchar* data [[buffer(0)]],
                          device const ProresSliceRecord* slices [[buffer(1)]],
                          device const ProresPictureRecord* pictures [[buffer(2)]],
                          constant ProresBatchRecord& batch [[buffer(3)]],
                          device const short* blocks [[buffer(4)]], device ushort* y [[buffer(5)]],
                          device ushort* cb [[buffer(6)]], device ushort* cr [[buffer(7)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup short between[GROUP_BLOCKS * AREA];
  const ProresSliceRecord slice = slices[group.y];
  device const ProresPictureRecord& picture = pictures[slice.picture];
  const SliceHeader header = read_slice_header(data, slice, false);
  const uint part = group.z;
  const uint component = part < 2 ? LUMA : (part - 2) / chroma_columns() + 1;
  const uint half_index = part < 2 ? part : (part - 2) % chroma_columns();
  const uint local = thread_index / SIDE, lane = thread_index % SIDE;
  const uint block = half_index * GROUP_BLOCKS + local;
  const bool exists = block < 1u << log2_blocks(slice, component);
  const bool coded = exists && (component == LUMA || header.has_chroma());
  device const short* from = blocks + (first_block(slice, component) + (exists ? block : 0)) * AREA;
  device const uchar* weights = picture.quantization[component != LUMA];
  threadgroup short* own = between + local * AREA;
  uint samples[SIDE];
  if (!HAS_12_BITS) {
    transform_block<Cosines10>(from, weights, header.scale, lane, coded, own, samples);
  } else {
    transform_block<Cosines12>(from, weights, header.scale, lane, coded, own, samples);
  }
  if (!exists) return;
  device ushort* samples_of = component == LUMA ? y : component == 1 ? cb : cr;
  const Plane plane = plane_of(samples_of, batch, picture, component);
  const uint2 place = block_place(slice, component, block) * SIDE;
  if (place.x + lane >= plane.width) return;
  for (uint k = 0; k < SIDE && place.y + k < plane.rows; k++)
    *plane.at(place.x + lane, place.y + k) = coded ? ushort(samples[k]) : no_chroma();
}
