// Written by lbrx/scripts/record_headers.py from lbrx/kernels/attention/attention.py.
#pragma once
#include <metal_stdlib>
#include "records/attention.h"

constant bool ALIGNED [[function_constant(3)]];  // rows begin at multiples of 16 bytes
constant bool MASKED [[function_constant(4)]];
