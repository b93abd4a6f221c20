/* Shared buffers of a device with its own memory.

   The program writes the host's side at any time and kernels write the device's side, both perhaps at
   once in different bytes of one buffer. So neither side is ever copied over the other: only bytes
   that changed move. What the program changed is collected when a list that uses the buffer is
   submitted, and reaches the device before that list runs. What kernels changed is absorbed when the
   list has run, before anybody is told so. */
#ifndef SOFTMETAL_MIRROR_H
#define SOFTMETAL_MIRROR_H

#include <stdbool.h>
#include <stddef.h>

#include "sync.h"

typedef struct sm_mirror {
  sm_u64 device; /* address of the device's side */
  size_t length;
  char *host; /* the host's side */
  char *sent; /* what the host's side was when it last sent or got bytes */
  char *held; /* what the device's side is, unless a kernel wrote to it */
  struct sm_patch *pending; /* patches that the device gets at a time that is not known */
  bool owned; /* the host's side is ours, not the program's */
  sm_mutex lock;
} sm_mirror;

typedef struct sm_mirrors {
  sm_mutex lock;
  sm_mirror **items; /* by address */
  size_t count, capacity;
} sm_mirrors;

/* False if there is no memory. The caller allocates the four and fills them alike. */
bool sm_mirror_add(sm_mirrors *, sm_mirror);
/* The mirror that contains an address, or null. */
sm_mirror *sm_mirror_find(sm_mirrors *, sm_u64 address);
/* Forgets the mirror of an allocation; its record is the caller's to free. Null if it has none. */
sm_mirror *sm_mirror_remove(sm_mirrors *, sm_u64 device);

/* Changes of the program on their way to the device: sm_patch, then its bytes, padded to 8. */
typedef struct sm_patch {
  sm_mirror *mirror;
  struct sm_patch *next; /* pending */
  sm_u64 offset, size;
  char bytes[];
} sm_patch;

typedef struct sm_patches {
  char *data;
  size_t size, capacity;
} sm_patches;

/* Appends what the program changed. What went wrong, or null. */
const char *sm_mirror_collect(sm_mirror *, sm_patches *);
/* Copies memory of the program, which may be a mapped file that has become shorter: whether it could
   be read. */
bool sm_read_host(char *to, const char *from, size_t size);
/* The patch at *offset, advancing it; null at the end. */
sm_patch *sm_patch_next(const sm_patches *, size_t *offset);
/* Notes that the device may have got a patch, and that it has. */
void sm_mirror_pend(sm_patch *);
void sm_mirror_patched(sm_patch *);

/* Bytes that moved to devices and from them since the process began. */
extern atomic_ullong sm_bytes_sent, sm_bytes_absorbed;

/* Brings what the device changed to the host. `fresh` is the device's side or a copy of it, which is
   changed where patches are pending: what the device has there is not known. */
void sm_mirror_absorb(sm_mirror *, char *fresh);

#endif
