/* The few values of macOS's sysctl that Metal programs ask for; unknown ones are an error. */
#pragma once

#include <stddef.h>

#define CTL_HW 6
#define HW_MEMSIZE 24

#ifdef __cplusplus
extern "C" {
#endif
int sysctlbyname(const char *name, void *value, size_t *size, void *new_value, size_t new_size);
int sysctl(int *name, unsigned count, void *value, size_t *size, void *new_value, size_t new_size);
#ifdef __cplusplus
}
#endif
