#include "attention_decode_serial.h"
#include "attention_instances.h"

INSTANTIATE(serial, uint2)
INSTANTIATE(decode_serial, device float*, device float2*, uint2)
