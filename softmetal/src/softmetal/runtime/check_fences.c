/* What threads of one dispatch pass to each other by fences and atomics in device memory.

   A thread that executes a fence and then writes an atomic releases what came before its fence. A
   thread that reads the atomic and then executes a fence comes after that. A read-modify-write
   operation carries on what the value before it carried, a plain store does not. Barriers pass both
   on to the threadgroup. One worker runs the whole dispatch, so none of this needs a lock. */
#include <stdlib.h>
#include <string.h>

#include "check_state.h"

enum { BUCKETS = 1 << 14, DEVICE_SCOPE = 2, SYSTEM_SCOPE = 3 /* as in include/softmetal/memory.h */ };

/* A fence, described as a write and as a read that its thread might have made there. */
typedef struct point {
  sm_u64 write, read;
} point;

/* The first `count` releases of a chain, which are what the atomic carried at some time. */
typedef struct prefix {
  sm_u32 chain, count;
} prefix;

typedef struct knowledge {
  prefix *prefixes;
  sm_u32 count, capacity;
} knowledge;

/* The releases that an atomic carries, and what the threads that released knew from others. */
typedef struct chain {
  sm_u64 address; /* 0: of a barrier, or before a plain store, which begins another chain */
  sm_u32 count, next; /* `next` of the same bucket, plus 1 */
  knowledge known;
} chain;

typedef struct release {
  point point;
  prefix place;
  sm_u32 next; /* of the same bucket, plus 1 */
} release;

bool sm_fences;
static chain *chains;
static release *releases;
static sm_u32 chain_count, chain_capacity, release_count, release_capacity;
static sm_u32 last_chain[BUCKETS], last_release[BUCKETS]; /* by address and threadgroup, plus 1 */

/* Of the threads of the present threadgroup, and, in the last place, of all of them. */
enum { ALL = SM_MAX_THREADS };
static knowledge acquired[ALL + 1], loaded[ALL + 1];
static point last_fence[ALL];
static bool fence_shared[ALL]; /* a barrier came after it */
static sm_u32 barriers;        /* the chain of fences before a barrier of the threadgroup, plus 1 */

static sm_u32 bucket(sm_u64 key) { return (sm_u32)(key * 0x9e3779b97f4a7c15ull >> 50); }

static void *with_room(void *array, sm_u32 count, sm_u32 *capacity, size_t size) {
  if (count < *capacity) return array;
  *capacity = *capacity ? 2 * *capacity : 16;
  array = realloc(array, *capacity * size);
  if (!array) abort();
  return array;
}

static void learn(knowledge *known, prefix new) {
  for (sm_u32 i = 0; i < known->count; i++) {
    prefix *old = &known->prefixes[i];
    if (old->chain != new.chain) continue;
    if (old->count < new.count) old->count = new.count;
    return;
  }
  known->prefixes = with_room(known->prefixes, known->count, &known->capacity, sizeof new);
  known->prefixes[known->count++] = new;
}

static void learn_all(knowledge *known, const knowledge *from) {
  for (sm_u32 i = 0; i < from->count; i++) learn(known, from->prefixes[i]);
}

static bool knows(const knowledge *known, prefix place) {
  for (sm_u32 i = 0; i < known->count; i++)
    if (known->prefixes[i].chain == place.chain) return known->prefixes[i].count >= place.count;
  return false;
}

/* ---- chains -------------------------------------------------------------------------------- */

static sm_u32 chain_of(sm_u64 address) {
  sm_u32 at = last_chain[bucket(address)];
  while (at && chains[at - 1].address != address) at = chains[at - 1].next;
  return at;
}

static sm_u32 begin_chain(sm_u64 address) {
  sm_u32 *last = &last_chain[bucket(address)];
  chains = with_room(chains, chain_count, &chain_capacity, sizeof *chains);
  chains[chain_count] = (chain){.address = address, .next = *last};
  return *last = ++chain_count;
}

static void add_release(sm_u32 at, point point) {
  sm_u32 *last = &last_release[bucket(point.write >> 34)];
  for (sm_u32 i = *last; i; i = releases[i - 1].next) /* it may write the atomic again */
    if (releases[i - 1].place.chain == at && releases[i - 1].point.write == point.write &&
        releases[i - 1].point.read == point.read)
      return;
  releases = with_room(releases, release_count, &release_capacity, sizeof *releases);
  releases[release_count] = (release){point, {at, ++chains[at - 1].count}, *last};
  *last = ++release_count;
}

/* ---- a dispatch and its threadgroups --------------------------------------------------------- */

static void forget_group(void) {
  for (int i = 0; i <= ALL; i++) acquired[i].count = loaded[i].count = 0;
  memset(last_fence, 0, sizeof last_fence);
  memset(fence_shared, 0, sizeof fence_shared);
  barriers = 0;
}

void sm_fences_begin(void) {
  if (!sm_fences) return;
  for (sm_u32 i = 0; i < chain_count; i++) free(chains[i].known.prefixes);
  chain_count = release_count = 0;
  memset(last_chain, 0, sizeof last_chain);
  memset(last_release, 0, sizeof last_release);
  sm_fences = false;
}

void sm_fences_group(sm_check *check) {
  memset(check->fenced, 0, sizeof check->fenced);
  if (sm_fences) forget_group();
}

void sm_fences_barrier(sm_check *check, sm_u32 threads, bool device) {
  if (!sm_fences) return;
  for (sm_u32 i = 0; i < threads; i++) {
    learn_all(&loaded[ALL], &loaded[i]);
    if (device) learn_all(&acquired[ALL], &acquired[i]);
    if (!last_fence[i].write || fence_shared[i]) continue;
    fence_shared[i] = true;
    if (!barriers) barriers = begin_chain(0);
    add_release(barriers, last_fence[i]);
  }
  if (barriers) learn(&loaded[ALL], (prefix){barriers, chains[barriers - 1].count});
  memset(check->fenced, 0, sizeof check->fenced);
}

/* ---- fences and atomics ---------------------------------------------------------------------- */

SM_EXPORT void softmetal_check_fence(sm_u32 flags, sm_u32 order, sm_u32 scope) {
  sm_check *check = sm_this_check();
  bool reaches = scope == DEVICE_SCOPE || scope == SYSTEM_SCOPE;
  if (!check || !(check->modes & SM_CHECK_RACE) || !(flags & MEM_DEVICE) || !reaches) return;
  sm_u32 thread = current_thread(check);
  if (!sm_fences) {
    sm_fences = true;
    sm_fences_group(check);
  }
  if (order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE) {
    learn_all(&acquired[thread], &loaded[thread]);
    learn_all(&acquired[thread], &loaded[ALL]);
  }
  if (order == __ATOMIC_RELAXED || order == __ATOMIC_ACQUIRE) return;
  last_fence[thread] = (point){sm_describe(check, DEVICE, 0), sm_describe(check, EXECUTION, 0)};
  fence_shared[thread] = false;
  check->fenced[thread] = 1;
}

void sm_fences_atomic(sm_check *check, sm_u64 address, sm_u32 place) {
  sm_u32 thread = current_thread(check), at = chain_of(address);
  bool reads = (place & (WRITE | MODIFY)) != WRITE;
  if (reads && at) {
    learn(&loaded[thread], (prefix){at, chains[at - 1].count});
    learn_all(&loaded[thread], &chains[at - 1].known);
  }
  if (!(place & WRITE)) return;
  if (!reads && at) chains[at - 1].address = 0, at = 0;
  for (sm_u32 i = 0; i < ALL; i++) {
    if (!last_fence[i].write || (i != thread && !fence_shared[i])) continue;
    if (!at) at = begin_chain(address);
    add_release(at, last_fence[i]);
    learn_all(&chains[at - 1].known, &acquired[i]);
  }
  if (at) learn_all(&chains[at - 1].known, &acquired[ALL]);
}

/* Whether an access came before a fence of its threadgroup, as far as epochs say it. */
static bool precedes(sm_u64 access, sm_u64 fence) {
  sm_u32 epoch = sm_epoch_of(access), end = sm_epoch_of(fence);
  if (access >> 24 == fence >> 24) return epoch <= end;
  if (epoch / 2 != end / 2 || end >= EPOCHS) return epoch <= end;
  sm_u32 simd_epoch = access >> 12 & 0xf, simd_end = fence >> 12 & 0xf;
  return (access ^ fence) >> 29 == 0 && (simd_epoch < simd_end || simd_end == SIMD_EPOCHS);
}

bool sm_fences_order(const sm_check *check, sm_u64 before, bool wrote) {
  if (!sm_fences) return false;
  sm_u32 thread = current_thread(check);
  for (sm_u32 i = last_release[bucket(before >> 34)]; i; i = releases[i - 1].next) {
    const release *each = &releases[i - 1];
    sm_u64 end = wrote ? each->point.write : each->point.read;
    if (end >> 34 == before >> 34 && precedes(before, end) &&
        (knows(&acquired[thread], each->place) || knows(&acquired[ALL], each->place)))
      return true;
  }
  return false;
}
