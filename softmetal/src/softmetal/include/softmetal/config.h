// Macros that every header of ours uses. They are undefined again nowhere: all begin with SM_.
#ifndef SOFTMETAL_CONFIG_H
#define SOFTMETAL_CONFIG_H

#define SM_INLINE inline __attribute__((always_inline))

// Code that relies on exact IEEE evaluation order even when the program is compiled with fast maths.
#define SM_PRECISE_BEGIN _Pragma("float_control(precise, on, push)")
#define SM_PRECISE_END _Pragma("float_control(pop)")

// Metal's fmin and fmax give the other argument where one is a NaN. What Arm has for minnum and
// maxnum does that for quiet NaNs only; the instructions of x86 and NVIDIA do it for all.
#if defined(__aarch64__)
#define SM_FMIN(x, y) __builtin_elementwise_minimumnum(x, y)
#define SM_FMAX(x, y) __builtin_elementwise_maximumnum(x, y)
#else
#define SM_FMIN(x, y) __builtin_elementwise_minnum(x, y)
#define SM_FMAX(x, y) __builtin_elementwise_maxnum(x, y)
#endif

#endif
