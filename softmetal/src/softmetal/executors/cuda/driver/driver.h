/* Command lists on NVIDIA GPUs: a queue is a CUDA stream and a thread that fills it. The lists are
   those of commands.h. The thread that commits a list puts it into the stream itself if that takes few
   calls and none of them waits; others are left to the queue's thread, because a list may have to wait
   for an event that the program signals later, or for counts that the GPU computes. */
#ifndef SOFTMETAL_DRIVER_H
#define SOFTMETAL_DRIVER_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../runtime/commands.h"
#include "../../../runtime/format.h"
#include "../../../runtime/outcome.h"
#include "../../../runtime/sync.h"
#include "../../../runtime/uses.h"
#include "../include/target/launch.h"
#include "libcuda.h"

#define SM_EXPORT __attribute__((visibility("default")))

enum {
  ERROR_BYTES = 1024,
  LOG_BYTES = 1 << 20,
  SPIN_NS = 2000000, /* a wait polls for this long, then sleeps in between */
  SLEEP_NS = 50000,
  HANDLE_BITS = SM_ENDED_SHIFT,
  NAME_BYTES = 512,
  SPARE_EVENTS = 64,
};

typedef struct sm_gpu {
  CUdevice device;
  CUcontext context;
  atomic_bool lost; /* a fault has ended the context: no call of the driver with it succeeds */
  char why_lost[ERROR_BYTES];
  sm_u64 timeout; /* nanoseconds that a list may run; 0: no limit */
  atomic_uint launches; /* counted for the watchdog, */
  atomic_bool unwatched; /* which sleeps until there is one */
  CUfunction stamp, patch; /* kernels of device.c */
  CUevent base; /* when the device was opened */
  sm_u64 base_time, clock_offset; /* nanoseconds of CLOCK_MONOTONIC */
  sm_mirrors mirrors;
  sm_mutex events_lock;
  struct sm_gpu_event *events;
  sm_mutex spare_lock; /* making an event costs more than recording it */
  CUevent spare[SPARE_EVENTS];
  unsigned spare_count;
  sm_mutex sweep;            /* the rest belongs to who holds it */
  struct sm_ticket *launched; /* the oldest of those that the GPU may not have finished */
  struct sm_ticket **newest;
  CUstream copies; /* from the device's side of mirrors */
  char *fresh;     /* pinned: where they go to */
  size_t fresh_size;
} sm_gpu;

typedef struct sm_gpu_kernel {
  CUmodule module;
  CUfunction function;
  int max_threads;
  sm_u64 serial; /* unlike its address, no other kernel has it */
  sm_u32 written; /* bit i: it may write buffer i */
  bool logs, checked;
  bool waits; /* it waits by itself for the kernel before it, and may be launched before that ends */
  bool reads_early; /* it reads memory before it waits, which no kernel of the same graph writes */
  char name[];
} sm_gpu_kernel;

/* A counter that streams write and the host reads. `promised` is the highest value whose signal is
   in a stream already: waiting for it inside another stream cannot block forever. */
typedef struct sm_gpu_event {
  struct sm_gpu_event *next; /* of the GPU's */
  atomic_ullong *value; /* in pinned memory */
  atomic_ullong promised;
  atomic_uint sequence;
} sm_gpu_event;

enum state { QUEUED, LAUNCHED, DONE };

typedef struct sm_ticket {
  struct sm_ticket *next; /* of the queue, later of those that are launched */
  sm_gpu *gpu;
  struct sm_gpu_queue *queue; /* until it is done */
  sm_u64 number; /* of its queue's lists */
  sm_u64 submitted;
  sm_u64 began, stopped; /* when it was first seen to run, and when it was told to stop */
  atomic_uint state, references;
  CUevent start, end;
  sm_u64 times[2];
  char *error;
  CUresult fatal; /* an error of the driver that the context does not survive */
  sm_log_block *log; /* pinned, from the first kernel that logs on */
  char *messages;    /* the same as executors/logs.py reads them */
  size_t message_bytes;
  CUdeviceptr report;     /* sm_check_report, from the first checked kernel on */
  sm_check_report *found; /* the same, when it is done */
  sm_uses uses; /* of mirrors */
  const sm_gpu_kernel *last; /* launched */
  size_t size;
  char list[];
} sm_ticket;

/* A launch, with the memory of its arguments. */
typedef struct sm_gpu_launch {
  const sm_gpu_kernel *kernel;
  CUDA_KERNEL_NODE_PARAMS node;
  void *arguments[1];
  sm_launch launch;
} sm_gpu_launch;

typedef struct sm_gpu_queue {
  sm_gpu *gpu;
  CUstream stream;
  CUevent reached; /* by the stream, where its thread waits for it */
  sm_control *control; /* pinned */
  sm_u64 lists; /* so far */
  atomic_uint unfinished; /* lists that were committed */
  sm_mutex lock;
  sm_ticket *first, **last;
  bool filling; /* a thread puts a list into the stream; what is below belongs to it */
  bool closed;
  atomic_uint arrivals;
  sm_u32 *counts; /* pinned: for indirect counts */
  CUdeviceptr patches; /* memory of the device, for those of a list */
  size_t patches_size;
  CUdeviceptr check_block; /* sm_check_block of the kernel that runs */
  const sm_command_resources *resources; /* of the list, for the next kernel */
  cublasHandle_t blas; /* from the first product on */
  struct sm_gpu_graph *graphs; /* the last one used first */
} sm_gpu_queue;

/* ---- libcuda.c -------------------------------------------------------------------------------- */

/* Looks the functions up; what is missing, or null. */
const char *sm_find_libcuda(void);
/* An error of the driver in words. */
const char *sm_gpu_describe(CUresult code, char text[ERROR_BYTES]);

/* ---- device.c ---------------------------------------------------------------------------------- */

/* Writes the clock, in nanoseconds of the host's, when the stream comes to it. */
CUresult sm_gpu_stamp(const sm_gpu *gpu, sm_u64 address, CUstream stream);

/* Writes the changed bytes of patches, which are in the device's memory. */
CUresult sm_gpu_patch(const sm_gpu *gpu, sm_u64 patches, size_t count, CUstream stream);

/* ---- faults.c ---------------------------------------------------------------------------------- */

/* Makes the GPU's context the calling thread's; false if it is lost. */
bool sm_gpu_enter(sm_gpu *gpu);
/* Notes that the context is lost, and why: queues and events wait for nothing any more. */
void sm_gpu_lose(sm_gpu *gpu, const char *why);
/* A list that is running: stops it if its time is over. False if that did not help, and the context was
   given up. Within `sweep`. */
bool sm_gpu_watch(sm_ticket *ticket);
/* Starts the thread that watches lists, if they have a limit; whether it could. */
bool sm_gpu_start_watchdog(sm_gpu *gpu);
/* Waits on the queue's own thread until its stream has done all work so far; false: the list failed. */
bool sm_gpu_await(sm_gpu_queue *queue, sm_ticket *ticket);
/* The error of a list whose kernels ended early, if one did. */
void sm_gpu_read_ended(sm_ticket *ticket);
/* The kernels of a list in words, for an error that may be of any of them. */
const char *sm_gpu_kernels_of(const sm_ticket *ticket, char names[NAME_BYTES]);
/* Whether the context does not survive an error. */
bool sm_gpu_is_fatal(CUresult code);

/* ---- memory.c ---------------------------------------------------------------------------------- */

/* Copies at once, on the calling thread's current context; whether it was possible. */
bool sm_gpu_upload(sm_u64 device, const char *from, size_t size);
bool sm_gpu_download(char *to, sm_u64 device, size_t size);

/* Pinned memory, zeroed: the GPU reads and writes it at the same address. */
void *softmetal_gpu_allocate_host(sm_gpu *gpu, size_t length);
void softmetal_gpu_free_host(sm_gpu *gpu, void *address, size_t length);

/* ---- log.c ------------------------------------------------------------------------------------- */

/* Turns what kernels wrote into `messages`. */
void sm_ticket_read_log(sm_ticket *ticket);

/* ---- checks.c ---------------------------------------------------------------------------------- */

/* Tells a checked kernel what it may access, in the queue's stream. `lengths` are those of its threadgroup
   arguments. */
void sm_gpu_prepare_check(sm_gpu_queue *queue, sm_ticket *ticket, const sm_u32 *lengths,
                          sm_u32 count, sm_launch *launch);
/* Brings what was found to the host. Within `sweep`. */
void sm_ticket_read_report(sm_ticket *ticket);

/* ---- tickets.c --------------------------------------------------------------------------------- */

/* Stores the first error of a list. */
__attribute__((format(printf, 2, 3))) void sm_gpu_fail(sm_ticket *ticket, const char *format, ...);
/* The same for a call of the driver; whether it failed. */
bool sm_gpu_failed(sm_ticket *ticket, CUresult code);
static inline bool sm_gpu_has_failed(const sm_ticket *ticket) { return ticket->error || ticket->fatal; }
void sm_ticket_release(sm_ticket *ticket);
/* Gives a list the events that record when it ran. */
CUresult sm_ticket_take_events(sm_ticket *ticket);
/* Notes that the device has the list's patches. */
void sm_ticket_note_patches(sm_ticket *ticket);
/* Brings to the host what the list has written; what went wrong, or null. Within `sweep`. */
const char *sm_ticket_absorb(sm_ticket *ticket);
/* Finishes lists in the order of their launches, as far as the GPU has come. Within `sweep`. */
void sm_gpu_finish_launched(sm_gpu *gpu);
/* The same for the GPU of some mirrors, not within `sweep`. */
void sm_gpu_finish_for(sm_mirrors *mirrors);

/* ---- commands.c -------------------------------------------------------------------------------- */

/* A dispatch as a launch; false if there is nothing to launch or it failed. */
bool sm_gpu_prepare(sm_gpu_queue *queue, sm_ticket *ticket, const sm_dispatch *dispatch,
                    const sm_dispatch *inherited, sm_gpu_launch *to);
/* Whether a list can be put into the stream in few calls, none of which waits. */
bool sm_gpu_is_prompt(const sm_gpu_queue *queue, const sm_ticket *ticket);
/* Puts a list into the queue's stream. */
void sm_gpu_run_list(sm_gpu_queue *queue, sm_ticket *ticket);

/* ---- graphs.c ---------------------------------------------------------------------------------- */

/* Launches slots of an indirect command buffer as one graph, if they were executed before; whether it
   did. */
bool sm_gpu_run_graph(sm_gpu_queue *queue, sm_ticket *ticket, const char *slots, size_t count);
/* Whether the execution of slots is the launch of a graph, or of so few kernels that they get none. */
bool sm_gpu_runs_graph(const sm_gpu_queue *queue, const char *slots, size_t count);
void sm_gpu_free_graphs(sm_gpu_queue *queue);

#endif
