#include "toy_neighbours.h"

#define NEIGHBOURS(name, type) \
  template [[host_name(name)]] [[kernel]] decltype(neighbours<type>) neighbours<type>;

NEIGHBOURS("toy_neighbours_float32", float)
NEIGHBOURS("toy_neighbours_float16", half)
NEIGHBOURS("toy_neighbours_bfloat16", bfloat)
