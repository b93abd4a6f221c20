// Macros that every header of ours uses. They are undefined again nowhere: all begin with SM_.
#ifndef SOFTMETAL_CONFIG_H
#define SOFTMETAL_CONFIG_H

#define SM_INLINE inline __attribute__((always_inline))

// Code that relies on exact IEEE evaluation order even when the program is compiled with fast maths.
#define SM_PRECISE_BEGIN _Pragma("float_control(precise, on, push)")
#define SM_PRECISE_END _Pragma("float_control(pop)")

#endif
