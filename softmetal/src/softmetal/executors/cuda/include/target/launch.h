// What a kernel on an NVIDIA GPU gets, by value; the driver fills it in.
#ifndef SOFTMETAL_TARGET_LAUNCH_H
#define SOFTMETAL_TARGET_LAUNCH_H

#include "../../../../runtime/finding.h"

/* Messages of the kernels of one command list, in memory that the host sees: `used` bytes were asked
   for; those within `size` hold records. */
typedef struct sm_log_block {
  __UINT32_TYPE__ size, used, dropped, padding;
  __UINT8_TYPE__ data[];
} sm_log_block;

/* A record: this head, `count` values, `count` kinds, then subsystem, category, format and the string
   arguments with their zeros. A multiple of eight bytes. */
typedef struct sm_log_record {
  __UINT32_TYPE__ bytes, level, count, padding;
} sm_log_record;

/* What a queue and its kernels tell each other, in memory of the host that the GPU sees. Kernels look at
   `stop` every few seconds: those of this command list and of older ones have to end. One that
   ended early writes its handle and why to the place of its list. stopping.py has the offsets. */
enum { SM_ENDED_LISTS = 256, SM_ENDED_SHIFT = 56, SM_ENDED_STOPPED = 1, SM_ENDED_TRAPPED = 2 };
typedef struct sm_control {
  __UINT64_TYPE__ stop;
  __UINT64_TYPE__ current; /* the list whose graph runs */
  __UINT64_TYPE__ ended[SM_ENDED_LISTS]; /* by list: a handle, and above SM_ENDED_SHIFT the reason */
} sm_control;

typedef struct sm_launch {
  sm_control *control;
  __UINT64_TYPE__ kernel;  /* its handle */
  __UINT64_TYPE__ list;    /* the number of its command list; 0: that of `current` */
  void *buffers[31];                   /* by buffer index */
  __UINT32_TYPE__ grid[3];             /* threads_per_grid */
  __UINT32_TYPE__ group[3];            /* dispatch_threads_per_threadgroup: the full size */
  __UINT32_TYPE__ groups[3];           /* threadgroups_per_grid */
  __UINT32_TYPE__ scratch_offset[31];  /* of each [[threadgroup(i)]] argument */
  __UINT32_TYPE__ flat_grid;           /* the grid has more rows than the hardware allows */
  __UINT32_TYPE__ flat_group;          /* ragged edges, or more layers than the hardware allows */
  sm_log_block *log;
  void *check; /* sm_check_block of kernels compiled for checking */
} sm_launch;

#ifdef __cplusplus
namespace softmetal {
#endif

/* What the checks of one launch know, in memory of the GPU. */
enum { SM_CHECK_REGIONS = 512, SM_SINK_BYTES = 256 /* no type is larger */, SM_SEEN = 8192 };
typedef struct sm_check_region {
  __UINT64_TYPE__ start, end;
  __UINT32_TYPE__ kind, index; /* enum region_kind of finding.h */
} sm_check_region;

typedef struct sm_check_block {
  struct sm_check_report *report; /* of the command list */
  sm_launch launch;
  __UINT32_TYPE__ scratch_count, scratch_length[31];
  __UINT32_TYPE__ region_count, padding;
  /* For accesses out of bounds. */
  __attribute__((aligned(16))) __UINT8_TYPE__ zeros[SM_SINK_BYTES], sink[SM_SINK_BYTES];
  sm_check_region regions[SM_CHECK_REGIONS];
} sm_check_block;

/* The findings of a command list: `count` were claimed, the first of them are stored. */
typedef struct sm_check_report {
  __UINT32_TYPE__ count, padding;
  sm_finding findings[FINDINGS];
  __UINT32_TYPE__ seen[SM_SEEN / 32]; /* kernels and sites that have one */
} sm_check_report;

#ifdef __cplusplus
}
#endif

#endif
