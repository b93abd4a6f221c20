/* Shared buffers of the CPU as a device with its own memory: both sides are memory of the process. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

void *softmetal_allocate(size_t length);
void softmetal_free(void *address, size_t length);

static bool upload(sm_u64 device, const char *from, size_t size) {
  memcpy((char *)device, from, size);
  return true;
}

static bool download(char *to, sm_u64 device, size_t size) {
  memcpy(to, (const char *)device, size);
  return true;
}

/* Registers an allocation whose host's side the program may ask for; false: no memory. */
SM_EXPORT bool softmetal_share(sm_pool *pool, char *device, size_t length) {
  pool->mirrors.upload = upload;
  pool->mirrors.download = download;
  return sm_mirror_add(&pool->mirrors, (sm_u64)device, length);
}

/* The host's side of a registered allocation: `host` if the program has it already, else new memory
   with what the device has. Null: no memory. */
SM_EXPORT void *softmetal_host_side(sm_pool *pool, char *device, char *host) {
  sm_mirror *mirror = sm_mirror_find(&pool->mirrors, (sm_u64)device);
  char *made = host ? host : softmetal_allocate(mirror->length);
  if (made && sm_mirror_host(&pool->mirrors, mirror, made, !host)) return made;
  if (made && !host) softmetal_free(made, mirror->length);
  return NULL;
}

/* Bytes that moved to the device and from it. */
SM_EXPORT void softmetal_mirror_traffic(sm_u64 bytes[2]) {
  bytes[0] = atomic_load(&sm_bytes_sent);
  bytes[1] = atomic_load(&sm_bytes_absorbed);
}

SM_EXPORT void softmetal_unshare(sm_pool *pool, char *device) {
  sm_mirror *mirror = sm_mirror_remove(&pool->mirrors, (sm_u64)device);
  if (!mirror) return;
  if (mirror->owned && mirror->host) softmetal_free(mirror->host, mirror->length);
  sm_mirror_free(mirror);
}
