// What a kernel on an NVIDIA GPU gets, by value: mirrored in executors/cuda/driver.c.
#ifndef SOFTMETAL_TARGET_LAUNCH_H
#define SOFTMETAL_TARGET_LAUNCH_H

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

typedef struct sm_launch {
  void *buffers[31];                   /* by buffer index */
  __UINT32_TYPE__ grid[3];             /* threads_per_grid */
  __UINT32_TYPE__ group[3];            /* dispatch_threads_per_threadgroup: the full size */
  __UINT32_TYPE__ groups[3];           /* threadgroups_per_grid */
  __UINT32_TYPE__ scratch_offset[31];  /* of each [[threadgroup(i)]] argument */
  __UINT32_TYPE__ flat_grid;           /* the grid has more rows than the hardware allows */
  __UINT32_TYPE__ flat_group;          /* ragged edges, or more layers than the hardware allows */
  sm_log_block *log;
} sm_launch;

#endif
