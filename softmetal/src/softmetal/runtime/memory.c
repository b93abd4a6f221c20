/* Buffers: zeroed, aligned to 16 KiB (Apple's page), in huge pages where they are large.

   Each lies between two guards that cannot be accessed: a kernel that runs over the end of a buffer
   fails instead of writing into memory of the process. */
#include <sys/mman.h>

#include "runtime.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define PAGE ((size_t)16 << 10)
#define HUGE_PAGE ((size_t)2 << 20)
#define GUARD ((size_t)64 << 10)

/* Where guards are mappings, of which a process may have 65,530, only this many buffers have them.
   The space around others is accessible: an overrun is not detected but still does no harm. */
enum { GUARDED = 8192 };
static atomic_uint buffers;

static size_t round_to(size_t length, size_t multiple) {
  return (length + multiple - 1) & ~(multiple - 1);
}

static char *reserve(size_t size) {
  char *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? NULL : address;
}

/* Address space of `size` bytes and a guard before and after, such that the part between the guards
   is aligned. The kernel mostly places a mapping directly below the last one, which is aligned. */
static char *reserve_aligned(size_t size, size_t alignment) {
  size_t whole = size + 2 * GUARD;
  char *address = reserve(whole);
  if (!address || !((sm_u64)(address + GUARD) & (alignment - 1))) return address;
  munmap(address, whole);
  if (!(address = reserve(whole + alignment))) return NULL;
  char *start = (char *)round_to((sm_u64)address + GUARD, alignment) - GUARD;
  if (start != address) munmap(address, (size_t)(start - address));
  if (start != address + alignment) munmap(start + whole, (size_t)(address + alignment - start));
  return start;
}

/* Emulators ignore advice that they do not know and report success: a guard cannot be populated. */
static bool has_light_guards(void) {
  static atomic_int known; /* 1 if so, -1 if not */
  if (!atomic_load(&known)) {
    char *page = reserve(PAGE);
    bool works = page && !madvise(page, PAGE, MADV_GUARD_INSTALL) &&
                 madvise(page, PAGE, MADV_POPULATE_READ);
    if (page) munmap(page, PAGE);
    atomic_store(&known, works ? 1 : -1);
  }
  return atomic_load(&known) > 0;
}

bool sm_light_guard(char *guard, size_t size) {
  return has_light_guards() && !madvise(guard, size, MADV_GUARD_INSTALL);
}

static void protect(char *guard, bool many) {
  if (!sm_light_guard(guard, GUARD) && !many) mprotect(guard, GUARD, PROT_NONE);
}

/* The address, 0 if there is no memory. `length` is above 0. */
SM_EXPORT void *softmetal_allocate(size_t length) {
  size_t size = round_to(length, PAGE);
  size_t alignment = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
  if (size < length || size + 2 * GUARD + alignment < size) return NULL;
  char *start = reserve_aligned(size, alignment);
  if (!start) return NULL;
  char *address = start + GUARD;
  bool many = atomic_fetch_add(&buffers, 1) >= GUARDED;
  protect(start, many);
  protect(address + size, many);
  if (alignment == HUGE_PAGE) madvise(address, size, MADV_HUGEPAGE);
  return address;
}

enum { MARGIN = 64 << 10 }; /* above a stack, for arrays in its first frame that are overrun */

char *sm_stack_new(void) {
  size_t size = SM_WORKER_STACK + MARGIN;
  char *start = reserve(size + 2 * GUARD);
  if (!start) return NULL;
  protect(start, false);
  protect(start + GUARD + size, false);
  madvise(start + GUARD, size, MADV_NOHUGEPAGE); /* one would make 2 MiB resident */
  return start + GUARD;
}

void sm_stack_free(char *stack) { munmap(stack - GUARD, SM_WORKER_STACK + MARGIN + 2 * GUARD); }

SM_EXPORT void softmetal_free(void *address, size_t length) {
  munmap((char *)address - GUARD, round_to(length, PAGE) + 2 * GUARD);
  atomic_fetch_sub(&buffers, 1);
}
