// Tiles on tensor cores: mma.m16n8k16 on operands that ldmatrix brings from threadgroup memory, where
// rows are multiples of 16 bytes apart, at multiples of 16 bytes.
//
// Of every 8x8 block of an operand or of the sums, a lane holds two neighbours: those in row
// lane / 4, columns lane % 4 * 2 and the next. Blocks of a right operand are transposed.
#ifndef SOFTMETAL_TARGET_TILES_H
#define SOFTMETAL_TARGET_TILES_H

#include <softmetal/vec.h>
#include <target/lanes.h>

namespace softmetal {

template <class T>
constexpr bool has_tensor_tiles = __is_same(T, _Float16) || __is_same(T, __bf16);
constexpr bool has_async_copies = true;

// One instruction: right to 2 units in the last place, and zero where that would be denormal.
SM_INLINE float tile_exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }

SM_INLINE sm_u32 shared_address(const void* p) {
  return (sm_u32)(sm_u64)(__attribute__((address_space(3))) const char*)p;
}

// ---- copies -----------------------------------------------------------------------------------

struct async_copy {
  // Copies 16 bytes; elements from `count` on become zeros. Both addresses are multiples of 16.
  template <class T> static SM_INLINE void start(T* to, const T* from, unsigned count) {
    constexpr unsigned most = 16 / sizeof(T);
    const unsigned bytes = count < most ? count * sizeof(T) : 16;
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
  }
  // Ends a group of copies of this thread.
  static SM_INLINE void commit() { __asm__ volatile("cp.async.commit_group;" ::: "memory"); }
  // Waits until all but the last `Pending` groups of this thread have arrived.
  template <int Pending> static SM_INLINE void wait() {
    __asm__ volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory");
  }
};

// ---- tiles ------------------------------------------------------------------------------------

// Four 8x8 blocks of memory: of two columns of blocks, each with two rows of them, in this order; or
// of two rows with two columns each if `Across`. Each block is transposed if `Trans`.
template <bool Across, bool Trans>
SM_INLINE void load_blocks(sm_u32 (&words)[4], const void* from, unsigned row_bytes) {
  const unsigned l = lane();
  const unsigned row = Across ? l / 16 * 8 + l % 8 : l % 16;
  const unsigned column = Across ? l / 8 % 2 : l / 16;
  const sm_u32 address = shared_address(from) + row * row_bytes + column * 16;
  if constexpr (Trans)
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address) : "memory");
  else
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address) : "memory");
}

// d += a b for 16 rows, 8 columns and a depth of 16.
template <class T>
SM_INLINE void multiply_blocks(metal::vec<float, 2>& upper, metal::vec<float, 2>& lower,
                               const sm_u32 (&a)[4], sm_u32 b0, sm_u32 b1) {
  float d0 = upper.x, d1 = upper.y, d2 = lower.x, d3 = lower.y;
  if constexpr (__is_same(T, _Float16))
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  upper = {d0, d1}, lower = {d2, d3};
}

template <class T> SM_INLINE sm_u32 rounded_pair(metal::vec<float, 2> pair) {
  sm_u32 word;
  if constexpr (__is_same(T, _Float16))
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(pair.y), "f"(pair.x));
  else
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(pair.y), "f"(pair.x));
  return word;
}

#define SM_UNROLL _Pragma("clang loop unroll(full)")

template <unsigned Rows, unsigned Columns> struct tensor_sums {
  metal::vec<float, 2> pairs[Rows / 8][Columns / 8];

  SM_INLINE metal::vec<float, 2> pair(unsigned i, unsigned j) const { return pairs[i][j]; }
  SM_INLINE void set(unsigned i, unsigned j, metal::vec<float, 2> pair) { pairs[i][j] = pair; }
  static SM_INLINE unsigned row(unsigned lane) { return lane / 4; }
  static SM_INLINE unsigned column(unsigned lane) { return lane % 4 * 2; }
  static SM_INLINE float row_max(float x) {
    x = SM_FMAX(x, beside(x, 1));
    return SM_FMAX(x, beside(x, 2));
  }
  static SM_INLINE float row_sum(float x) {
    x += beside(x, 1);
    return x + beside(x, 2);
  }

 private:
  static SM_INLINE float beside(float x, unsigned distance) {
    return __nvvm_shfl_sync_bfly_f32(~0u, x, distance, 31);
  }
};

// The pairs of a lane in four blocks next to each other, as words. Afterwards the four lanes of a row
// have a block's row of eight each, in the order of the blocks.
template <unsigned Bit> SM_INLINE void exchange_pair(sm_u32& low, sm_u32& high) {
  const bool upper = lane() & Bit;
  const int sent = (int)(upper ? low : high);
  const sm_u32 taken = (sm_u32)__nvvm_shfl_sync_bfly_i32(~0u, sent, Bit, 31);
  low = upper ? taken : low;
  high = upper ? high : taken;
}
SM_INLINE void exchange_blocks(sm_u32 (&words)[4]) {
  exchange_pair<1>(words[0], words[1]);
  exchange_pair<1>(words[2], words[3]);
  exchange_pair<2>(words[0], words[2]);
  exchange_pair<2>(words[1], words[3]);
}

template <class T, unsigned Rows, unsigned Depth> struct tensor_left {
  sm_u32 words[Rows / 16][Depth / 16][4];

  // From memory with `leading` elements from row to row; it holds the transposed tile if `transposed`.
  SM_INLINE void load(const T* from, unsigned leading, bool transposed) {
    SM_UNROLL for (unsigned i = 0; i < Rows / 16; i++)
      SM_UNROLL for (unsigned j = 0; j < Depth / 16; j++) {
        if (transposed)
          load_blocks<true, true>(words[i][j], from + j * 16 * leading + i * 16,
                                  leading * sizeof(T));
        else
          load_blocks<false, false>(words[i][j], from + i * 16 * leading + j * 16,
                                    leading * sizeof(T));
      }
  }

  // The sums of a product, rounded.
  SM_INLINE void round(const tensor_sums<Rows, Depth>& sums) {
    SM_UNROLL for (unsigned i = 0; i < Rows / 16; i++)
      SM_UNROLL for (unsigned j = 0; j < Depth / 16; j++)
        SM_UNROLL for (unsigned b = 0; b < 4; b++)
          words[i][j][b] = rounded_pair<T>(sums.pairs[2 * i + b % 2][2 * j + b / 2]);
  }
};

template <class T, unsigned Depth, unsigned Columns> struct tensor_right {
  sm_u32 words[Depth / 16][Columns / 16][4];

  SM_INLINE void load(const T* from, unsigned leading, bool transposed) {
    SM_UNROLL for (unsigned i = 0; i < Depth / 16; i++)
      SM_UNROLL for (unsigned j = 0; j < Columns / 16; j++) {
        if (transposed)
          load_blocks<true, false>(words[i][j], from + j * 16 * leading + i * 16,
                                   leading * sizeof(T));
        else
          load_blocks<false, true>(words[i][j], from + i * 16 * leading + j * 16,
                                   leading * sizeof(T));
      }
  }
};

template <class T, unsigned Rows, unsigned Depth, unsigned Columns>
SM_INLINE void multiply_tiles(tensor_sums<Rows, Columns>& sums,
                              const tensor_left<T, Rows, Depth>& left,
                              const tensor_right<T, Depth, Columns>& right) {
  SM_UNROLL for (unsigned k = 0; k < Depth / 16; k++)
    SM_UNROLL for (unsigned i = 0; i < Rows / 16; i++)
      SM_UNROLL for (unsigned j = 0; j < Columns / 8; j++) {
        const sm_u32(&b)[4] = right.words[k][j / 2];
        multiply_blocks<T>(sums.pairs[2 * i][j], sums.pairs[2 * i + 1][j], left.words[i][k],
                           b[j % 2 * 2], b[j % 2 * 2 + 1]);
      }
}

#undef SM_UNROLL

}  // namespace softmetal

#endif
