// Slices of ProRes frames: what the host says about them, and their own headers.
#pragma once
#include <metal_stdlib>
#include "records/prores_slice.h"
using namespace metal;

constant constexpr uint LUMA = 0, ALPHA = 3, COMPONENTS = 4;
constant constexpr uint MOST_BLOCKS = 32;     // of a component in a slice
constant constexpr uint SIDE = 8, AREA = 64;  // of a block

inline uint depth() { return HAS_12_BITS ? 12 : 10; }         // bits of a sample
inline uint chroma_columns() { return IS_444 ? 2 : 1; }  // blocks of a macroblock, side by side

// What a component of a slice is found to be.
constant constexpr uint INTACT = 0, BAD_HEADER = 1, BAD_CODES = 2;

// Where the bytes of a component start and end, as offsets.
struct Span {
  ulong start;
  ulong end;
};

inline uint big_endian_16(device const uchar* at) { return uint(at[0]) << 8 | at[1]; }

// The header of a slice: the scale of its quantization and the sizes of its components.
struct SliceHeader {
  uint length;
  uint scale;
  uint sizes[COMPONENTS];
  uint state;

  bool has_chroma() const { return sizes[1] + sizes[2] != 0; }

  Span span(ProresSliceRecord slice, uint component) const {
    ulong start = slice.offset + length;
    for (uint c = 0; c < component; c++) start += sizes[c];
    return {start, start + sizes[component]};
  }
};

// A header whose sizes do not fit the slice is that of an empty one. The host has seen that the
// slice has six bytes or more.
inline SliceHeader read_slice_header(device const uchar* data, ProresSliceRecord slice,
                                     bool has_alpha) {
  device const uchar* at = data + slice.offset;
  const uint length = at[0] >> 3, coded = clamp(uint(at[1]), 1u, 224u);
  const uint scale = coded > 128 ? (coded - 96) << 2 : coded;
  const uint first = big_endian_16(at + 2), second = big_endian_16(at + 4);
  const uint used = length + first + second;
  uint third = 0;
  if (length > 7 && slice.size > 7) {
    third = big_endian_16(at + 6);
  } else if (used <= slice.size) {
    third = slice.size - used;
  }
  if (length < 6 || used + third > slice.size) return {0, 1, {0, 0, 0, 0}, BAD_HEADER};
  const uint fourth = has_alpha ? slice.size - used - third : 0;
  return {length, scale, {first, second, third, fourth}, INTACT};
}

inline bool is_chroma(uint component) { return component == 1 || component == 2; }

// Macroblocks follow each other; the blocks of one lie row by row in luma, by columns in chroma.
inline uint log2_blocks(ProresSliceRecord slice, uint component) {
  return slice.log2_macroblocks + (is_chroma(component) && !IS_444 ? 1 : 2);
}

// Columns of samples of a macroblock.
inline uint slice_columns(uint component) {
  return is_chroma(component) ? chroma_columns() * SIDE : 2 * SIDE;
}

// The column and row, in blocks, of a block of a slice.
inline uint2 block_place(ProresSliceRecord slice, uint component, uint block) {
  if (component == LUMA) {
    return uint2(slice.column * 2 + (block >> 2) * 2 + (block & 1),
                 slice.row * 2 + (block >> 1 & 1));
  }
  return uint2(slice.column * chroma_columns() + (block >> 1), slice.row * 2 + (block & 1));
}

// The first of a component's blocks: luma of a slice, then Cb and Cr, after the slices before.
inline ulong first_block(ProresSliceRecord slice, uint component) {
  const uint chroma = 2 * chroma_columns();
  const uint before = component == LUMA ? 0 : 4 + (component - 1) * chroma;
  return ulong(slice.before) * (4 + 2 * chroma) + (before << slice.log2_macroblocks);
}

// A plane of one picture. T is ushort, const where it is only read.
template <typename T>
struct PlaneOf {
  device T* first;
  uint width, rows;  // rows of the picture
  uint pitch;        // elements from a row to the next

  device T* at(uint x, uint y) const { return first + ulong(y) * pitch + x; }
};

typedef PlaneOf<ushort> Plane;

template <typename T>
inline PlaneOf<T> plane_of(device T* planes, constant ProresBatchRecord& batch,
                           device const ProresPictureRecord& picture, uint component) {
  const uint width = is_chroma(component) ? batch.chroma_width : batch.width;
  const ulong start = (ulong(picture.frame) * batch.height + picture.first_row) * width;
  const uint rows = (batch.height - picture.first_row + picture.row_step - 1) / picture.row_step;
  return {planes + start, width, rows, width * picture.row_step};
}

// Chroma of slices without chroma.
inline ushort no_chroma() { return ushort(1u << (depth() - 1)); }
inline ushort opaque() { return ushort((1u << depth()) - 1); }

// Where a picture's scan starts: of blocks that are stored by rows, or by columns.
inline uint scan_by_rows(device const ProresPictureRecord& picture) {
  return picture.interlaced * AREA;
}
inline uint scan_by_columns(device const ProresPictureRecord& picture) {
  return (2 + picture.interlaced) * AREA;
}
