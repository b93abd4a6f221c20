// Written by lbrx/scripts/record_headers.py from lbrx/kernels/matmul/matmul_tiles.py.
#pragma once
#include <metal_stdlib>
#include "records/matmul.h"

constant bool X_TRANSPOSED [[function_constant(1)]];
constant bool Y_TRANSPOSED [[function_constant(2)]];
constant bool ALIGNED [[function_constant(3)]];  // rows begin at multiples of 16 bytes
constant uint SWIZZLE [[function_constant(4)]];
constant uint STORED [[function_constant(5)]];  // neighbours that are stored at once: 1, 2 or 8
