/* Shared buffers of the CPU as a device with its own memory: both sides are memory of the process. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

void *softmetal_allocate(size_t length);
void softmetal_free(void *address, size_t length);

/* The host's side of an allocation: `host` if the program has it already, which the device then gets;
   else new memory, which gets what the device has. Null: no memory. */
SM_EXPORT void *softmetal_mirror(sm_pool *pool, char *device, size_t length, char *host) {
  sm_mirror mirror = {.device = (sm_u64)device, .length = length, .owned = !host};
  mirror.host = host ? host : softmetal_allocate(length);
  mirror.sent = malloc(length);
  mirror.held = malloc(length);
  if (mirror.host && mirror.sent && mirror.held) {
    if (host) sm_read_host(device, host, length); /* if not, submitting a list reports it */
    else memcpy(mirror.host, device, length);
    memcpy(mirror.sent, device, length);
    memcpy(mirror.held, device, length);
    if (sm_mirror_add(&pool->mirrors, mirror)) return mirror.host;
  }
  if (mirror.owned && mirror.host) softmetal_free(mirror.host, length);
  free(mirror.sent);
  free(mirror.held);
  return NULL;
}

/* Bytes that moved to the device and from it. */
SM_EXPORT void softmetal_mirror_traffic(sm_u64 bytes[2]) {
  bytes[0] = atomic_load(&sm_bytes_sent);
  bytes[1] = atomic_load(&sm_bytes_absorbed);
}

SM_EXPORT void softmetal_unmirror(sm_pool *pool, char *device) {
  sm_mirror *mirror = sm_mirror_remove(&pool->mirrors, (sm_u64)device);
  if (!mirror) return;
  if (mirror->owned) softmetal_free(mirror->host, mirror->length);
  free(mirror->sent);
  free(mirror->held);
  free(mirror);
}
