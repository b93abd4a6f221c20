/* The mirrors that a command list uses. */
#ifndef SOFTMETAL_USES_H
#define SOFTMETAL_USES_H

#include "commands.h"
#include "mirror.h"

typedef struct sm_used {
  sm_mirror *mirror;
  bool written; /* the list may write the device's side */
  bool copied;  /* the list copies to the host's side */
} sm_used;

typedef struct sm_uses {
  sm_used *items;
  size_t count, capacity;
  sm_patches patches; /* what the program changed in them before the list was submitted */
} sm_uses;

/* Finds them and collects their patches. Copies from and to buffers of which only the host's side
   counts get its addresses. `writes` tells which buffers of a kernel are written, by bits. What went
   wrong, or null. */
const char *sm_uses_collect(sm_uses *, sm_mirrors *, char *list, size_t size,
                            sm_u32 (*writes)(sm_u64 kernel));
/* The list has run, and what it wrote was absorbed. */
void sm_uses_end(sm_uses *);
void sm_uses_free(sm_uses *);

#endif
