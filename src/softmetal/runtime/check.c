/* The checking modes: bounds, races and reads of uninitialised threadgroup memory.

   The shadow keeps the last write and two reads of every four bytes (of every byte in pages that are
   accessed in smaller pieces), each as one word:

     stamp 8 | threadgroup 22 | thread 10 | epoch 8 | simd epoch 4 | atomic 1 | site 11

   The stamp numbers dispatches; epochs count the barriers that ordered this kind of memory. Two
   accesses race when neither is ordered before the other, one writes, and not both are atomic. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum finding_type { OUT_OF_BOUNDS, RACE, UNINITIALISED, DIVERGENT };
enum region_kind { BUFFER, RESIDENT, VARIABLE, SCRATCH, CONSTANT, NOWHERE };
/* What a barrier orders. Every one orders execution, and so what was read before it: the value has
   arrived. What was written before it is seen only if its flags name that memory. */
enum memory { DEVICE, THREADGROUP, EXECUTION, MEMORIES };
enum { WRITE = 1 << 16, ATOMIC = 1 << 17, MODIFY = 1 << 18, SITE = 0x7ff };
#define UNCHECKED (~(sm_u32)0) /* the trampoline's own copies */
enum { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };
enum { STAMPS = 256, GROUPS = 1 << 22, EPOCHS = 255, SIMD_EPOCHS = 15 };
enum { RECENT = 128, SLOTS = 256 /* as in compiler/instrument.py */ };
enum { REGIONS = 512, FINDINGS = 16, WARM_PAGES = 64 };
enum { PAGE_SHIFT = 12, PAGE = 1 << PAGE_SHIFT, WORD_SHIFT = 2 };
enum { POISON = 0xff }; /* a NaN in every floating-point type */

#define ARENA_BYTES ((sm_u64)512 << 20)

/* The last write, and two reads that are not ordered. Three arrays rather than one of three: what is
   only read or only written then needs a third of the memory and of the time to move it. */
enum kept { WRITTEN, READ, READ_TOO, KEPT };

typedef struct page {
  sm_u64 key; /* address >> PAGE_SHIFT, plus 1 */
  sm_u64 *kept[KEPT]; /* `nothing` until something is */
  sm_u32 shift; /* log2 of the bytes an element stands for */
} page;

static sm_u64 nothing[PAGE]; /* never written to */

typedef struct region {
  sm_u64 start, end;
  sm_u32 kind, index;
  bool tracked;
} region;

/* Where an access was last in bounds: the first address and how far it may be from it. */
struct slot {
  sm_u64 start, span;
};

struct sm_check {
  struct slot slots[SLOTS];
  const sm_kernel *kernel;
  sm_submission *submission;
  const sm_launch *launch;
  sm_u32 modes;
  sm_u64 stack, stack_size; /* of this OS thread */
  sm_u64 arena;             /* of its fibers, or 0 */
  sm_u64 stamp;
  sm_u64 group; /* linear position of the threadgroup */
  sm_u64 base;  /* stamp and threadgroup, as accesses are described */
  sm_u32 position[3], size[3];
  sm_u32 thread; /* of a SM_GROUPS kernel */
  sm_u32 epoch[MEMORIES], simd_epoch[MEMORIES][SM_MAX_THREADS / SM_LANES];
  sm_u32 barrier_site[SM_MAX_THREADS], barrier_flags;
  sm_u32 region_count;
  unsigned short recent[RECENT]; /* the region that a site found last */
  region regions[REGIONS];
  page *warm[WARM_PAGES];
  _Alignas(64) char sink[256]; /* where accesses out of bounds go; no type is larger */
  sm_u64 random, salt;
};

static _Thread_local sm_check *self;
static sm_mutex check_lock;   /* findings, and everything below */
static sm_mutex dispatch_lock; /* held through a dispatch whose accesses are shadowed */
static sm_u64 seed = 1;
static atomic_bool racing;    /* a kernel is checked for races: order is worth recording */

SM_EXPORT void softmetal_set_seed(sm_u64 value) { seed = value ? value : 1; }

static sm_u64 random_of(sm_u64 *state) {
  *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
  return *state * 0x2545f4914f6cdd1dull;
}

/* ---- kernels --------------------------------------------------------------------------------- */

SM_EXPORT bool softmetal_set_checks(sm_kernel *kernel, sm_u32 modes, sm_u64 anchor,
                                    const sm_variable *variables, sm_u32 count) {
  sm_kernel_checks *checks = malloc(sizeof *checks + count * sizeof *variables);
  Dl_info object;
  if (!checks || !dladdr(kernel->entry.address, &object)) return false;
  *checks = (sm_kernel_checks){modes, anchor, kernel->anchor_address, object.dli_fbase, count};
  memcpy(checks->variables, variables, count * sizeof *variables);
  kernel->checks = checks;
  if (modes & SM_CHECK_RACE) atomic_store(&racing, true);
  return true;
}

/* ---- shadow pages ---------------------------------------------------------------------------- */

static page *pages;
static size_t page_count, page_capacity;

static page *find_page(sm_u64 key) {
  size_t at = key * 0x9e3779b97f4a7c15ull & (page_capacity - 1);
  while (pages[at].key && pages[at].key != key) at = (at + 1) & (page_capacity - 1);
  return &pages[at];
}

static void grow_pages(void) {
  page *before = pages;
  size_t count = page_capacity;
  page_capacity = count ? 2 * count : 1024;
  pages = calloc(page_capacity, sizeof *pages);
  if (!pages) abort();
  for (size_t i = 0; i < count; i++)
    if (before[i].key) *find_page(before[i].key) = before[i];
  free(before);
}

static page *shadow_page(sm_check *check, sm_u64 number) {
  sm_u64 key = number + 1;
  /* Hashed: buffers of one kernel are often powers of two apart. */
  page **warm = &check->warm[key * 0x9e3779b97f4a7c15ull >> 58];
  if (SM_LIKELY(*warm && (*warm)->key == key)) return *warm;
  if (2 * page_count >= page_capacity) {
    grow_pages();
    memset(check->warm, 0, sizeof check->warm);
  }
  page *found = find_page(key);
  if (!found->key) {
    *found = (page){key, {nothing, nothing, nothing}, WORD_SHIFT};
    page_count++;
  }
  return *warm = found;
}

static inline void keep(page *page, enum kept kind, sm_u64 index, sm_u64 access) {
  if (SM_UNLIKELY(page->kept[kind] == nothing) &&
      !(page->kept[kind] = calloc(PAGE >> page->shift, sizeof access)))
    abort();
  page->kept[kind][index] = access;
}

static void release_kept(page *page, enum kept kind) {
  if (page->kept[kind] != nothing) free(page->kept[kind]);
  page->kept[kind] = nothing;
}

/* Smaller pieces than words are accessed: one element a byte from now on. */
static void refine(page *page) {
  for (int kind = 0; kind < KEPT; kind++) {
    const sm_u64 *coarse = page->kept[kind];
    if (coarse == nothing) continue;
    sm_u64 *fine = malloc(PAGE * sizeof *fine);
    if (!fine) abort();
    for (int i = 0; i < PAGE; i++) fine[i] = coarse[i >> WORD_SHIFT];
    release_kept(page, kind);
    page->kept[kind] = fine;
  }
  page->shift = 0;
}

/* Forgets the first `stamps` in one array of a page; whether anything is left. */
static bool age_kept(page *page, enum kept kind, sm_u64 stamps) {
  sm_u64 *all = page->kept[kind], any = 0;
  if (all == nothing) return false;
  for (int i = 0; i < PAGE >> page->shift; i++)
    any |= all[i] = all[i] >> 56 > stamps ? all[i] - (stamps << 56) : 0;
  if (!any) release_kept(page, kind);
  return any;
}

/* Forgets the accesses of the first `stamps` dispatches; the others move down by as many. */
static void age_shadow(sm_u64 stamps) {
  page *before = pages;
  pages = calloc(page_capacity, sizeof *pages);
  if (page_capacity && !pages) abort();
  page_count = 0;
  for (size_t i = 0; i < page_capacity; i++) {
    if (!before[i].key) continue;
    bool any = false;
    for (int kind = 0; kind < KEPT; kind++) any |= age_kept(&before[i], kind, stamps);
    if (!any) continue;
    *find_page(before[i].key) = before[i];
    page_count++;
  }
  free(before);
}

/* ---- order between dispatches ---------------------------------------------------------------- */

/* As packing.py numbers them. */
enum { SERIAL, CONCURRENT, BARRIER, UPDATE_FENCE, WAIT_FENCE, CONCURRENCY, FROM, TO };
enum { ANCESTORS = 64, FENCES = 256, RESOURCE_BARRIERS = 64 };

/* What one dispatch was, for those that come after it. */
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

static record records[STAMPS];
static sm_u32 last_stamp;
static bool ordered[2][STAMPS]; /* before the present dispatch; [1]: for tracked resources */
static sm_clock host_clock, queue_clock[SM_QUEUES];
static sm_u64 encoders;
static fence fences[FENCES];

static void merge(sm_clock *into, const sm_clock *from) {
  for (int i = 0; i < SM_QUEUES; i++)
    if (into->time[i] < from->time[i]) into->time[i] = from->time[i];
}

static void add_ancestor(ancestry *to, sm_u64 encoder) {
  for (sm_u32 i = 0; i < to->count && i < ANCESTORS; i++)
    if (to->encoder[i] == encoder) return;
  to->encoder[to->count++ % ANCESTORS] = encoder;
}

static bool is_ancestor(const ancestry *of, sm_u64 encoder) {
  for (sm_u32 i = 0; i < of->count && i < ANCESTORS; i++)
    if (of->encoder[i] == encoder) return true;
  return false;
}

static fence *fence_named(sm_u64 name) {
  fence *found = &fences[name * 0x9e3779b97f4a7c15ull >> 56];
  if (found->name != name) *found = (fence){.name = name};
  return found;
}

void sm_check_submitted(sm_submission *submission) {
  if (!atomic_load_explicit(&racing, memory_order_relaxed)) return;
  if (!(submission->order = calloc(1, sizeof(sm_order)))) abort();
  sm_lock(&check_lock);
  submission->order->clock = submission->order->seen = host_clock;
  submission->order->seed = seed;
  sm_unlock(&check_lock);
}

void sm_check_started(sm_submission *submission, sm_u32 queue) {
  sm_order *order = submission->order;
  if (!order) return;
  sm_lock(&check_lock);
  order->queue = queue % SM_QUEUES;
  merge(&order->clock, &queue_clock[order->queue]);
  order->encoder = ++encoders;
  sm_unlock(&check_lock);
}

void sm_check_order(sm_submission *submission, sm_u32 kind, sm_u64 value) {
  sm_order *order = submission->order;
  if (!order) return;
  sm_lock(&check_lock);
  if (kind == SERIAL || kind == CONCURRENT) {
    order->encoder = ++encoders;
    order->phase = 0;
    order->concurrent = kind == CONCURRENT;
    order->before.count = order->barriers = 0;
  } else if (kind == BARRIER) {
    order->phase++;
  } else if (kind == FROM) {
    order->barrier[order->barriers % RESOURCE_BARRIERS].start = value;
  } else if (kind == TO) {
    order->barrier[order->barriers++ % RESOURCE_BARRIERS].end = value;
  } else if (kind == CONCURRENCY) { /* an indirect command buffer begins or ends */
    order->phase++;
    order->concurrent = value;
  } else if (kind == UPDATE_FENCE) {
    fence *to = fence_named(value);
    for (sm_u32 i = 0; i < order->before.count && i < ANCESTORS; i++)
      add_ancestor(&to->before, order->before.encoder[i]);
    add_ancestor(&to->before, order->encoder);
  } else if (kind == WAIT_FENCE) {
    const fence *from = fence_named(value);
    for (sm_u32 i = 0; i < from->before.count && i < ANCESTORS; i++)
      add_ancestor(&order->before, from->before.encoder[i]);
  }
  sm_unlock(&check_lock);
}

static void add_signal(sm_signals *signals, sm_u64 value, const sm_clock *clock) {
  sm_u32 at = signals->count++ % SM_SIGNALS;
  signals->last[at].value = value;
  signals->last[at].clock = *clock;
}

/* A wait ends with the first signal that reaches its value. */
static void merge_signal(sm_clock *into, const sm_signals *signals, sm_u64 value) {
  sm_u32 first = signals->count > SM_SIGNALS ? signals->count - SM_SIGNALS : 0;
  for (sm_u32 i = first; i < signals->count; i++)
    if (signals->last[i % SM_SIGNALS].value >= value) {
      merge(into, &signals->last[i % SM_SIGNALS].clock);
      return;
    }
}

void sm_check_signal(sm_submission *submission, sm_signals *signals, sm_u64 value) {
  if (!submission->order) return;
  sm_lock(&check_lock);
  add_signal(signals, value, &submission->order->clock);
  sm_unlock(&check_lock);
}

void sm_check_wait(sm_submission *submission, const sm_signals *signals, sm_u64 value) {
  if (!submission->order) return;
  sm_lock(&check_lock);
  merge_signal(&submission->order->clock, signals, value);
  merge_signal(&submission->order->seen, signals, value);
  sm_unlock(&check_lock);
}

void sm_check_host_saw(const sm_clock *seen) {
  if (!atomic_load_explicit(&racing, memory_order_relaxed)) return;
  sm_lock(&check_lock);
  merge(&host_clock, seen);
  sm_unlock(&check_lock);
}

void sm_check_host_signal(sm_signals *signals, sm_u64 value) {
  if (!atomic_load_explicit(&racing, memory_order_relaxed)) return;
  sm_lock(&check_lock);
  add_signal(signals, value, &host_clock);
  sm_unlock(&check_lock);
}

void sm_check_host_wait(const sm_signals *signals, sm_u64 value) {
  if (!atomic_load_explicit(&racing, memory_order_relaxed)) return;
  sm_lock(&check_lock);
  merge_signal(&host_clock, signals, value);
  sm_unlock(&check_lock);
}

const sm_clock *sm_order_clock(const sm_order *order) { return &order->clock; }

void sm_check_free(sm_submission *submission) {
  free(submission->order);
  free(submission->findings);
}

static bool comes_before(const record *first, const record *then, const sm_order *order,
                         bool tracked) {
  if (first->encoder == then->encoder) return first->phase != then->phase;
  if (first->queue != then->queue) return first->time <= order->clock.time[first->queue];
  return tracked || first->time <= order->seen.time[first->queue] ||
         is_ancestor(&order->before, first->encoder);
}

/* A stamp for the next dispatch or blit, and what is ordered before it. */
static sm_u64 new_stamp(sm_submission *submission, record now) {
  sm_order *order = submission->order;
  if (last_stamp == STAMPS - 1) {
    age_shadow(STAMPS / 2);
    last_stamp -= STAMPS / 2;
    memmove(records + 1, records + 1 + STAMPS / 2, last_stamp * sizeof *records);
  }
  if (order) {
    if (!order->concurrent) order->phase++;
    order->seed += 0x9e3779b97f4a7c15ull;
    now.queue = order->queue;
    now.time = ++queue_clock[order->queue].time[order->queue];
    now.encoder = order->encoder;
    now.phase = order->phase;
    now.barriers = order->barriers;
    for (sm_u32 i = 1; i <= last_stamp; i++)
      for (int tracked = 0; tracked < 2; tracked++)
        ordered[tracked][i] = comes_before(&records[i], &now, order, tracked);
    /* Only now: a dispatch is not ordered before itself by its own time. */
    order->clock.time[order->queue] = now.time;
    merge(&queue_clock[order->queue], &order->clock);
  } else {
    memset(ordered, 1, sizeof ordered);
  }
  records[++last_stamp] = now;
  return last_stamp;
}

/* ---- findings -------------------------------------------------------------------------------- */

static void add_finding(sm_check *check, sm_finding finding) {
  sm_submission *submission = check->submission;
  finding.kernel = (sm_u64)check->kernel;
  memcpy(finding.group, check->position, sizeof finding.group);
  for (int d = 0; d < 3; d++) { /* smaller at a ragged edge */
    sm_u32 rest = check->launch->grid[d] - check->position[d] * check->launch->group[d];
    finding.group_size[d] = rest < check->launch->group[d] ? rest : check->launch->group[d];
  }
  memcpy(finding.groups, check->launch->groups, sizeof finding.groups);
  sm_lock(&check_lock);
  if (!submission->findings) submission->findings = calloc(FINDINGS, sizeof finding);
  sm_finding *list = submission->findings;
  sm_u32 known = 0;
  for (; known < submission->finding_count; known++)
    if (list[known].type == finding.type && list[known].site == finding.site &&
        list[known].other_site == finding.other_site && list[known].kernel == finding.kernel)
      break;
  if (known == submission->finding_count && known < FINDINGS && list) {
    list[known] = finding;
    submission->finding_count++;
  }
  sm_unlock(&check_lock);
}

SM_EXPORT sm_u32 softmetal_findings(sm_submission *submission, const sm_finding **list) {
  *list = submission->findings;
  return submission->finding_count;
}

static sm_u32 current_thread(const sm_check *check) {
  sm_u64 offset = (sm_u64)__builtin_frame_address(0) - check->arena;
  return check->arena && offset < ARENA_BYTES ? (sm_u32)(offset >> 18) - 1 : check->thread;
}

static sm_finding finding_at(sm_check *check, enum finding_type type, const region *region,
                             sm_u64 address, sm_u64 size, sm_u32 place) {
  return (sm_finding){
      .type = type,
      .region = region ? region->kind : NOWHERE,
      .index = region ? region->index : 0,
      .offset = region ? (__INT64_TYPE__)(address - region->start) : (__INT64_TYPE__)address,
      .length = region ? region->end - region->start : 0,
      .size = (sm_u32)size,
      .write = (place & WRITE) != 0,
      .site = place & SITE,
      .thread = current_thread(check),
  };
}

/* ---- races ----------------------------------------------------------------------------------- */

static sm_u64 stamp_of(sm_u64 access) { return access >> 56; }
static sm_u64 group_of(sm_u64 access) { return access >> 34 & (GROUPS - 1); }
static sm_u32 thread_of(sm_u64 access) { return access >> 24 & 0x3ff; }
static sm_u32 epoch_of(sm_u64 access) { return access >> 16 & 0xff; }
static sm_u32 simd_epoch_of(sm_u64 access) { return access >> 12 & 0xf; }
static bool is_atomic(sm_u64 access) { return access >> 11 & 1; }

static inline sm_u64 describe(const sm_check *check, enum memory memory, sm_u32 place) {
  sm_u64 access = check->base | (place & ATOMIC) >> 6 | (place & SITE);
  if (!check->arena) return access | (sm_u64)check->thread << 24; /* no barriers, no epochs */
  sm_u64 thread = current_thread(check);
  return access | thread << 24 | (sm_u64)check->epoch[memory] << 16 |
         (sm_u64)check->simd_epoch[memory][thread / SM_LANES] << 12;
}

static bool in_threadgroup(const region *region) {
  return region->kind == VARIABLE || region->kind == SCRATCH;
}

static bool of_one_simdgroup(sm_u64 one, sm_u64 other) { return (one ^ other) >> 29 == 0; }

/* Whether `now` is not ordered after `before`. */
static bool concurrent(const region *region, sm_u64 before, sm_u64 now) {
  if (!before || before >> 24 == now >> 24) return false; /* nobody, or the thread itself */
  if (is_atomic(before) && is_atomic(now)) return false;
  bool local = in_threadgroup(region);
  if (stamp_of(before) != stamp_of(now))
    return !local && !ordered[region->tracked][stamp_of(before)];
  if (group_of(before) != group_of(now)) return !local;
  if (epoch_of(before) != epoch_of(now) || epoch_of(now) == EPOCHS) return false;
  bool same_simdgroup = thread_of(before) / SM_LANES == thread_of(now) / SM_LANES;
  return !same_simdgroup || (simd_epoch_of(before) == simd_epoch_of(now) &&
                             simd_epoch_of(now) < SIMD_EPOCHS);
}

/* Whether a barrier for the resource at `address` came after a dispatch of the present encoder. */
static bool barrier_since(const sm_order *order, const record *first, sm_u64 address) {
  if (!order || first->encoder != order->encoder) return false;
  if (order->barriers - first->barriers > RESOURCE_BARRIERS) return true; /* not known any more */
  for (sm_u32 i = first->barriers; i < order->barriers; i++)
    if (address >= order->barrier[i % RESOURCE_BARRIERS].start &&
        address < order->barrier[i % RESOURCE_BARRIERS].end)
      return true;
  return false;
}

static void report_race(sm_check *check, const region *region, sm_u64 address, sm_u32 size,
                        sm_u32 place, sm_u64 before, bool wrote) {
  sm_finding finding = finding_at(check, RACE, region, address, size, place);
  const record *other = &records[stamp_of(before)];
  if (stamp_of(before) != check->stamp && barrier_since(check->submission->order, other, address))
    return;
  finding.other_kernel = other->kernel;
  finding.other_thread = thread_of(before);
  finding.other_group = (sm_u32)group_of(before);
  finding.other_write = wrote;
  finding.other_site = before & SITE;
  memcpy(finding.other_group_size, other->group_size, sizeof finding.other_group_size);
  memcpy(finding.other_groups, other->groups, sizeof finding.other_groups);
  add_finding(check, finding);
}

/* `now` describes the access by the epoch of its memory, `seen` by that of execution. */
static void check_element(sm_check *check, const region *region, page *page, sm_u64 index,
                          sm_u64 now, sm_u64 seen, sm_u64 address, sm_u32 size, sm_u32 place) {
  bool race = check->modes & SM_CHECK_RACE;
  sm_u64 write = page->kept[WRITTEN][index];
  sm_u64 read = page->kept[READ][index], other = page->kept[READ_TOO][index];
  if (race && concurrent(region, write, now))
    report_race(check, region, address, size, place, write, true);
  if (check->modes & SM_CHECK_UNINIT && in_threadgroup(region) &&
      (place & (WRITE | MODIFY)) != WRITE &&
      write >> 34 != now >> 34) /* not in this threadgroup of this dispatch */
    add_finding(check, finding_at(check, UNINITIALISED, region, address, size, place));
  if (place & WRITE) {
    if (race && concurrent(region, read, seen))
      report_race(check, region, address, size, place, read, false);
    else if (race && concurrent(region, other, seen))
      report_race(check, region, address, size, place, other, false);
    keep(page, WRITTEN, index, now);
    return;
  }
  /* Of several readers two stay, if possible of two simdgroups: no later write is by both. */
  if (!concurrent(region, read, seen))
    keep(page, READ, index, seen);
  else if (!concurrent(region, other, seen) ||
           (of_one_simdgroup(other, read) && !of_one_simdgroup(seen, read)))
    keep(page, READ_TOO, index, seen);
}

/* Whether `before` is plainly ordered before `now`; false says only that it is not that plain. */
static inline bool settled(sm_u64 before, sm_u64 now, bool local, const bool *earlier) {
  if (!before || before >> 24 == now >> 24) return true; /* nobody, or the thread itself */
  if (before >> 34 != now >> 34) /* another threadgroup or dispatch */
    return local || (before >> 56 != now >> 56 && earlier[before >> 56]);
  return ((before ^ now) >> 16 & EPOCHS) && epoch_of(now) < EPOCHS;
}

/* Whether two readers of this epoch are known already, and a third would take no one's place. */
static inline bool has_readers(sm_u64 read, sm_u64 other, sm_u64 seen) {
  bool now = ((read ^ seen) | (other ^ seen)) >> 34 == 0 &&
             (((read ^ seen) | (other ^ seen)) >> 11 & 0x1fff) == 0;
  return now && (!of_one_simdgroup(other, read) || of_one_simdgroup(seen, read));
}

/* The usual case of check_element: everything before is plainly ordered. */
static inline __attribute__((always_inline)) bool check_quickly(const sm_check *check, const region *region, page *page,
                                 sm_u64 index, sm_u64 now, sm_u64 seen, sm_u32 place) {
  bool local = in_threadgroup(region);
  const bool *earlier = ordered[region->tracked];
  sm_u64 write = page->kept[WRITTEN][index];
  if (!settled(write, now, local, earlier)) return false;
  if (local && check->modes & SM_CHECK_UNINIT && write >> 34 != now >> 34) return false;
  sm_u64 read = page->kept[READ][index];
  bool unread = settled(read, seen, local, earlier);
  if (place & WRITE) {
    if (!unread || !settled(page->kept[READ_TOO][index], seen, local, earlier)) return false;
    keep(page, WRITTEN, index, now);
    return true;
  }
  if (!unread) return has_readers(read, page->kept[READ_TOO][index], seen);
  keep(page, READ, index, seen);
  return true;
}

/* check_shadow for one word in its usual case; false if there is more to it. */
static inline bool check_word(sm_check *check, const region *region, sm_u64 address, sm_u32 place) {
  sm_u64 key = (address >> PAGE_SHIFT) + 1;
  page *page = check->warm[key * 0x9e3779b97f4a7c15ull >> 58];
  if (address & 3 || !page || page->key != key || !page->shift || region->kind == CONSTANT)
    return false;
  sm_u64 index = (address & (PAGE - 1)) >> WORD_SHIFT;
  enum memory memory = in_threadgroup(region) ? THREADGROUP : DEVICE;
  sm_u64 now = describe(check, memory, place), seen = describe(check, EXECUTION, place);
  return check_quickly(check, region, page, index, now, seen, place);
}

static __attribute__((noinline)) void check_shadow(sm_check *check, const region *region,
                                                   sm_u64 address, sm_u64 size, sm_u32 place) {
  if (region->kind == CONSTANT) return;
  sm_u64 now = describe(check, in_threadgroup(region) ? THREADGROUP : DEVICE, place);
  sm_u64 seen = describe(check, EXECUTION, place);
  bool words = !((address | size) & 3);
  for (sm_u64 at = address, end = address + size; at < end;) {
    sm_u64 stop = (at | (PAGE - 1)) + 1;
    if (stop > end) stop = end;
    page *page = shadow_page(check, at >> PAGE_SHIFT);
    if (!words && page->shift) refine(page);
    sm_u64 index = (at & (PAGE - 1)) >> page->shift;
    for (sm_u64 step = 1u << page->shift; at < stop; at += step, index++)
      if (!check_quickly(check, region, page, index, now, seen, place))
        check_element(check, region, page, index, now, seen, at, (sm_u32)size, place);
  }
}

/* ---- accesses -------------------------------------------------------------------------------- */

static const region *find_region(sm_check *check, sm_u64 address, sm_u64 size, sm_u32 place) {
  for (sm_u32 i = 0; i < check->region_count; i++) {
    const region *region = &check->regions[i];
    if (address >= region->start && address + size <= region->end) {
      check->recent[place % RECENT] = (unsigned short)i;
      return region;
    }
  }
  return NULL;
}

/* The region that the access most likely belongs to: the nearest, not much farther than it is
   long. */
static const region *nearest_region(const sm_check *check, sm_u64 address) {
  const region *nearest = NULL;
  sm_u64 least = ~(sm_u64)0;
  for (sm_u32 i = 0; i < check->region_count; i++) {
    const region *region = &check->regions[i];
    sm_u64 distance = address < region->start ? region->start - address : address - region->end + 1;
    if (address >= region->start && address < region->end) distance = 0;
    if (distance < least && distance <= region->end - region->start + PAGE) {
      nearest = region;
      least = distance;
    }
  }
  return nearest;
}

static bool out_of_bounds(sm_check *check, sm_u64 address, sm_u64 size, sm_u32 place) {
  if (check->modes & SM_CHECK_BOUNDS)
    add_finding(check, finding_at(check, OUT_OF_BOUNDS, nearest_region(check, address), address,
                                  size, place));
  return false;
}

/* Whether the access may be carried out. Outside all regions it is led to a place of no harm. */
static bool check_access(sm_check *check, sm_u64 address, sm_u64 size, sm_u32 place) {
  if (address - check->stack < check->stack_size) return true;
  if (check->arena && address - check->arena < ARENA_BYTES) return true;
  const region *region = &check->regions[check->recent[place % RECENT]];
  if (!(address >= region->start && address + size <= region->end) &&
      !(region = find_region(check, address, size, place)))
    return out_of_bounds(check, address, size, place);
  if (check->modes & SM_CHECK_SHADOWED) check_shadow(check, region, address, size, place);
  return true;
}

static __attribute__((noinline)) sm_u64 check_elsewhere(sm_check *check, sm_u64 address,
                                                        sm_u64 size, sm_u32 place) {
  if (check_access(check, address, size, place)) return address;
  memset(check->sink, 0, sizeof check->sink);
  return (sm_u64)check->sink;
}

/* The address to use in the place of `address`. */
SM_EXPORT sm_u64 softmetal_check_access(sm_u64 address, sm_u64 size, sm_u32 place, sm_u64 slot) {
  sm_check *check = self;
  if (SM_UNLIKELY(!check)) return address;
  const region *region = &check->regions[check->recent[place % RECENT]];
  if (SM_LIKELY(address >= region->start && address + size <= region->end)) { /* as last time */
    if (!(check->modes & SM_CHECK_SHADOWED) && slot < SLOTS)
      check->slots[slot] = (struct slot){region->start, region->end - size - region->start};
    if (check->modes & SM_CHECK_SHADOWED && !(size == 4 && check_word(check, region, address, place)))
      check_shadow(check, region, address, size, place);
    return address;
  }
  return check_elsewhere(check, address, size, place);
}

static bool allowed(const void *address, sm_u64 size, sm_u32 place) {
  return !self || place == UNCHECKED || check_access(self, (sm_u64)address, size, place);
}

SM_EXPORT void *softmetal_check_memcpy(void *to, const void *from, sm_u64 size, sm_u32 site) {
  bool readable = allowed(from, size, site), writable = allowed(to, size, site | WRITE);
  return readable && writable ? memmove(to, from, size) : to;
}

SM_EXPORT void *softmetal_check_memmove(void *to, const void *from, sm_u64 size, sm_u32 site) {
  return softmetal_check_memcpy(to, from, size, site);
}

SM_EXPORT void *softmetal_check_memset(void *to, sm_u32 value, sm_u64 size, sm_u32 site) {
  return allowed(to, size, site | WRITE) ? memset(to, (int)value, size) : to;
}

/* Where kernels look themselves whether an access is in the region of the one before it. */
SM_EXPORT struct slot *softmetal_check_slots(void) { return self->slots; }

/* ---- threads and barriers -------------------------------------------------------------------- */

/* Where SM_GROUPS kernels note their thread_index_in_threadgroup as each thread begins. */
SM_EXPORT sm_u32 *softmetal_check_thread(void) {
  static _Thread_local sm_u32 nobody;
  return self ? &self->thread : &nobody;
}

/* Where SM_GROUPS kernels begin among the `count` threads of a row. */
SM_EXPORT sm_u32 softmetal_check_first(sm_u32 count) {
  return self && self->modes & SM_CHECK_RACE ? (sm_u32)(random_of(&self->random) % count) : 0;
}

SM_EXPORT void softmetal_check_barrier(sm_u32 flags, sm_u32 site) {
  if (self) {
    self->barrier_site[current_thread(self)] = site + 1;
    self->barrier_flags |= flags;
  }
  softmetal_barrier();
}

static void next_epoch(sm_u32 *epoch, sm_u32 limit) {
  if (*epoch < limit) ++*epoch;
}

static bool orders(sm_u32 flags, enum memory memory) {
  return memory == EXECUTION || flags & (memory == DEVICE ? MEM_DEVICE : MEM_THREADGROUP);
}

/* Called once for a simdgroup, by the lane that arrives last. */
SM_EXPORT void softmetal_check_simd_barrier(sm_u32 flags) {
  if (!self) return;
  sm_u32 group = current_thread(self) / SM_LANES;
  for (int memory = 0; memory < MEMORIES; memory++)
    if (orders(flags, memory)) next_epoch(&self->simd_epoch[memory][group], SIMD_EPOCHS);
}

sm_u32 sm_check_pick(sm_check *check, sm_u32 ready) {
  sm_u32 skip = 0;
  if (check->modes & SM_CHECK_RACE)
    skip = (sm_u32)((random_of(&check->random) >> 32) * (sm_u32)__builtin_popcount(ready) >> 32);
  while (skip--) ready &= ready - 1;
  return (sm_u32)__builtin_ctz(ready);
}

/* Threads at another barrier than the first one, or ended, while others wait. */
static void find_divergence(sm_check *check, const sm_u32 *alive, sm_u32 threads) {
  sm_u32 site = 0, first = 0;
  for (sm_u32 i = 0; i < threads && !site; i++)
    if (alive[i / SM_LANES] >> i % SM_LANES & 1) site = check->barrier_site[i], first = i;
  for (sm_u32 i = 0; i < threads && site; i++) {
    bool living = alive[i / SM_LANES] >> i % SM_LANES & 1;
    if (living && check->barrier_site[i] == site) continue;
    sm_finding finding = {.type = DIVERGENT, .site = site - 1, .thread = first};
    finding.other_thread = i;
    finding.other_site = living ? check->barrier_site[i] - 1 : 0;
    finding.other_write = living; /* else it has ended */
    add_finding(check, finding);
    return;
  }
}

void sm_check_release(sm_check *check, const sm_u32 *alive, sm_u32 groups, sm_u32 threads) {
  if (check->modes & SM_CHECK_RACE) find_divergence(check, alive, threads);
  for (int memory = 0; memory < MEMORIES; memory++)
    if (orders(check->barrier_flags, memory)) {
      next_epoch(&check->epoch[memory], EPOCHS);
      memset(check->simd_epoch[memory], 0, groups * sizeof(sm_u32));
    }
  check->barrier_flags = 0;
}

/* ---- dispatches ------------------------------------------------------------------------------ */

static void add_region(sm_check *check, sm_u64 start, sm_u64 size, sm_u32 kind, sm_u32 index,
                       bool tracked) {
  if (size && check->region_count < REGIONS)
    check->regions[check->region_count++] = (region){start, start + size, kind, index, tracked};
}

static void add_variables(sm_check *check, const sm_kernel_checks *checks) {
  sm_u64 storage = checks->anchor_address ? (sm_u64)checks->anchor_address() - checks->anchor : 0;
  for (sm_u32 i = 0; i < checks->variable_count; i++) {
    const sm_variable *variable = &checks->variables[i];
    sm_u64 base = variable->constant ? (sm_u64)checks->image : storage;
    add_region(check, base + variable->offset, variable->size,
               variable->constant ? CONSTANT : VARIABLE, i, true);
  }
}

static sm_check *worker_check(sm_worker *worker) {
  if (!worker->check) {
    sm_check *check = aligned_alloc(_Alignof(sm_check), sizeof *check);
    if (!check) abort();
    memset(check, 0, sizeof *check);
    pthread_attr_t attributes;
    void *stack = NULL;
    size_t size = 0;
    if (!pthread_getattr_np(pthread_self(), &attributes)) {
      pthread_attr_getstack(&attributes, &stack, &size);
      pthread_attr_destroy(&attributes);
    }
    check->stack = (sm_u64)stack;
    check->stack_size = size;
    worker->check = check;
  }
  return worker->check;
}

static sm_u64 dispatch_stamp;

void sm_check_begin(sm_worker *worker, sm_submission *submission, const sm_kernel *kernel,
                    const sm_launch *launch) {
  (void)worker;
  if (!(kernel->checks->modes & SM_CHECK_SHADOWED)) return;
  sm_lock(&dispatch_lock);
  record now = {.kernel = (sm_u64)kernel};
  memcpy(now.group_size, launch->group, sizeof now.group_size);
  memcpy(now.groups, launch->groups, sizeof now.groups);
  sm_lock(&check_lock);
  dispatch_stamp = new_stamp(submission, now);
  sm_unlock(&check_lock);
}

void sm_check_end(const sm_kernel *kernel) {
  if (kernel->checks->modes & SM_CHECK_SHADOWED) sm_unlock(&dispatch_lock);
}

void sm_check_enter(sm_worker *worker, sm_submission *submission, const sm_kernel *kernel,
                    const sm_launch *launch, const sm_u32 *scratch_lengths, sm_u32 scratch_count) {
  sm_check *check = worker_check(worker);
  check->kernel = kernel;
  check->submission = submission;
  check->launch = launch;
  check->modes = kernel->checks->modes;
  check->arena = kernel->mode == SM_FIBERS ? (sm_u64)worker->arena : 0;
  check->stamp = dispatch_stamp;
  check->random = submission->order ? submission->order->seed | 1 : 1;
  check->salt = (sm_u32)random_of(&check->random);
  check->region_count = 0;
  memset(check->recent, 0, sizeof check->recent);
  for (int i = 0; i < SLOTS; i++) check->slots[i] = (struct slot){~(sm_u64)0, 0};
  memset(check->warm, 0, sizeof check->warm); /* pages may have moved since */
  for (sm_u32 i = 0; i < submission->region_count; i++) {
    const sm_command_region *given = &submission->regions[i];
    add_region(check, given->address, given->length, given->index < 0 ? RESIDENT : BUFFER,
               (sm_u32)given->index, given->tracked);
  }
  for (sm_u32 i = 0; i < scratch_count; i++)
    add_region(check, (sm_u64)worker->scratch.address + launch->scratch_offset[i],
               scratch_lengths[i], SCRATCH, i, true);
  add_variables(check, kernel->checks);
  self = check;
}

void sm_check_leave(void) { self = NULL; }

/* A bijection on [0, total) that the seed decides. */
static sm_u64 shuffled(sm_u64 index, sm_u64 total, sm_u64 salt) {
  sm_u64 step = (salt | 1) % total, a = step, b = total;
  while (b) {
    sm_u64 rest = a % b;
    a = b, b = rest;
  }
  if (a != 1) step = 1;
  return (index * step + salt % total) % total;
}

sm_u64 sm_check_group(sm_worker *worker, sm_u64 index, sm_u64 total) {
  sm_check *check = worker->check;
  if (check->modes & SM_CHECK_RACE) index = shuffled(index, total, check->salt);
  const sm_u32 *groups = check->launch->groups;
  check->group = index;
  check->base = check->stamp << 56 | (index & (GROUPS - 1)) << 34;
  check->position[0] = (sm_u32)(index % groups[0]);
  check->position[1] = (sm_u32)(index / groups[0] % groups[1]);
  check->position[2] = (sm_u32)(index / groups[0] / groups[1]);
  memset(check->epoch, 0, sizeof check->epoch);
  memset(check->simd_epoch, 0, sizeof check->simd_epoch);
  memset(check->barrier_site, 0, sizeof check->barrier_site);
  check->barrier_flags = 0;
  if (check->modes & SM_CHECK_SHADOWED)
    for (sm_u32 i = 0; i < check->region_count; i++) {
      const region *region = &check->regions[i];
      if (in_threadgroup(region))
        memset((void *)region->start, POISON, region->end - region->start);
    }
  return index;
}

/* ---- blits ----------------------------------------------------------------------------------- */

static bool is_tracked(const sm_submission *submission, sm_u64 address) {
  for (sm_u32 i = 0; i < submission->region_count; i++)
    if (address - submission->regions[i].address < submission->regions[i].length)
      return submission->regions[i].tracked;
  return true;
}

/* A copy reads its source, if it has one, and writes its destination. */
void sm_check_copy(sm_submission *submission, sm_u64 source, sm_u64 destination, sm_u64 size) {
  if (!submission->order) return;
  static sm_check blit; /* used under the lock alone */
  static const sm_launch launch = {.group = {1, 1, 1}, .groups = {1, 1, 1}};
  sm_lock(&dispatch_lock);
  blit.submission = submission;
  blit.launch = &launch;
  blit.modes = SM_CHECK_RACE;
  memset(blit.warm, 0, sizeof blit.warm); /* pages may have moved since */
  sm_lock(&check_lock);
  blit.stamp = new_stamp(submission, (record){.group_size = {1, 1, 1}, .groups = {1, 1, 1}});
  blit.base = blit.stamp << 56;
  sm_unlock(&check_lock);
  region from = {source, source + size, RESIDENT, 0, is_tracked(submission, source)};
  region to = {destination, destination + size, RESIDENT, 0, is_tracked(submission, destination)};
  if (source) check_shadow(&blit, &from, source, size, 0);
  check_shadow(&blit, &to, destination, size, WRITE);
  sm_unlock(&dispatch_lock);
}
