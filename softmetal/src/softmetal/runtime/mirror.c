/* See mirror.h. */
#include "mirror.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum { BLOCK = 4096 }; /* compared at once */

atomic_ullong sm_bytes_sent, sm_bytes_absorbed;

/* ---- the table ------------------------------------------------------------------------------- */

/* The number of mirrors that begin at or before an address. */
static size_t rank(const sm_mirrors *mirrors, sm_u64 address) {
  size_t low = 0, high = mirrors->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (mirrors->items[middle]->device <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool grow(sm_mirrors *mirrors) {
  if (mirrors->count < mirrors->capacity) return true;
  size_t capacity = mirrors->capacity ? 2 * mirrors->capacity : 64;
  sm_mirror **items = realloc(mirrors->items, capacity * sizeof *items);
  if (!items) return false;
  mirrors->items = items;
  mirrors->capacity = capacity;
  return true;
}

bool sm_mirror_add(sm_mirrors *mirrors, sm_mirror mirror) {
  sm_mirror *kept = malloc(sizeof *kept);
  sm_lock(&mirrors->lock);
  bool room = kept && grow(mirrors);
  if (room) {
    *kept = mirror;
    size_t at = rank(mirrors, mirror.device);
    memmove(mirrors->items + at + 1, mirrors->items + at,
            (mirrors->count - at) * sizeof *mirrors->items);
    mirrors->items[at] = kept;
    mirrors->count++;
  } else {
    free(kept);
  }
  sm_unlock(&mirrors->lock);
  return room;
}

sm_mirror *sm_mirror_find(sm_mirrors *mirrors, sm_u64 address) {
  sm_mirror *found = NULL;
  sm_lock(&mirrors->lock);
  size_t at = rank(mirrors, address);
  if (at && address - mirrors->items[at - 1]->device < mirrors->items[at - 1]->length)
    found = mirrors->items[at - 1];
  sm_unlock(&mirrors->lock);
  return found;
}

sm_mirror *sm_mirror_remove(sm_mirrors *mirrors, sm_u64 device) {
  sm_mirror *found = NULL;
  sm_lock(&mirrors->lock);
  size_t at = rank(mirrors, device);
  if (at && mirrors->items[at - 1]->device == device) {
    found = mirrors->items[at - 1];
    memmove(mirrors->items + at - 1, mirrors->items + at,
            (mirrors->count - at) * sizeof *mirrors->items);
    mirrors->count--;
  }
  sm_unlock(&mirrors->lock);
  return found;
}

/* ---- from the host to the device ------------------------------------------------------------- */

static size_t padded(size_t size) { return (size + 7) / 8 * 8; }

static bool append_patch(sm_patches *patches, sm_mirror *mirror, size_t offset, const char *bytes,
                         size_t size) {
  size_t needed = patches->size + sizeof(sm_patch) + padded(size);
  if (needed > patches->capacity) {
    size_t capacity = needed > 2 * patches->capacity ? needed : 2 * patches->capacity;
    char *data = realloc(patches->data, capacity);
    if (!data) return false;
    patches->data = data;
    patches->capacity = capacity;
  }
  sm_patch *patch = (sm_patch *)(patches->data + patches->size);
  *patch = (sm_patch){.mirror = mirror, .offset = offset, .size = size};
  memcpy(patch->bytes, bytes, size);
  memcpy(mirror->sent + offset, bytes, size);
  patches->size = needed;
  atomic_fetch_add(&sm_bytes_sent, size);
  return true;
}

bool sm_read_host(char *to, const char *from, size_t size) {
  struct iovec local = {to, size}, remote = {(void *)from, size};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

/* The runs of bytes in a block that differ from what was sent. */
static bool collect_block(sm_mirror *mirror, size_t start, const char *bytes, size_t size,
                          sm_patches *patches) {
  const char *sent = mirror->sent + start;
  for (size_t i = 0; i < size;) {
    size_t from = i;
    while (i < size && bytes[i] != sent[i]) i++;
    if (i == from) i++;
    else if (!append_patch(patches, mirror, start + from, bytes + from, i - from)) return false;
  }
  return true;
}

const char *sm_mirror_collect(sm_mirror *mirror, sm_patches *patches) {
  const char *error = NULL;
  char copy[BLOCK];
  sm_lock(&mirror->lock);
  for (size_t start = 0; start < mirror->length && !error; start += BLOCK) {
    size_t rest = mirror->length - start, size = rest < BLOCK ? rest : BLOCK;
    const char *bytes = mirror->host + start;
    if (!mirror->owned) {
      if (!sm_read_host(copy, bytes, size)) error = "memory of the program cannot be read";
      bytes = copy;
    }
    if (!error && memcmp(bytes, mirror->sent + start, size) &&
        !collect_block(mirror, start, bytes, size, patches))
      error = "no memory for what the program changed";
  }
  sm_unlock(&mirror->lock);
  return error;
}

sm_patch *sm_patch_next(const sm_patches *patches, size_t *offset) {
  if (*offset >= patches->size) return NULL;
  sm_patch *patch = (sm_patch *)(patches->data + *offset);
  *offset += sizeof *patch + padded(patch->size);
  return patch;
}

void sm_mirror_pend(sm_patch *patch) {
  sm_lock(&patch->mirror->lock);
  patch->next = patch->mirror->pending;
  patch->mirror->pending = patch;
  sm_unlock(&patch->mirror->lock);
}

void sm_mirror_patched(sm_patch *patch) {
  sm_mirror *mirror = patch->mirror;
  sm_lock(&mirror->lock);
  sm_patch **place = &mirror->pending;
  while (*place && *place != patch) place = &(*place)->next;
  if (*place) *place = patch->next;
  memcpy(mirror->held + patch->offset, patch->bytes, patch->size);
  sm_unlock(&mirror->lock);
}

/* ---- from the device to the host ------------------------------------------------------------- */

void sm_mirror_absorb(sm_mirror *mirror, char *fresh) {
  size_t absorbed = 0;
  sm_lock(&mirror->lock);
  for (const sm_patch *patch = mirror->pending; patch; patch = patch->next)
    memcpy(fresh + patch->offset, mirror->held + patch->offset, patch->size);
  for (size_t start = 0; start < mirror->length; start += BLOCK) {
    size_t rest = mirror->length - start, end = start + (rest < BLOCK ? rest : BLOCK);
    if (!memcmp(fresh + start, mirror->held + start, end - start)) continue;
    for (size_t i = start; i < end; i++) {
      if (fresh[i] == mirror->held[i]) continue;
      mirror->host[i] = mirror->sent[i] = mirror->held[i] = fresh[i];
      absorbed++;
    }
  }
  sm_unlock(&mirror->lock);
  atomic_fetch_add(&sm_bytes_absorbed, absorbed);
}
