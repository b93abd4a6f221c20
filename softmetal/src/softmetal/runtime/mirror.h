/* Shared buffers of a device with its own memory.

   A shared buffer has memory of the device and, once the program asks for it, memory of the host. As
   long as no kernel uses the buffer, the host's side alone counts, and copies read and write it
   directly. The first list with a kernel that uses it makes both sides count. From then on the program
   writes the host's side at any time and kernels write the device's side, both perhaps at once in
   different bytes. So neither side is copied over the other: only bytes that changed move. What the
   program changed is collected when a list that uses the buffer is submitted, and reaches the device
   before that list runs. What kernels changed is absorbed when the list has run, before waits
   for it return. */
#ifndef SOFTMETAL_MIRROR_H
#define SOFTMETAL_MIRROR_H

#include <stdbool.h>
#include <stddef.h>

#include "sync.h"

enum { SM_PATCH_BYTES = 1024 };

typedef struct sm_mirror {
  sm_u64 device; /* address of the device's side */
  size_t length;
  char *host; /* the host's side; null until the program asks for it */
  bool owned; /* the host's side is ours, not the program's */
  /* Null as long as only one side counts. */
  char *sent; /* what the host's side was when it last sent or got bytes */
  char *held; /* what the device's side is, unless a kernel wrote to it */
  struct sm_patch *pending; /* patches that the device gets at a time that is not known */
  atomic_uint writers; /* lists that may still write the device's side */
  atomic_uint copiers; /* lists that may still copy to the host's side */
  atomic_size_t place; /* in the uses of the last list that had it */
  sm_mutex lock;
} sm_mirror;

typedef struct sm_mirrors {
  sm_mutex lock;
  sm_mirror **items; /* by address */
  size_t count, capacity;
  /* Copies to the device now, from memory of ours, and from it; whether it was possible. */
  bool (*upload)(sm_u64 device, const char *from, size_t size);
  bool (*download)(char *to, sm_u64 device, size_t size);
  void (*finish)(struct sm_mirrors *); /* lists that have run; null: they finish by themselves */
} sm_mirrors;

/* Registers an allocation that the program may ask for; false: no memory. */
bool sm_mirror_add(sm_mirrors *, sm_u64 device, size_t length);
/* The mirror that contains an address, or null. */
sm_mirror *sm_mirror_find(sm_mirrors *, sm_u64 address);
/* Forgets an allocation; the record and the host's side are the caller's to free. Null if it is not
   registered. */
sm_mirror *sm_mirror_remove(sm_mirrors *, sm_u64 device);
/* The end of a record: its own memory, not the host's side. */
void sm_mirror_free(sm_mirror *);

/* Gives it a host's side: `host`, which counts if it is the program's (not `owned`), or else gets what
   the device has. Whether there was memory. */
bool sm_mirror_host(sm_mirrors *, sm_mirror *, char *host, bool owned);
/* The host's side, if it alone counts, for a copy; else null. `writes`: the copy is counted. */
char *sm_mirror_stage(sm_mirror *, bool writes);
/* Makes both sides count, for a kernel. It first waits for lists that copy to the host's side. What
   went wrong, or null. */
const char *sm_mirror_begin(sm_mirrors *, sm_mirror *);

/* Changes of the program on their way to the device: bytes, and 0xff for each that changed. */
typedef struct sm_patch {
  sm_mirror *mirror;
  struct sm_patch *next; /* pending */
  sm_u64 offset, size, device; /* of the first byte */
  unsigned char bytes[SM_PATCH_BYTES], changed[SM_PATCH_BYTES];
} sm_patch;

typedef struct sm_patches {
  sm_patch *items;
  size_t count, capacity;
} sm_patches;

/* Appends what the program changed. What went wrong, or null. */
const char *sm_mirror_collect(sm_mirror *, sm_patches *);
/* Copies memory of the program, which may be a mapped file that has become shorter: whether it could
   be read. */
bool sm_read_host(char *to, const char *from, size_t size);
/* Notes that the device may have got a patch, and that it has. */
void sm_mirror_pend(sm_patch *);
void sm_mirror_patched(sm_patch *);
/* The changed bytes of a patch. */
void sm_patch_apply(const sm_patch *, char *to);

/* Bytes that moved to devices and from them since the process began. */
extern atomic_ullong sm_bytes_sent, sm_bytes_absorbed;

/* Whether the host must be told what kernels changed. */
bool sm_mirror_absorbs(sm_mirror *);
/* Brings what the device changed to the host. `fresh` is the device's side or a copy of it, which is
   changed where patches are pending: what the device has there is not known. */
void sm_mirror_absorb(sm_mirror *, char *fresh);

#endif
