/* The checking modes: the functions that instrumented kernels call for every access, thread and
   barrier. Bounds are checked here, races in check_shadow.c, dispatch order in check_order.c. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "check_state.h"

static _Thread_local sm_check *self;
sm_check *sm_this_check(void) { return self; }
sm_mutex sm_check_lock;
static sm_mutex dispatch_lock; /* held during a dispatch whose accesses are shadowed */
sm_u64 sm_check_seed = 1;

SM_EXPORT void softmetal_set_seed(sm_u64 value) { sm_check_seed = value ? value : 1; }

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
  if (modes & SM_CHECK_RACE) atomic_store(&sm_racing, true);
  return true;
}
/* ---- findings -------------------------------------------------------------------------------- */

void sm_add_finding(sm_check *check, sm_finding finding) {
  sm_submission *submission = check->submission;
  finding.kernel = (sm_u64)check->kernel;
  memcpy(finding.group, check->position, sizeof finding.group);
  for (int d = 0; d < 3; d++) { /* smaller at a ragged edge */
    sm_u32 rest = check->launch->grid[d] - check->position[d] * check->launch->group[d];
    finding.group_size[d] = rest < check->launch->group[d] ? rest : check->launch->group[d];
  }
  memcpy(finding.groups, check->launch->groups, sizeof finding.groups);
  sm_lock(&sm_check_lock);
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
  sm_unlock(&sm_check_lock);
}

SM_EXPORT sm_u32 softmetal_findings(sm_submission *submission, const sm_finding **list) {
  *list = submission->findings;
  return submission->finding_count;
}

sm_finding sm_finding_at(sm_check *check, enum finding_type type, const region *region,
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
/* ---- accesses -------------------------------------------------------------------------------- */

static inline bool spans(sm_u64 address, sm_u64 size, sm_u64 start, sm_u64 length) {
  return address - start <= length && size <= length - (address - start);
}

static inline bool inside(const region *region, sm_u64 address, sm_u64 size) {
  return spans(address, size, region->start, region->end - region->start);
}

static const region *find_region(sm_check *check, sm_u64 address, sm_u64 size, sm_u32 place) {
  for (sm_u32 i = 0; i < check->region_count; i++) {
    const region *region = &check->regions[i];
    if (inside(region, address, size)) {
      check->recent[place % RECENT] = (unsigned short)i;
      return region;
    }
  }
  return NULL;
}

/* The region that the access most likely belongs to: the nearest, at a distance of at most its
   length and a page. */
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
    sm_add_finding(check, sm_finding_at(check, OUT_OF_BOUNDS, nearest_region(check, address),
                                        address, size, place));
  return false;
}

/* Whether the access is allowed. One outside all regions is redirected to the sink. */
static bool check_access(sm_check *check, sm_u64 address, sm_u64 size, sm_u32 place) {
  if (spans(address, size, check->stack, SM_WORKER_STACK)) return true;
  /* Operations of a simdgroup read the header. */
  sm_u64 header = place & WRITE ? HEADER_BYTES : 0;
  if (check->arena && spans(address, size, check->arena + header, ARENA_BYTES - header))
    return true;
  const region *region = &check->regions[check->recent[place % RECENT]];
  if (!inside(region, address, size) && !(region = find_region(check, address, size, place)))
    return out_of_bounds(check, address, size, place);
  if (check->modes & SM_CHECK_SHADOWED) sm_check_shadow(check, region, address, size, place);
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
  if (SM_LIKELY(inside(region, address, size))) { /* as last time */
    if (!(check->modes & SM_CHECK_SHADOWED) && slot < SLOTS)
      check->slots[slot] = (struct slot){region->start, region->end - size - region->start};
    bool done = !(check->modes & SM_CHECK_SHADOWED) ||
                (size == 4 && sm_check_word(check, region, address, place));
    if (!done) sm_check_shadow(check, region, address, size, place);
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

/* The slots in which kernels themselves look up the region of a site's last access. */
SM_EXPORT struct slot *softmetal_check_slots(void) { return self->slots; }

/* ---- threads and barriers -------------------------------------------------------------------- */

/* Where SM_GROUPS kernels store thread_index_in_threadgroup when each thread begins. */
SM_EXPORT sm_u32 *softmetal_check_thread(void) {
  static _Thread_local sm_u32 unused;
  return self ? &self->thread : &unused;
}

/* The thread at which a SM_GROUPS kernel starts in a row of `count`. */
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

static bool orders(sm_u32 flags, enum memory memory) {
  return memory == EXECUTION || flags & (memory == DEVICE ? MEM_DEVICE : MEM_THREADGROUP);
}

/* Called once for a simdgroup, by the lane that arrives last. */
SM_EXPORT void softmetal_check_simd_barrier(sm_u32 flags) {
  if (!self) return;
  sm_u32 group = current_thread(self) / SM_LANES;
  for (int memory = 0; memory < MEMORIES; memory++)
    if (orders(flags, memory) && self->simd_epoch[memory][group] < SIMD_EPOCHS)
      self->simd_epoch[memory][group]++;
}

sm_u32 sm_check_pick(sm_check *check, sm_u32 ready) {
  sm_u32 skip = 0;
  if (check->modes & SM_CHECK_RACE)
    skip = (sm_u32)((random_of(&check->random) >> 32) * (sm_u32)__builtin_popcount(ready) >> 32);
  while (skip--) ready &= ready - 1;
  return (sm_u32)__builtin_ctz(ready);
}

/* Reports threads that ended or wait at another barrier than the first thread. */
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
    sm_add_finding(check, finding);
    return;
  }
}

void sm_check_release(sm_check *check, const sm_u32 *alive, sm_u32 groups, sm_u32 threads) {
  if (check->modes & SM_CHECK_RACE) find_divergence(check, alive, threads);
  for (int memory = 0; memory < MEMORIES; memory++)
    if (orders(check->barrier_flags, memory)) {
      if (check->epoch[memory] < EPOCHS) check->epoch[memory] += 2;
      memset(check->simd_epoch[memory], 0, groups * sizeof(sm_u32));
    }
  sm_fences_barrier(check, threads, check->barrier_flags & MEM_DEVICE);
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
    check->stack = (sm_u64)worker->stack;
    worker->check = check;
  }
  return worker->check;
}

static sm_u64 dispatch_stamp;

void sm_check_begin(sm_submission *submission, const sm_kernel *kernel, const sm_launch *launch) {
  if (!(kernel->checks->modes & SM_CHECK_SHADOWED)) return;
  sm_lock(&dispatch_lock);
  record now = {.kernel = (sm_u64)kernel};
  memcpy(now.group_size, launch->group, sizeof now.group_size);
  memcpy(now.groups, launch->groups, sizeof now.groups);
  sm_lock(&sm_check_lock);
  dispatch_stamp = sm_new_stamp(submission, now);
  sm_fences_begin();
  sm_unlock(&sm_check_lock);
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

/* A permutation of [0, total) chosen by the seed. */
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
  sm_fences_group(check);
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
  sm_lock(&sm_check_lock);
  blit.stamp = sm_new_stamp(submission, (record){.group_size = {1, 1, 1}, .groups = {1, 1, 1}});
  blit.base = blit.stamp << 56;
  sm_unlock(&sm_check_lock);
  region from = {source, source + size, RESIDENT, 0, is_tracked(submission, source)};
  region to = {destination, destination + size, RESIDENT, 0, is_tracked(submission, destination)};
  if (source) sm_check_shadow(&blit, &from, source, size, 0);
  sm_check_shadow(&blit, &to, destination, size, WRITE);
  sm_unlock(&dispatch_lock);
}
