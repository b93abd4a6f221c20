// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_matmul.py.
#pragma once
#include <metal_stdlib>
#include "records/quant_blocks.h"

constant uint ROWS [[function_constant(3)]];  // of x in one pass
