/* The types that metal-cpp and Objective-C programs name. */
#pragma once

#include <TargetConditionals.h>
#include <dispatch/dispatch.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef const void *CFTypeRef;
typedef double CFTimeInterval, CFAbsoluteTime;
typedef long CFIndex;
typedef const struct __CFString *CFStringRef;

#ifdef __cplusplus
extern "C" {
#endif
CFTypeRef CFRetain(CFTypeRef object);
void CFRelease(CFTypeRef object);
#ifdef __cplusplus
}
#endif
