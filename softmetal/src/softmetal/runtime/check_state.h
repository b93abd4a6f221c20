/* Shared by the files of the checking modes: check.c, check_shadow.c and check_order.c. */
#ifndef SOFTMETAL_CHECK_STATE_H
#define SOFTMETAL_CHECK_STATE_H

#include "check.h"

/* What a barrier orders. Every barrier orders execution, and with it the reads before it, whose
   values have arrived. Writes before it are visible only if its flags name that memory. */
enum memory { DEVICE, THREADGROUP, EXECUTION, MEMORIES };
#define UNCHECKED (~(sm_u32)0) /* the trampoline's own copies */
enum { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };
enum { STAMPS = 256, GROUPS = 1 << 22, EPOCHS = 254, SIMD_EPOCHS = 15 };
enum { RECENT = 128, SLOTS = 256 /* as in compiler/instrument.py */ };
enum { REGIONS = 512, WARM_PAGES = 64 };
enum { PAGE_SHIFT = 12, PAGE = 1 << PAGE_SHIFT, WORD_SHIFT = 2 };
enum { POISON = 0xff }; /* a NaN in every floating-point type */

#define ARENA_BYTES ((sm_u64)512 << 20)
#define HEADER_BYTES ((sm_u64)1 << 18) /* of an arena, in the place of one stack */

/* The last write, and two unordered reads. Three arrays rather than one of structs: memory that is
   only read or only written then needs a third of the space. */
enum kept { WRITTEN, READ, READ_TOO, KEPT };

typedef struct page {
  sm_u64 key; /* address >> PAGE_SHIFT, plus 1 */
  sm_u64 *kept[KEPT]; /* `nothing` until something is */
  sm_u32 shift; /* log2 of the bytes an element stands for */
} page;

typedef struct region {
  sm_u64 start, end;
  sm_u32 kind, index;
  bool tracked;
} region;

/* The region of a site's last access: its first address and the largest valid offset. */
struct slot {
  sm_u64 start, span;
};

struct sm_check {
  struct slot slots[SLOTS];
  const sm_kernel *kernel;
  sm_submission *submission;
  const sm_launch *launch;
  sm_u32 modes;
  sm_u64 stack;             /* of the worker */
  sm_u64 arena;             /* of its fibers, or 0 */
  sm_u64 stamp;
  sm_u64 group; /* linear position of the threadgroup */
  sm_u64 base;  /* stamp and threadgroup, as accesses are described */
  sm_u32 position[3];
  sm_u32 thread; /* of a SM_GROUPS kernel */
  sm_u32 epoch[MEMORIES], simd_epoch[MEMORIES][SM_MAX_THREADS / SM_LANES];
  sm_u8 fenced[SM_MAX_THREADS]; /* 1 after a fence of the thread, until the next barrier */
  sm_u32 barrier_site[SM_MAX_THREADS], barrier_flags;
  sm_u32 region_count;
  unsigned short recent[RECENT]; /* the region that a site found last */
  region regions[REGIONS];
  page *warm[WARM_PAGES];
  _Alignas(64) char sink[256]; /* target of accesses out of bounds; no type is larger */
  sm_u64 random, salt;
};

extern sm_u64 sm_check_seed;
extern sm_mutex sm_check_lock; /* findings, clocks, fences and stamps */

/* The thread_index_in_threadgroup of the calling thread. */
static inline sm_u32 current_thread(const sm_check *check) {
  sm_u64 offset = (sm_u64)__builtin_frame_address(0) - check->arena;
  return check->arena && offset < ARENA_BYTES ? (sm_u32)(offset >> 18) - 1 : check->thread;
}

static inline bool in_threadgroup(const region *region) {
  return region->kind == VARIABLE || region->kind == SCRATCH;
}

/* ---- check.c --------------------------------------------------------------------------------- */

sm_check *sm_this_check(void); /* of the calling worker, or null */

void sm_add_finding(sm_check *, sm_finding);
sm_finding sm_finding_at(sm_check *, enum finding_type, const region *, sm_u64 address, sm_u64 size,
                         sm_u32 place);

/* ---- check_shadow.c -------------------------------------------------------------------------- */

/* Detects races and reads of unwritten memory, and stores the access. */
void sm_check_shadow(sm_check *, const region *, sm_u64 address, sm_u64 size, sm_u32 place);

/* The same for one word in its usual case; false if the full check is needed. */
bool sm_check_word(sm_check *, const region *, sm_u64 address, sm_u32 place);

/* Forgets the accesses of the first `stamps` dispatches; the others move down by as many. */
void sm_age_shadow(sm_u64 stamps);

/* An access by the calling thread, as it is stored. */
sm_u64 sm_describe(const sm_check *, enum memory memory, sm_u32 place);

static inline sm_u32 sm_epoch_of(sm_u64 access) { return access >> 16 & 0xff; }

/* ---- check_fences.c -------------------------------------------------------------------------- */

extern bool sm_fences; /* a thread of the present dispatch has executed a fence */

void sm_fences_begin(void);
void sm_fences_group(sm_check *);
void sm_fences_barrier(sm_check *, sm_u32 threads, bool device);

/* The calling thread accesses an atomic in device memory. */
void sm_fences_atomic(sm_check *, sm_u64 address, sm_u32 place);

/* Whether fences order an access of the present dispatch before the calling thread. */
bool sm_fences_order(const sm_check *, sm_u64 before, bool wrote);

/* ---- check_order.c --------------------------------------------------------------------------- */

enum { ANCESTORS = 64, FENCES = 256, RESOURCE_BARRIERS = 64 };

/* A dispatch, for comparison with later ones. */
typedef struct record {
  sm_u64 kernel;
  sm_u32 queue, time;    /* its place among its queue's dispatches */
  sm_u64 encoder, phase; /* phases of one encoder are ordered */
  sm_u32 barriers;       /* for single resources, before it in its encoder */
  sm_u32 group_size[3], groups[3];
} record;

/* Encoders that fences order before this one. */
typedef struct ancestry {
  sm_u64 encoder[ANCESTORS];
  sm_u32 count;
} ancestry;

typedef struct fence {
  sm_u64 name;
  ancestry before;
} fence;

struct sm_order {
  sm_clock clock;
  sm_clock seen; /* the part of it that the host or an event brought */
  sm_u32 queue;
  sm_u64 encoder, phase;
  bool concurrent;
  ancestry before;
  sm_u64 seed; /* of the next dispatch */
  sm_u32 barriers; /* for single resources, in this encoder */
  struct {
    sm_u64 start, end;
  } barrier[RESOURCE_BARRIERS];
};

extern record sm_records[STAMPS];       /* by stamp */
extern bool sm_ordered[2][STAMPS]; /* before the present dispatch; [1]: for tracked resources */
extern atomic_bool sm_racing; /* a kernel is checked for races: order is worth recording */

/* A stamp for the next dispatch or blit, and what is ordered before it. */
sm_u64 sm_new_stamp(sm_submission *, record now);

/* Whether a barrier for the resource at `address` came after a dispatch of the present encoder. */
bool sm_barrier_since(const sm_order *, const record *first, sm_u64 address);

#endif
