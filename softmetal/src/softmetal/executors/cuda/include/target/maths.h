// Instructions of NVIDIA GPUs that are good enough for functions of fast maths.
#ifndef SOFTMETAL_TARGET_MATHS_H
#define SOFTMETAL_TARGET_MATHS_H

namespace softmetal::math {

// 2^x within 2 ulp; denormal results are zero.
#define SM_HAS_EXP2 1
inline __attribute__((always_inline)) float exp2_instruction(float x) {
  return __nvvm_ex2_approx_ftz_f(x);
}

}  // namespace softmetal::math

#endif
