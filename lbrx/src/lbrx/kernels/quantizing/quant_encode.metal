#include "quant_encode.h"

#define BLOCKS(name, kind)                                                                \
  template [[host_name("quantize_block_" #name)]] kernel void encode_blocks<kind>(        \
      device const void*, device uchar*, device BlockReport&, uint);
#define GROUPS(name, kind, bits)                                                          \
  template [[host_name("quantize_block_" #name)]] kernel void encode_groups<kind<bits>, bits>( \
      device const void*, device uchar*, device void*, device void*, device BlockReport&, uint);
#define BITS(bits)                                       \
  GROUPS(q##bits, AsymmetricGroup, bits)                 \
  GROUPS(q##bits##_symmetric, SymmetricGroup, bits)

BLOCKS(q4_0, CentredBlock<4>)
BLOCKS(q5_0, CentredBlock<5>)
BLOCKS(q4_1, OffsetBlock<4>)
BLOCKS(q5_1, OffsetBlock<5>)
BLOCKS(q8_0, ByteBlock)
BITS(2)
BITS(3)
BITS(4)
BITS(5)
BITS(6)
BITS(7)
BITS(8)
GROUPS(mlx_2, AffineGroup, 2)
GROUPS(mlx_3, AffineGroup, 3)
GROUPS(mlx_4, AffineGroup, 4)
GROUPS(mlx_5, AffineGroup, 5)
GROUPS(mlx_6, AffineGroup, 6)
GROUPS(mlx_8, AffineGroup, 8)
