/* One fiber for each thread of a threadgroup: barriers and simdgroup operations.

   An arena is aligned to its own size, so a fiber finds it, and its own index, from its stack
   pointer. Simdgroups take turns: one runs until its living lanes are at the barrier. So only the
   current simdgroup has lanes in a collective, and when none is ready all are at the barrier. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "runtime.h"
#include "switch.h"

/* An arena is its header, in the space of one stack, followed by the stacks. */
#define STACK_SHIFT 18
#define STACK_BYTES ((size_t)1 << STACK_SHIFT)
_Static_assert(STACK_BYTES == SM_FIBER_STACK, "the size that error messages name");
#define ARENA_BYTES ((size_t)512 << 20)

/* Stack tops are spread over the sets of the caches; 448 is 7 lines, so all sets are used. */
enum { COLOUR_STEP = 448, COLOUR_MASK = 0xffc0 };

/* Where light guards do not exist, a guard page costs two mappings, of which a process may have
   65,530. Workers that would need more guards take no part. */
enum { GUARDS = 16384 };
static atomic_uint guards; /* that are mappings */

typedef void (*operate_function)(const sm_lanes *);

typedef struct simdgroup {
  sm_u32 ready; /* lanes that can run */
  sm_u32 alive; /* lanes that have not ended */
} simdgroup;

struct sm_arena {
  sm_u32 groups;    /* simdgroups of this threadgroup */
  sm_u32 waiting;   /* lanes of the current simdgroup in a collective */
  bool diverged;    /* they wait at more than one site */
  sm_check *check;  /* of the worker, while a check is on */
  const void *site; /* of the first to wait */
  operate_function operate;

  sm_fibers_entry entry;
  sm_u32 step; /* threads that a fiber runs: 1, or a simdgroup's */
  const sm_launch *launch;
  sm_u32 position[3];
  sm_u32 size[3];
  char *scratch;
  void *dispatch; /* stack pointer of sm_run_threadgroup, where the last fiber goes */

  sm_lanes lanes;
  const void *sites[SM_LANES];
  operate_function operates[SM_LANES];
  simdgroup simd[SM_MAX_THREADS / SM_LANES];
  void *stack[SM_MAX_THREADS]; /* saved stack pointers */
  sm_thread threads[SM_MAX_THREADS];

  unsigned made;   /* fibers that exist */
  unsigned guards; /* those whose guard is a mapping */
  size_t page;
};
_Static_assert(sizeof(sm_arena) <= STACK_BYTES, "the header takes the place of one stack");

typedef struct fiber {
  sm_arena *arena;
  sm_u32 index; /* thread_index_in_threadgroup */
} fiber;

static inline __attribute__((always_inline)) fiber current_fiber(void) {
  sm_u64 address = (sm_u64)__builtin_frame_address(0);
  sm_u64 offset = address & (ARENA_BYTES - 1);
  return (fiber){(sm_arena *)(address - offset), (sm_u32)(offset >> STACK_SHIFT) - 1};
}

/* ---- scheduling ------------------------------------------------------------------------------ */

/* Runs the operation of the lanes that wait at the lowest address and makes them ready. */
static void resolve(sm_arena *arena, simdgroup *group) {
  sm_u32 active = arena->waiting;
  if (SM_LIKELY(!arena->diverged)) {
    arena->lanes.active = active;
    for (sm_u32 rest = ~active; rest; rest &= rest - 1)
      arena->lanes.slot[__builtin_ctz(rest)] = NULL;
    arena->operate(&arena->lanes);
  } else {
    sm_u32 first = (sm_u32)__builtin_ctz(active);
    for (sm_u32 rest = active; rest; rest &= rest - 1) {
      sm_u32 lane = (sm_u32)__builtin_ctz(rest);
      if (arena->sites[lane] < arena->sites[first]) first = lane;
    }
    sm_lanes lanes = {.active = 0};
    for (sm_u32 rest = active; rest; rest &= rest - 1) {
      sm_u32 lane = (sm_u32)__builtin_ctz(rest);
      if (arena->sites[lane] != arena->sites[first] ||
          arena->operates[lane] != arena->operates[first])
        continue;
      lanes.slot[lane] = arena->lanes.slot[lane];
      lanes.active |= 1u << lane;
    }
    active = lanes.active;
    arena->operates[first](&lanes);
  }
  arena->waiting &= ~active;
  group->ready |= active;
}

/* All living threads are at the barrier: makes them ready. False if none is left. */
static bool release(sm_arena *arena) {
  sm_u32 any = 0;
  for (sm_u32 i = 0; i < arena->groups; i++) any |= arena->simd[i].ready = arena->simd[i].alive;
  if (arena->check && any) {
    sm_u32 alive[SM_MAX_THREADS / SM_LANES];
    for (sm_u32 i = 0; i < arena->groups; i++) alive[i] = arena->simd[i].alive;
    sm_check_release(arena->check, alive, arena->groups,
                     arena->size[0] * arena->size[1] * arena->size[2]);
  }
  return any != 0;
}

/* For the checking modes: a random ready lane of a random ready simdgroup. */
static void **shuffled_fiber(sm_arena *arena) {
  sm_u32 ready = 0;
  for (sm_u32 i = 0; i < arena->groups; i++) ready |= (sm_u32)(arena->simd[i].ready != 0) << i;
  if (!ready) return release(arena) ? shuffled_fiber(arena) : &arena->dispatch;
  sm_u32 group = sm_check_pick(arena->check, ready);
  return &arena->stack[group * SM_LANES + sm_check_pick(arena->check, arena->simd[group].ready)];
}

/* The next fiber when simdgroup `group` has no ready lane. */
static __attribute__((noinline)) void **next_simdgroup(sm_arena *arena, sm_u32 group) {
  if (arena->waiting) resolve(arena, &arena->simd[group]);
  if (arena->check) {
    sm_u32 ready = arena->simd[group].ready;
    return ready ? &arena->stack[group * SM_LANES + sm_check_pick(arena->check, ready)]
                 : shuffled_fiber(arena);
  }
  while (!arena->simd[group].ready) {
    if (++group < arena->groups) continue;
    if (!release(arena)) return &arena->dispatch;
    group = 0;
  }
  return &arena->stack[group * SM_LANES + (sm_u32)__builtin_ctz(arena->simd[group].ready)];
}

/* Switches from the running fiber, which must wait, to another; returns when it is ready again. The
   next lane, the usual successor, is tried first, so that its address is known early. */
static inline __attribute__((always_inline)) void block(fiber self) {
  sm_arena *arena = self.arena;
  sm_u32 lane = self.index % SM_LANES;
  simdgroup *group = &arena->simd[self.index / SM_LANES];
  void **save = &arena->stack[self.index], **next = save + 1;
  sm_u32 ready = group->ready & ~(1u << lane);
  group->ready = ready;
  if (!SM_LIKELY(ready >> lane & 2) || arena->check) {
    if (ready) {
      next = save - lane + (arena->check ? sm_check_pick(arena->check, ready)
                                         : (sm_u32)__builtin_ctz(ready));
    } else {
      next = next_simdgroup(arena, self.index / SM_LANES);
      if (next == save) return;
    }
  }
  sm_switch(save, *next);
}

SM_EXPORT void softmetal_barrier(void) { block(current_fiber()); }

SM_EXPORT void softmetal_collective(operate_function operate, void *slot, const void *together) {
  (void)together;
  fiber self = current_fiber();
  sm_arena *arena = self.arena;
  const void *site = __builtin_return_address(0);
  sm_u32 lane = self.index % SM_LANES;
  if (!arena->waiting) {
    arena->site = site;
    arena->operate = operate;
    arena->diverged = false;
  } else if (site != arena->site || operate != arena->operate) {
    arena->diverged = true;
  }
  arena->lanes.slot[lane] = slot;
  arena->sites[lane] = site;
  arena->operates[lane] = operate;
  arena->waiting |= 1u << lane;
  block(self);
}

SM_EXPORT sm_u32 softmetal_lane(void) { return current_fiber().index % SM_LANES; }

/* ---- fibers ---------------------------------------------------------------------------------- */

/* A fiber runs the thread of its index in one threadgroup after another. */
static void fiber_main(void) {
  fiber self = current_fiber();
  sm_arena *arena = self.arena;
  sm_thread *thread = &arena->threads[self.index];
  for (;;) {
    memcpy(thread->group_position, arena->position, sizeof arena->position);
    arena->entry(arena->launch, thread);
    arena->simd[self.index / SM_LANES].alive &= ~(1u << self.index % SM_LANES);
    block(self);
  }
}

static void prepare_fiber(sm_arena *arena, unsigned index, char *stack) {
  size_t colour = (size_t)index * COLOUR_STEP & COLOUR_MASK;
  void **top = (void **)(stack + STACK_BYTES - colour);
  void **frame = top - SM_FRAME_WORDS;
  memset(frame, 0, SM_FRAME_WORDS * sizeof *frame);
  frame[SM_FRAME_RETURN] = (void *)fiber_main;
  arena->stack[index] = frame;
}

/* Makes a stack accessible, except for its lowest page. */
static bool make_stack(sm_arena *arena, char *stack) {
  size_t page = arena->page;
  if (mprotect(stack + page, STACK_BYTES - page, PROT_READ | PROT_WRITE)) return false;
  /* The guard page joins the mapping of the stack below, which ends where it begins. */
  if (sm_light_guard(stack, page))
    return !mprotect(stack, page, PROT_READ | PROT_WRITE);
  if (atomic_fetch_add(&guards, 1) >= GUARDS) {
    atomic_fetch_sub(&guards, 1);
    return false;
  }
  arena->guards++;
  return true;
}

static bool make_fibers(sm_arena *arena, unsigned fibers) {
  for (unsigned i = arena->made; i < fibers; i++) {
    char *stack = (char *)arena + (i + 1) * STACK_BYTES;
    if (!make_stack(arena, stack)) return false;
    prepare_fiber(arena, i, stack);
    arena->made = i + 1;
  }
  return true;
}

static sm_arena *new_arena(void) {
  char *address = mmap(NULL, 2 * ARENA_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return NULL;
  char *base = (char *)(((sm_u64)address + ARENA_BYTES - 1) & ~(sm_u64)(ARENA_BYTES - 1));
  if (base != address) munmap(address, (size_t)(base - address));
  munmap(base + ARENA_BYTES, (size_t)(address + ARENA_BYTES - base));
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t header = (sizeof(sm_arena) + page - 1) & ~(page - 1);
  if (mprotect(base, header, PROT_READ | PROT_WRITE)) {
    munmap(base, ARENA_BYTES);
    return NULL;
  }
  /* A huge page would make eight stacks resident at the first touch of one. */
  madvise(base, ARENA_BYTES, MADV_NOHUGEPAGE);
  sm_arena *arena = (sm_arena *)base;
  arena->page = page;
  return arena;
}

const char *sm_arena_prepare(sm_worker *worker, unsigned fibers) {
  if (!worker->arena && !(worker->arena = new_arena()))
    return "no address space for the stacks of a threadgroup: raise the limit (ulimit -v)";
  if (!make_fibers(worker->arena, fibers))
    return "no memory for the stacks of a threadgroup: use smaller threadgroups";
  return NULL;
}

void sm_arena_free(sm_arena *arena) {
  atomic_fetch_sub(&guards, arena->guards);
  munmap(arena, ARENA_BYTES);
}

/* ---- threadgroups ---------------------------------------------------------------------------- */

static void fill_threads(sm_arena *arena) {
  const sm_u32 *size = arena->size;
  sm_u32 index = 0;
  for (sm_u32 z = 0; z < size[2]; z++)
    for (sm_u32 y = 0; y < size[1]; y++)
      for (sm_u32 x = 0; x < size[0]; x++, index++)
        if (index % arena->step == 0)
          arena->threads[index / arena->step] = (sm_thread){
              .group_size = {size[0], size[1], size[2]},
              .position = {x, y, z},
              .index = index,
              .scratch = arena->scratch,
          };
}

/* A fiber for each simdgroup: these are the lanes of the arena's only one. */
void sm_run_threadgroup(sm_arena *arena, const sm_kernel *kernel, const sm_launch *launch,
                        char *scratch, const sm_u32 position[3]) {
  sm_u32 size[3];
  for (int d = 0; d < 3; d++) {
    sm_u32 rest = launch->grid[d] - position[d] * launch->group[d];
    size[d] = rest < launch->group[d] ? rest : launch->group[d];
  }
  sm_u32 step = kernel->mode == SM_SIMDGROUPS ? SM_LANES : 1;
  if (memcmp(size, arena->size, sizeof size) || scratch != arena->scratch || step != arena->step) {
    arena->step = step;
    memcpy(arena->size, size, sizeof size);
    arena->scratch = scratch;
    fill_threads(arena);
  }
  arena->entry = kernel->entry.fibers;
  arena->launch = launch;
  memcpy(arena->position, position, sizeof arena->position);
  sm_u32 threads = (size[0] * size[1] * size[2] + step - 1) / step;
  arena->groups = (threads + SM_LANES - 1) / SM_LANES;
  for (sm_u32 i = 0; i < arena->groups; i++)
    arena->simd[i] = (simdgroup){.ready = ~0u, .alive = ~0u};
  sm_u32 partial = (1u << threads % SM_LANES) - 1;
  if (partial) arena->simd[arena->groups - 1] = (simdgroup){.ready = partial, .alive = partial};
  sm_switch(&arena->dispatch, arena->check ? *shuffled_fiber(arena) : arena->stack[0]);
}

void sm_arena_check(sm_arena *arena, sm_check *check) { arena->check = check; }
