// Macros for all headers. They stay defined in user code, so all begin with SM_.
#ifndef SOFTMETAL_CONFIG_H
#define SOFTMETAL_CONFIG_H

#define SM_INLINE inline __attribute__((always_inline))

// Code that relies on exact IEEE evaluation order even when the program is compiled with fast maths.
#define SM_PRECISE_BEGIN _Pragma("float_control(precise, on, push)")
#define SM_PRECISE_END _Pragma("float_control(pop)")

// Metal's fmin and fmax return the other argument if one is a NaN. Arm's instructions for minnum and
// maxnum do so for quiet NaNs only, those of x86 and NVIDIA for all.
#if defined(__aarch64__)
#define SM_FMIN(x, y) __builtin_elementwise_minimumnum(x, y)
#define SM_FMAX(x, y) __builtin_elementwise_maximumnum(x, y)
#else
#define SM_FMIN(x, y) __builtin_elementwise_minnum(x, y)
#define SM_FMAX(x, y) __builtin_elementwise_maxnum(x, y)
#endif

// Address spaces, which only the strict check knows: compiler/strict/include/softmetal/spaces.h.
#ifndef SM_STRICT
#define SM_THREAD
#define SM_LITERAL const char*
#endif

#endif
