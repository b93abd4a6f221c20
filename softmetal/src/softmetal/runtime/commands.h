/* The command list that executors/packing.py packs and an executor reads.

   A list is a sequence of commands, each a multiple of 8 bytes long and starting with `sm_command`. Everything
   is little-endian and naturally aligned; addresses and handles are 64 bits. */
#ifndef SOFTMETAL_COMMANDS_H
#define SOFTMETAL_COMMANDS_H

#include "words.h"

enum sm_opcode {
  SM_OP_DISPATCH = 1,
  SM_OP_COPY,
  SM_OP_FILL,
  SM_OP_SIGNAL,
  SM_OP_WAIT,
  SM_OP_TIMESTAMP,
  SM_OP_GEMM,
  SM_OP_EXECUTE,
  SM_OP_RESOURCES, /* these two only for kernels compiled for checking */
  SM_OP_ORDER,
  SM_OP_USE /* only for devices with their own memory */
};

/* An indirect command buffer is an array of dispatches at this stride. A slot whose threadgroup is
   all zeros does nothing. */
enum { SM_SLOT_BYTES = 448 };

typedef struct sm_command {
  sm_u32 opcode;
  sm_u32 size; /* of the whole command, in bytes */
} sm_command;

typedef struct sm_dispatch {
  sm_u64 kernel; /* 0 in a slot: the inherited one */
  sm_u32 grid[3];
  sm_u32 group[3];
  sm_u64 indirect; /* address of uint32[3] threadgroup counts that replace `grid`, or 0 */
  sm_u32 buffer_count;
  sm_u32 threadgroup_count;
  sm_u64 buffers[]; /* buffer_count addresses; then uint32 threadgroup_count lengths */
} sm_dispatch;

typedef struct sm_command_dispatch {
  sm_command head;
  sm_dispatch dispatch;
} sm_command_dispatch;

typedef struct sm_command_copy {
  sm_command head;
  sm_u64 source, destination, size;
} sm_command_copy;

typedef struct sm_command_fill {
  sm_command head;
  sm_u64 destination, size, value;
} sm_command_fill;

typedef struct sm_command_event { /* signal and wait */
  sm_command head;
  sm_u64 event, value;
} sm_command_event;

typedef struct sm_command_timestamp {
  sm_command head;
  sm_u64 address;
} sm_command_timestamp;

typedef struct sm_command_gemm { /* row-major; types: 0 float32, 1 float16 */
  sm_command head;
  sm_u64 a, b, c;
  sm_u64 m, n, k;
  sm_u64 lda, ldb, ldc;
  __INT64_TYPE__ stride_a, stride_b, stride_c; /* bytes */
  sm_u64 batch;
  double alpha, beta;
  sm_u32 transpose_a, transpose_b;
  sm_u32 type_a, type_b, type_c, padding;
} sm_command_gemm;

typedef struct sm_command_execute {
  sm_command head;
  sm_u64 slots;
  sm_u64 range; /* address of uint32 start, count read at execution, or 0 */
  sm_u32 start, count;
  sm_u32 slot_count, padding;
  sm_dispatch inherited; /* only its kernel and buffers are used */
} sm_command_execute;

/* Leaves those of the slots [*start, *start + *count) that the command has: the range is read at
   execution, and in the checking modes there is a command for each slot. */
static inline void sm_within(const sm_command_execute *execute, sm_u64 *start, sm_u64 *count) {
  sm_u64 end = *start + *count, own_end = (sm_u64)execute->start + execute->count;
  if (*start < execute->start) *start = execute->start;
  if (end > own_end) end = own_end;
  *count = end > *start ? end - *start : 0;
}

/* Memory that the next dispatch may access. */
typedef struct sm_command_region {
  sm_u64 address, length;
  __INT32_TYPE__ index; /* of the buffer argument, -1 if it is only resident */
  sm_u32 tracked;
} sm_command_region;

typedef struct sm_command_resources {
  sm_command head;
  sm_u64 count;
  sm_command_region regions[];
} sm_command_resources;

/* Memory that later kernels reach through addresses in other memory. */
typedef struct sm_command_use {
  sm_command head;
  sm_u64 address, length, written;
} sm_command_use;

typedef struct sm_command_order { /* kinds: see check.c */
  sm_command head;
  sm_u64 kind, value;
} sm_command_order;

#endif
