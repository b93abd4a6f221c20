// The precompiled header of every kernel: all of Metal's headers, then the trampoline.
#ifndef SOFTMETAL_UNIT_H
#define SOFTMETAL_UNIT_H

#include <metal_stdlib>

#include "softmetal/entry.h"

#endif
