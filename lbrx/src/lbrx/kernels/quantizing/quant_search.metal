#include "quant_search.h"

#define SEARCHED(name, ...)                                                          \
  template [[host_name("quantize_groups_" #name)]] kernel void search_blocks<__VA_ARGS__>( \
      device const void*, device uchar*, device BlockReport&, constant ulong&, uint);

SEARCHED(q2_k, K2Block)
SEARCHED(q3_k, K3Block)
SEARCHED(q4_k, K4Block<4, Candidates<15, -10, 21, false>>)
SEARCHED(q5_k, K4Block<5, Candidates<31, -5, 16, false>>)
SEARCHED(q6_k, K6Block)
