// What depends on the target, for the strict check: declarations only, as no code is generated. The
// two targets that have code are runtime/target and executors/cuda/include/target.
#ifndef SOFTMETAL_TARGET_H
#define SOFTMETAL_TARGET_H

#include <softmetal/config.h>

typedef unsigned char sm_u8;
typedef unsigned int sm_u32;
typedef unsigned long sm_u64;

namespace softmetal {

void group_barrier(unsigned flags);
void simd_barrier(unsigned flags);
void fence(unsigned flags, int order, int scope);
void before_atomic(int order);
void after_atomic(int order);
sm_u32 lane();
void write_log(SM_LITERAL subsystem, SM_LITERAL category, sm_u32 level, SM_LITERAL format,
               const sm_u8* kinds, const sm_u64* values, sm_u32 count);

}  // namespace softmetal

#include <target/lanes.h>
#include <target/matrix.h>

#endif
