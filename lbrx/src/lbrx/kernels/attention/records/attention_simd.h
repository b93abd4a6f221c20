// Written by lbrx/scripts/record_headers.py from lbrx/kernels/attention/attention.py.
#pragma once
#include <metal_stdlib>
#include "records/attention.h"

constant uint SPLIT [[function_constant(3)]];  // keys in a chunk
