// Products of bytes by one instruction.
#ifndef SOFTMETAL_TARGET_DOTS_H
#define SOFTMETAL_TARGET_DOTS_H

namespace softmetal {

template <bool ASigned, bool BSigned> SM_INLINE int dot4(unsigned a, unsigned b, int c) {
  int d;
  if constexpr (ASigned && BSigned)
    __asm__("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else if constexpr (ASigned)
    __asm__("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else if constexpr (BSigned)
    __asm__("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    __asm__("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace softmetal

#endif
