#include "merge_masks.h"

#define MASKS(name, type)                                                                        \
  template [[host_name("merge_count_high_" #name)]] kernel void merge_count_high<type>(          \
      device const type*, device const type*, device uint*, constant SelectionRecord&, uint);          \
  template [[host_name("merge_count_low_" #name)]] kernel void merge_count_low<type>(            \
      device const type*, device const type*, device uint*, constant SelectionRecord&,                 \
      device const Cut*, uint2);                                                                 \
  template [[host_name("merge_cut_mask_" #name)]] kernel void merge_cut_mask<type>(              \
      device const type*, device const type*, device bool*, constant SelectionRecord&,                 \
      device const Cut*, device const uint*, uint);                                              \
  template [[host_name("merge_bernoulli_" #name)]] kernel void merge_bernoulli<type>(            \
      device const type*, device const type*, device bool*, device float*, constant MaskRowsRecord&,       \
      constant StreamRecord&, uint);                                                                   \
  template [[host_name("merge_rank_bernoulli_" #name)]] kernel void merge_rank_bernoulli<type>(  \
      device const type*, device const type*, device bool*, device float*, constant MaskRowsRecord&,       \
      constant StreamRecord&, device uint*, uint);                                                     \
  template [[host_name("merge_products_" #name)]] kernel void merge_products<type>(              \
      device const type*, device const type*, device const type*, device float*,                 \
      constant MaskRowsRecord&, uint);

MASKS(float32, float)
MASKS(float16, half)
MASKS(bfloat16, bfloat)
