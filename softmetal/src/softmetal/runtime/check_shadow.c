/* The shadow of memory: the last write and reads of each word, and whether an access races.

   It keeps the last write and two reads of every four bytes (of every byte in pages that are accessed
   in smaller pieces), each as one word:

     stamp 8 | threadgroup 22 | thread 10 | epoch 8 | simd epoch 4 | atomic 1 | site 11

   The stamp numbers dispatches; epochs count the barriers that ordered this kind of memory, by twos:
   odd ones are of a thread's accesses after a fence. Two accesses race when neither is ordered before
   the other, one writes, and not both are atomic. */
#include <stdlib.h>
#include <string.h>

#include "check_state.h"

/* ---- shadow pages ---------------------------------------------------------------------------- */

static sm_u64 nothing[PAGE]; /* never written to */
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

/* Accesses are smaller than words: one element per byte from now on. */
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
void sm_age_shadow(sm_u64 stamps) {
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
/* ---- races ----------------------------------------------------------------------------------- */

static sm_u64 stamp_of(sm_u64 access) { return access >> 56; }
static sm_u64 group_of(sm_u64 access) { return access >> 34 & (GROUPS - 1); }
static sm_u32 thread_of(sm_u64 access) { return access >> 24 & 0x3ff; }
static sm_u32 simd_epoch_of(sm_u64 access) { return access >> 12 & 0xf; }
static bool is_atomic(sm_u64 access) { return access >> 11 & 1; }

static inline sm_u64 describe(const sm_check *check, enum memory memory, sm_u32 place) {
  sm_u64 access = check->base | (place & ATOMIC) >> 6 | (place & SITE);
  sm_u64 thread = current_thread(check), fenced = check->fenced[thread];
  if (!check->arena) return access | thread << 24 | fenced << 16; /* no barriers, no epochs */
  return access | thread << 24 | (check->epoch[memory] | fenced) << 16 |
         (sm_u64)check->simd_epoch[memory][thread / SM_LANES] << 12;
}

sm_u64 sm_describe(const sm_check *check, enum memory memory, sm_u32 place) {
  return describe(check, memory, place);
}

static bool of_one_simdgroup(sm_u64 one, sm_u64 other) { return (one ^ other) >> 29 == 0; }

/* Whether barriers and the order of dispatches leave it open that `now` is before `before`. */
static bool unordered(const region *region, sm_u64 before, sm_u64 now) {
  if (!before || before >> 24 == now >> 24) return false; /* no access before, or by the same thread */
  if (is_atomic(before) && is_atomic(now)) return false;
  bool local = in_threadgroup(region);
  if (stamp_of(before) != stamp_of(now))
    return !local && !sm_ordered[region->tracked][stamp_of(before)];
  if (group_of(before) != group_of(now)) return !local;
  if (sm_epoch_of(before) / 2 != sm_epoch_of(now) / 2 || sm_epoch_of(now) >= EPOCHS) return false;
  bool same_simdgroup = thread_of(before) / SM_LANES == thread_of(now) / SM_LANES;
  return !same_simdgroup || (simd_epoch_of(before) == simd_epoch_of(now) &&
                             simd_epoch_of(now) < SIMD_EPOCHS);
}

/* Whether `now` is not ordered after `before`, which is a write or a read of the same memory. */
static bool concurrent(const sm_check *check, const region *region, sm_u64 before, sm_u64 now,
                       bool wrote) {
  if (!unordered(region, before, now)) return false;
  return in_threadgroup(region) || stamp_of(before) != stamp_of(now) ||
         !sm_fences_order(check, before, wrote);
}

static void report_race(sm_check *check, const region *region, sm_u64 address, sm_u32 size,
                        sm_u32 place, sm_u64 before, bool wrote) {
  sm_finding finding = sm_finding_at(check, RACE, region, address, size, place);
  const record *other = &sm_records[stamp_of(before)];
  const sm_order *order = check->submission->order;
  if (stamp_of(before) != check->stamp && sm_barrier_since(order, other, address)) return;
  finding.other_kernel = other->kernel;
  finding.other_thread = thread_of(before);
  finding.other_group = (sm_u32)group_of(before);
  finding.other_write = wrote;
  finding.other_site = before & SITE;
  memcpy(finding.other_group_size, other->group_size, sizeof finding.other_group_size);
  memcpy(finding.other_groups, other->groups, sizeof finding.other_groups);
  sm_add_finding(check, finding);
}

/* `now` describes the access by the epoch of its memory, `seen` by that of execution. */
static void check_element(sm_check *check, const region *region, page *page, sm_u64 index,
                          sm_u64 now, sm_u64 seen, sm_u64 address, sm_u32 size, sm_u32 place) {
  bool race = check->modes & SM_CHECK_RACE;
  sm_u64 write = page->kept[WRITTEN][index];
  sm_u64 read = page->kept[READ][index], other = page->kept[READ_TOO][index];
  if (race && concurrent(check, region, write, now, true))
    report_race(check, region, address, size, place, write, true);
  if (check->modes & SM_CHECK_UNINIT && in_threadgroup(region) &&
      (place & (WRITE | MODIFY)) != WRITE &&
      write >> 34 != now >> 34) /* not in this threadgroup of this dispatch */
    sm_add_finding(check, sm_finding_at(check, UNINITIALISED, region, address, size, place));
  if (place & WRITE) {
    if (race && concurrent(check, region, read, seen, false))
      report_race(check, region, address, size, place, read, false);
    else if (race && concurrent(check, region, other, seen, false))
      report_race(check, region, address, size, place, other, false);
    keep(page, WRITTEN, index, now);
    return;
  }
  /* Two of several readers are kept, if possible of two simdgroups: a later write is by at most one. */
  if (!concurrent(check, region, read, seen, false))
    keep(page, READ, index, seen);
  else if (!concurrent(check, region, other, seen, false) ||
           (of_one_simdgroup(other, read) && !of_one_simdgroup(seen, read)))
    keep(page, READ_TOO, index, seen);
}

/* A fast test whether `before` is ordered before `now`; false means unknown. */
static inline bool settled(sm_u64 before, sm_u64 now, bool local, const bool *earlier) {
  if (!before || before >> 24 == now >> 24) return true; /* no access before, or by the same thread */
  if (before >> 34 != now >> 34) /* another threadgroup or dispatch */
    return local || (before >> 56 != now >> 56 && earlier[before >> 56]);
  return ((before ^ now) >> 16 & EPOCHS) && sm_epoch_of(now) < EPOCHS;
}

/* Whether two readers of this epoch are known, so that a third would not replace one. */
static inline bool has_readers(sm_u64 read, sm_u64 other, sm_u64 seen) {
  bool now = ((read ^ seen) | (other ^ seen)) >> 34 == 0 &&
             (((read ^ seen) | (other ^ seen)) >> 11 & 0x1fff) == 0;
  return now && (!of_one_simdgroup(other, read) || of_one_simdgroup(seen, read));
}

/* The usual case of check_element: all earlier accesses are ordered before. */
static inline __attribute__((always_inline)) bool
check_quickly(const sm_check *check, const region *region, page *page,
                                 sm_u64 index, sm_u64 now, sm_u64 seen, sm_u32 place) {
  bool local = in_threadgroup(region);
  const bool *earlier = sm_ordered[region->tracked];
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

/* check_shadow for one word in its usual case; false if the full check is needed. */
bool sm_check_word(sm_check *check, const region *region, sm_u64 address, sm_u32 place) {
  sm_u64 key = (address >> PAGE_SHIFT) + 1;
  page *page = check->warm[key * 0x9e3779b97f4a7c15ull >> 58];
  if (sm_fences && place & ATOMIC) return false;
  if (address & 3 || !page || page->key != key || !page->shift || region->kind == CONSTANT)
    return false;
  sm_u64 index = (address & (PAGE - 1)) >> WORD_SHIFT;
  enum memory memory = in_threadgroup(region) ? THREADGROUP : DEVICE;
  sm_u64 now = describe(check, memory, place), seen = describe(check, EXECUTION, place);
  return check_quickly(check, region, page, index, now, seen, place);
}

__attribute__((noinline)) void sm_check_shadow(sm_check *check, const region *region,
                                                   sm_u64 address, sm_u64 size, sm_u32 place) {
  if (region->kind == CONSTANT) return;
  if (SM_UNLIKELY(sm_fences && place & ATOMIC)) sm_fences_atomic(check, address, place);
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
