/* Buffers: zeroed, aligned to 16 KiB (Apple's page), in huge pages where they are large. */
#include <sys/mman.h>

#include "runtime.h"

#define PAGE ((size_t)16 << 10)
#define HUGE_PAGE ((size_t)2 << 20)

static size_t mapped_size(size_t length) { return (length + PAGE - 1) & ~(PAGE - 1); }

/* The address, 0 if there is no memory. `length` is above 0. */
SM_EXPORT void *softmetal_allocate(size_t length) {
  size_t size = mapped_size(length);
  size_t alignment = size >= HUGE_PAGE ? HUGE_PAGE : PAGE;
  if (size < length || size + alignment < size) return NULL;
  char *address = mmap(NULL, size + alignment, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return NULL;
  char *aligned = (char *)(((sm_u64)address + alignment - 1) & ~(sm_u64)(alignment - 1));
  if (aligned != address) munmap(address, (size_t)(aligned - address));
  if (aligned != address + alignment)
    munmap(aligned + size, (size_t)(address + alignment - aligned));
  if (alignment == HUGE_PAGE) madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

SM_EXPORT void softmetal_free(void *address, size_t length) {
  munmap(address, mapped_size(length));
}
