// The precompiled header of every kernel. In CUDA mode a function without attributes is the host's.
#ifndef SOFTMETAL_TARGET_UNIT_H
#define SOFTMETAL_TARGET_UNIT_H

#pragma clang force_cuda_host_device begin
#include <softmetal/unit.h>
#ifdef SM_CHECK
#include <target/check.h>
#endif
#pragma clang force_cuda_host_device end

#endif
