// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_matmul.py.
#pragma once
#include <metal_stdlib>
#include "records/quant_blocks.h"

constant bool ALIGNED [[function_constant(3)]];  // rows of x begin at multiples of 16 bytes
