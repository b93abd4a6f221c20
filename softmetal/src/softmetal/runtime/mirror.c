/* See mirror.h. */
#include "mirror.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum { BLOCK = 4096, /* compared at once */ PAUSE_NS = 50000 };

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

bool sm_mirror_add(sm_mirrors *mirrors, sm_u64 device, size_t length) {
  sm_mirror *mirror = calloc(1, sizeof *mirror);
  sm_lock(&mirrors->lock);
  bool room = mirror && grow(mirrors);
  if (room) {
    mirror->device = device;
    mirror->length = length;
    size_t at = rank(mirrors, device);
    memmove(mirrors->items + at + 1, mirrors->items + at,
            (mirrors->count - at) * sizeof *mirrors->items);
    mirrors->items[at] = mirror;
    mirrors->count++;
  } else {
    free(mirror);
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

void sm_mirror_free(sm_mirror *mirror) {
  free(mirror->sent);
  free(mirror->held);
  free(mirror);
}

/* ---- which sides count ----------------------------------------------------------------------- */

static bool allocate_sides(sm_mirror *mirror) {
  if (!mirror->sent) mirror->sent = malloc(mirror->length);
  if (!mirror->held) mirror->held = malloc(mirror->length);
  if (mirror->sent && mirror->held) return true;
  free(mirror->sent);
  free(mirror->held);
  mirror->sent = mirror->held = NULL;
  return false;
}

bool sm_mirror_host(sm_mirrors *mirrors, sm_mirror *mirror, char *host, bool owned) {
  sm_lock(&mirror->lock);
  mirror->owned = owned;
  bool made = !owned || mirrors->download(host, mirror->device, mirror->length);
  /* What a list in flight writes is found by comparison with what the device has now. */
  if (made && owned && atomic_load(&mirror->writers)) {
    made = allocate_sides(mirror);
    if (made) {
      memcpy(mirror->sent, host, mirror->length);
      memcpy(mirror->held, host, mirror->length);
    }
  }
  if (made) mirror->host = host;
  sm_unlock(&mirror->lock);
  return made;
}

char *sm_mirror_stage(sm_mirror *mirror, bool writes) {
  sm_lock(&mirror->lock);
  char *host = !mirror->sent && mirror->owned ? mirror->host : NULL;
  if (host && writes) atomic_fetch_add(&mirror->copiers, 1);
  sm_unlock(&mirror->lock);
  return host;
}

static const char *begin(sm_mirrors *mirrors, sm_mirror *mirror) {
  if (!allocate_sides(mirror)) return "no memory for a shared buffer's sides";
  const char *error = NULL;
  if (mirror->owned)
    memcpy(mirror->sent, mirror->host, mirror->length);
  else if (!sm_read_host(mirror->sent, mirror->host, mirror->length))
    error = "memory of the program cannot be read";
  if (!error && !mirrors->upload(mirror->device, mirror->sent, mirror->length))
    error = "what the program wrote cannot be copied to the device";
  memcpy(mirror->held, mirror->sent, mirror->length);
  if (!error) {
    atomic_fetch_add(&sm_bytes_sent, mirror->length);
    return NULL;
  }
  free(mirror->sent);
  free(mirror->held);
  mirror->sent = mirror->held = NULL;
  return error;
}

const char *sm_mirror_begin(sm_mirrors *mirrors, sm_mirror *mirror) {
  const char *error = NULL;
  sm_lock(&mirror->lock);
  bool needed = mirror->host && !mirror->sent;
  while (needed && atomic_load(&mirror->copiers)) {
    sm_unlock(&mirror->lock);
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    if (mirrors->finish) mirrors->finish(mirrors);
    sm_lock(&mirror->lock);
    needed = !mirror->sent;
  }
  if (needed) error = begin(mirrors, mirror);
  sm_unlock(&mirror->lock);
  return error;
}

/* ---- from the host to the device ------------------------------------------------------------- */

static sm_patch *new_patch(sm_patches *patches) {
  if (patches->count == patches->capacity) {
    size_t capacity = patches->capacity ? 2 * patches->capacity : 4;
    sm_patch *items = realloc(patches->items, capacity * sizeof *items);
    if (!items) return NULL;
    patches->items = items;
    patches->capacity = capacity;
  }
  return &patches->items[patches->count++];
}

bool sm_read_host(char *to, const char *from, size_t size) {
  enum { MOST = 1 << 30 }; /* the system reads 2 GiB at most in one call */
  for (size_t done = 0; done < size;) {
    size_t part = size - done < MOST ? size - done : MOST;
    struct iovec local = {to + done, part}, remote = {(void *)(from + done), part};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != (ssize_t)part) return false;
    done += part;
  }
  return true;
}

static bool append_patch(sm_mirror *mirror, size_t offset, const char *bytes, size_t size,
                         sm_patches *patches) {
  unsigned changed = 0;
  sm_patch *patch = new_patch(patches);
  if (!patch) return false;
  patch->mirror = mirror;
  patch->next = NULL;
  patch->offset = offset;
  patch->size = size;
  patch->device = mirror->device + offset;
  memcpy(patch->bytes, bytes, size);
  for (size_t i = 0; i < size; i++) {
    bool differs = bytes[i] != mirror->sent[offset + i];
    patch->changed[i] = differs ? 0xff : 0;
    changed += differs;
  }
  memcpy(mirror->sent + offset, bytes, size);
  atomic_fetch_add(&sm_bytes_sent, changed);
  return true;
}

static bool collect_block(sm_mirror *mirror, size_t start, const char *bytes, size_t size,
                          sm_patches *patches) {
  for (size_t at = 0; at < size; at += SM_PATCH_BYTES) {
    size_t part = size - at < SM_PATCH_BYTES ? size - at : SM_PATCH_BYTES;
    if (memcmp(bytes + at, mirror->sent + start + at, part) &&
        !append_patch(mirror, start + at, bytes + at, part, patches))
      return false;
  }
  return true;
}

static const char *collect(sm_mirror *mirror, sm_patches *patches) {
  char copy[BLOCK];
  for (size_t start = 0; start < mirror->length; start += BLOCK) {
    size_t rest = mirror->length - start, size = rest < BLOCK ? rest : BLOCK;
    const char *bytes = mirror->host + start;
    if (!mirror->owned) {
      if (!sm_read_host(copy, bytes, size)) return "memory of the program cannot be read";
      bytes = copy;
    }
    if (memcmp(bytes, mirror->sent + start, size) &&
        !collect_block(mirror, start, bytes, size, patches))
      return "no memory for what the program changed";
  }
  return NULL;
}

const char *sm_mirror_collect(sm_mirror *mirror, sm_patches *patches) {
  sm_lock(&mirror->lock);
  const char *error = mirror->sent ? collect(mirror, patches) : NULL;
  sm_unlock(&mirror->lock);
  return error;
}

void sm_mirror_pend(sm_patch *patch) {
  sm_lock(&patch->mirror->lock);
  patch->next = patch->mirror->pending;
  patch->mirror->pending = patch;
  sm_unlock(&patch->mirror->lock);
}

void sm_patch_apply(const sm_patch *patch, char *to) {
  for (size_t i = 0; i < patch->size; i++)
    if (patch->changed[i]) to[i] = (char)patch->bytes[i];
}

void sm_mirror_patched(sm_patch *patch) {
  sm_mirror *mirror = patch->mirror;
  sm_lock(&mirror->lock);
  sm_patch **place = &mirror->pending;
  while (*place && *place != patch) place = &(*place)->next;
  if (*place) *place = patch->next;
  sm_patch_apply(patch, mirror->held + patch->offset);
  sm_unlock(&mirror->lock);
}

/* ---- from the device to the host ------------------------------------------------------------- */

bool sm_mirror_absorbs(sm_mirror *mirror) {
  sm_lock(&mirror->lock);
  bool both = mirror->sent;
  sm_unlock(&mirror->lock);
  return both;
}

void sm_mirror_absorb(sm_mirror *mirror, char *fresh) {
  size_t absorbed = 0;
  sm_lock(&mirror->lock);
  for (const sm_patch *patch = mirror->pending; patch; patch = patch->next)
    for (size_t i = 0; i < patch->size; i++)
      if (patch->changed[i]) fresh[patch->offset + i] = mirror->held[patch->offset + i];
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
