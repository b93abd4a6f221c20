// Entropy decoding of ProRes coefficients and alpha (SMPTE RDD 36).
//
// `Bits` is a BitBuffer with two more functions: after `refill` it has 33 bits or more, zeros
// beyond the end, and `left` is how many bits there are to the end, negative beyond it.
#pragma once
#include "prores_slice.h"

// The next bits of a stream, the first one highest.
struct BitBuffer {
  ulong buffer;
  uint count;

  void skip(uint n) {
    buffer <<= n;
    count -= n;
  }

  uint next(uint n) {
    const uint value = uint(buffer >> (64 - n));
    skip(n);
    return value;
  }
};

// Layout of the tables: see code_tables.py.
constant constexpr uint RUN_BITS = 9, LEVEL_BITS = 10;
constant constexpr uint RUN_STARTS = 0, LEVEL_STARTS = 16, DC_START = 32;
constant constexpr uint FIRST_RUN = 4, LAST_RUN = 15, FIRST_LEVEL = 2, LAST_LEVEL = 9, LAST_DC = 6;
constant constexpr uint FIRST_DC_BOOK = 0xB8, MOST_CODE_BITS = 31;

// An entry: 6 bits of length, 10 bits of the next table's start, 16 bits of value.
inline uint entry_length(uint entry) { return entry & 63; }
inline uint entry_next(uint entry) { return entry & 0xFFC0; }
inline int entry_value(uint entry) { return int(entry) >> 16; }

// A code of any length by its codebook; sets `damaged` for lengths that no encoder writes. Both
// kinds of codes are computed, since a branch would often be predicted wrongly.
template <typename Bits>
inline uint read_code(thread Bits& bits, uint book, thread bool& damaged) {
  const uint top = uint(bits.buffer >> 32);
  const uint zeros = clz(top), rice = book >> 5, order = book >> 2 & 7, limit = book & 3;
  const bool is_rice = zeros <= limit;
  const uint wanted = is_rice ? zeros + 1 + rice : 2 * zeros + order - limit;
  const uint length = min(wanted, MOST_CODE_BITS);
  damaged |= length != wanted;
  bits.skip(length);
  return (min(zeros, limit + 1) << rice) - (1u << (is_rice ? rice : order)) +
         (top >> (32 - length));
}

// The first coefficients of blocks: differences, whose signs are relative to the sign of the one
// before.
struct FirstCoefficients {
  uint sum, code, sign;
  bool damaged;

  template <typename Bits, typename Store>
  void start(thread Bits& bits, Store store) {
    damaged = false;
    bits.refill();
    const uint first = read_code(bits, FIRST_DC_BOOK, damaged);
    sum = (first >> 1) ^ (0 - (first & 1));
    code = 5;
    sign = 0;
    store(0, short(sum));
  }

  template <typename Bits, typename Store>
  void next(thread Bits& bits, device const uint* tables, uint block, Store store) {
    bits.refill();
    code = read_code(bits, tables[DC_START + min(code, LAST_DC)], damaged);
    sign = code == 0 ? 0 : sign ^ (0 - (code & 1));
    sum += (((code + 1) >> 1) ^ sign) - sign;
    store(block * AREA, short(sum));
  }
};

template <typename Bits, typename Store>
inline bool read_dc(thread Bits& bits, device const uint* tables, uint blocks, Store store) {
  FirstCoefficients all;
  all.start(bits, store);
  for (uint block = 1; block < blocks; block++) all.next(bits, tables, block, store);
  return !all.damaged && bits.left() >= 0;
}

// The tables of the next codes, and the position of the last coefficient.
struct CodeState {
  uint runs, levels;
  uint position;
};

enum class Step : uint { MORE, END, DAMAGE };

// Reads a run and a level. Coefficients of all blocks are coded together: the first one of each
// block, then the second one of each.
template <typename Bits, typename Store>
inline Step read_coefficient(thread Bits& bits, thread CodeState& state, device const uint* tables,
                             device const uchar* scan, uint log2_blocks, Store store) {
  const uint mask = (1u << log2_blocks) - 1, count = AREA << log2_blocks;
  bool damaged = false;
  if (uint(bits.buffer >> 32) == 0)
    return bits.left() >= 0 && bits.left() < 32 ? Step::END : Step::DAMAGE;
  uint entry = tables[state.runs + uint(bits.buffer >> (64 - RUN_BITS))];
  if (entry_length(entry) != 0) {
    bits.skip(entry_length(entry));
    state.position += entry_value(entry);
    state.runs = entry_next(entry);
  } else {
    const uint run = read_code(bits, uint(entry_value(entry)), damaged);
    if (damaged || run >= count) return Step::DAMAGE;
    state.position += run + 1;
    state.runs = tables[RUN_STARTS + min(run, LAST_RUN)];
    bits.refill();
  }
  if (state.position >= count) return Step::DAMAGE;
  entry = tables[state.levels + uint(bits.buffer >> (64 - LEVEL_BITS))];
  short level;
  if (entry_length(entry) != 0) {
    bits.skip(entry_length(entry));
    level = short(entry_value(entry));
    state.levels = entry_next(entry);
  } else {
    bits.refill();
    const uint magnitude = read_code(bits, uint(entry_value(entry)), damaged) + 1;
    if (damaged) return Step::DAMAGE;
    bits.refill();
    const uint sign = 0 - uint(bits.buffer >> 63);
    bits.skip(1);
    bits.refill();
    level = short((magnitude ^ sign) - sign);
    state.levels = tables[LEVEL_STARTS + min(magnitude, LAST_LEVEL)];
  }
  store((state.position & mask) * AREA + scan[state.position >> log2_blocks], level);
  return Step::MORE;
}

// All coefficients but the first ones; false if they are damaged.
template <typename Bits, typename Store>
inline bool read_ac(thread Bits& bits, device const uint* tables, device const uchar* scan,
                    uint log2_blocks, Store store) {
  CodeState state{tables[RUN_STARTS + FIRST_RUN], tables[LEVEL_STARTS + FIRST_LEVEL],
                  (1u << log2_blocks) - 1};
  Step step = Step::MORE;
  while (step == Step::MORE) {
    bits.refill();
    step = read_coefficient(bits, state, tables, scan, log2_blocks, store);
  }
  return step == Step::END;
}

inline ushort alpha_sample(uint value, uint coded_bits) {
  if (coded_bits == 16) return ushort(value >> (16 - depth()));
  return ushort(value << (depth() - 8) | value >> (16 - depth()));
}

// Alpha: differences to the value before, and how often a value is repeated. The rest of a damaged
// slice is opaque.
template <typename Bits, typename Store>
inline bool read_alpha(thread Bits& bits, uint coded_bits, uint count, Store store) {
  const uint mask = (1u << coded_bits) - 1, small = coded_bits == 16 ? 7 : 4;
  uint value = mask, i = 0;
  while (i < count) {
    bits.refill();
    if (bits.left() <= 0) break;
    const bool is_long = bits.next(1) != 0;
    uint difference = bits.next(is_long ? coded_bits : small);
    if (!is_long) {
      const uint sign = 0 - (difference & 1);
      difference = (((difference + 2) >> 1) ^ sign) - sign;
    }
    value = (value + difference) & mask;
    const ushort sample = alpha_sample(value, coded_bits);
    store(i++, sample);
    if (i == count) break;
    bits.refill();
    if (bits.left() > 0 && bits.next(1) != 0) continue;
    uint repeats = bits.next(4);
    if (repeats == 0) repeats = bits.next(11);
    for (const uint end = min(i + repeats, count); i < end; i++) store(i, sample);
  }
  const bool intact = i == count && bits.left() >= 0;
  for (; i < count; i++) store(i, opaque());
  return intact;
}
