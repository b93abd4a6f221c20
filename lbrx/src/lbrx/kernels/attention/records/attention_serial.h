// Written by lbrx/scripts/record_headers.py from lbrx/kernels/attention/attention.py.
#pragma once
#include <metal_stdlib>
#include "records/attention.h"

constant uint VECTORS [[function_constant(3)]];  // of queries in a block
