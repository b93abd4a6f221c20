// The inverse discrete cosine transform of ProRes blocks, in the integer arithmetic that FFmpeg's
// decoder uses: rows first, rounded to 16 bits, then columns. V is uint or a vector of it, since
// sums of damaged blocks wrap around. Such blocks differ between processors in FFmpeg: at 10 bits
// its x86 code, which is followed here, saturates rows; its C code wraps them, as at 12 bits.
#pragma once
#include "prores_slice.h"

// Cosines scaled by 2^(14.5) for 10 bits and by 2^(15.5) for 12 bits.
struct Cosines10 {
  static constexpr constant uint W1 = 22725, W2 = 21407, W3 = 19265, W4 = 16384, W5 = 12873,
                                 W6 = 8867, W7 = 4520;
  static constexpr constant uint ROW_SHIFT = 15, COLUMN_SHIFT = 18;
  static constexpr constant bool SATURATES = true, ROUNDS_LONE_DC = false;
};

struct Cosines12 {
  static constexpr constant uint W1 = 45451, W2 = 42813, W3 = 38531, W4 = 32767, W5 = 25746,
                                 W6 = 17734, W7 = 9041;
  static constexpr constant uint ROW_SHIFT = 16, COLUMN_SHIFT = 17;
  // A row that has only its first coefficient is half of it, rounded, and not times W4 / 2^16.
  static constexpr constant bool SATURATES = false, ROUNDS_LONE_DC = true;
};

// Eight values transformed, before they are shifted. `rounding` is added to all.
template <typename C, typename V>
inline void transform(thread const V (&x)[SIDE], V rounding, thread V (&out)[SIDE]) {
  const V middle = rounding + x[0] * C::W4, other = x[4] * C::W4;
  const V e0 = middle + other, e1 = middle - other;
  const V e2 = x[2] * C::W2 + x[6] * C::W6, e3 = x[2] * C::W6 - x[6] * C::W2;
  const V even[4] = {e0 + e2, e1 + e3, e1 - e3, e0 - e2};
  const V odd[4] = {
      x[1] * C::W1 + x[3] * C::W3 + x[5] * C::W5 + x[7] * C::W7,
      x[1] * C::W3 - x[3] * C::W7 - x[5] * C::W1 - x[7] * C::W5,
      x[1] * C::W5 - x[3] * C::W1 + x[5] * C::W7 + x[7] * C::W3,
      x[1] * C::W7 - x[3] * C::W5 + x[5] * C::W3 - x[7] * C::W1,
  };
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    out[i] = even[i] + odd[i];
    out[7 - i] = even[i] - odd[i];
  }
}

constant constexpr ushort HALF_RANGE = 8192;  // added to the first value of each column

template <typename C>
inline uint column_rounding() {
  return (1u << (C::COLUMN_SHIFT - 1)) / C::W4 * C::W4;
}

constant constexpr int LOWEST = 4;  // code that samples are clipped to
inline int highest() { return (1 << depth()) - 1 - LOWEST; }
