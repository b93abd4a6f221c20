/* Objective-C's basic types, and what tells softmetal's runtime of the classes of an image. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __OBJC__
struct objc_object;
typedef struct objc_object *id;
typedef struct objc_class *Class;
typedef struct objc_selector *SEL;
#endif
struct objc_object {
  Class isa;
};
typedef void (*IMP)(void);
typedef bool BOOL;

#define OBJC_BOOL_IS_BOOL 1
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#ifndef nil
#ifdef __cplusplus
#define nil nullptr
#else
#define nil ((void *)0)
#endif
#endif
#ifndef Nil
#define Nil nil
#endif

#ifdef __cplusplus
#define OBJC_EXTERN extern "C"
#else
#define OBJC_EXTERN extern
#endif
#define OBJC_EXPORT OBJC_EXTERN

#ifdef __OBJC__
/* clang's sections have names that are identifiers, so the linker itself marks where they begin. */
#define SOFTMETAL_SECTION(name)                                                  \
  OBJC_EXTERN void *__start_##name[] __attribute__((weak, visibility("hidden"))); \
  OBJC_EXTERN void *__stop_##name[] __attribute__((weak, visibility("hidden")));
SOFTMETAL_SECTION(objc_selrefs)
SOFTMETAL_SECTION(objc_classlist)
SOFTMETAL_SECTION(objc_catlist)
#undef SOFTMETAL_SECTION
OBJC_EXTERN void softmetal_register_image(void **const *sections);
#if __has_feature(objc_exceptions) || defined(__EXCEPTIONS)
/* Weak: a program without handlers has no unwinder, and one without C++ has nothing of C++. */
#define SOFTMETAL_UNWIND(name) OBJC_EXTERN void name(void) __attribute__((weak));
SOFTMETAL_UNWIND(_Unwind_RaiseException)
SOFTMETAL_UNWIND(_Unwind_GetLanguageSpecificData)
SOFTMETAL_UNWIND(_Unwind_GetIP)
SOFTMETAL_UNWIND(_Unwind_GetRegionStart)
SOFTMETAL_UNWIND(_Unwind_SetGR)
SOFTMETAL_UNWIND(_Unwind_SetIP)
SOFTMETAL_UNWIND(__gxx_personality_v0)
SOFTMETAL_UNWIND(__cxa_begin_catch)
SOFTMETAL_UNWIND(__cxa_end_catch)
SOFTMETAL_UNWIND(__cxa_rethrow)
#undef SOFTMETAL_UNWIND
OBJC_EXTERN void softmetal_use_unwinder(const void *functions);
__attribute__((constructor(101), unused)) static void softmetal_use_this_unwinder(void) {
  void (*const functions[])(void) = {_Unwind_RaiseException,
                                     _Unwind_GetLanguageSpecificData,
                                     _Unwind_GetIP,
                                     _Unwind_GetRegionStart,
                                     _Unwind_SetGR,
                                     _Unwind_SetIP,
                                     __gxx_personality_v0,
                                     __cxa_begin_catch,
                                     __cxa_end_catch,
                                     __cxa_rethrow};
  softmetal_use_unwinder(functions);
}
#endif
__attribute__((constructor(101), unused)) static void softmetal_register_this_image(void) {
  void **const sections[] = {__start_objc_selrefs,   __stop_objc_selrefs,
                             __start_objc_classlist, __stop_objc_classlist,
                             __start_objc_catlist,   __stop_objc_catlist};
  softmetal_register_image(sections);
}
#endif
