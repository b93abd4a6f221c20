/* The clock in nanoseconds. */
#pragma once

#include <stdint.h>
#include <time.h>

typedef struct {
  uint32_t numer, denom;
} mach_timebase_info_data_t;

static inline uint64_t mach_absolute_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline int mach_timebase_info(mach_timebase_info_data_t *info) {
  info->numer = info->denom = 1;
  return 0;
}
