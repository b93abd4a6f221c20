/* Kernels, device memory, pinned memory, and mirrors of shared buffers. */
#include "driver.h"

/* `image`: PTX with its final zero, or a cubin. */
SM_EXPORT sm_gpu_kernel *softmetal_gpu_load(sm_gpu *gpu, const char *image, size_t size,
                                            const char *name, const char *entry, sm_u32 written,
                                            char *error, size_t capacity) {
  char text[ERROR_BYTES];
  sm_gpu_kernel *kernel = calloc(1, sizeof *kernel + strlen(name) + 1);
  if (!kernel) {
    snprintf(error, capacity, "no memory");
    return NULL;
  }
  strcpy(kernel->name, name);
  kernel->written = written;
  kernel->logs = memmem(image, size, "log_block", 9) != NULL;
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_BYTES};
  void *values[] = {error, (void *)capacity};
  error[0] = 0;
  CUresult code;
  if ((code = cuCtxSetCurrent(gpu->context)) ||
      (code = cuModuleLoadDataEx(&kernel->module, image, 2, options, values)) ||
      (code = cuModuleGetFunction(&kernel->function, kernel->module, entry))) {
    if (!error[0]) snprintf(error, capacity, "%s", sm_gpu_describe(code, text));
    free(kernel);
    return NULL;
  }
  cuFuncGetAttribute(&kernel->max_threads, CU_FUNCTION_MAX_THREADS, kernel->function);
  return kernel;
}

SM_EXPORT int softmetal_gpu_max_threads(const sm_gpu_kernel *kernel) { return kernel->max_threads; }

SM_EXPORT void softmetal_gpu_unload(sm_gpu *gpu, sm_gpu_kernel *kernel) {
  cuCtxSetCurrent(gpu->context);
  cuModuleUnload(kernel->module);
  free(kernel);
}

SM_EXPORT sm_u64 softmetal_gpu_allocate(sm_gpu *gpu, size_t length) {
  CUdeviceptr address = 0;
  if (cuCtxSetCurrent(gpu->context) || cuMemAlloc(&address, length)) return 0;
  if (cuMemsetD8Async(address, 0, length, NULL) || cuStreamSynchronize(NULL)) return 0;
  return address;
}

/* Pinned: the GPU reads and writes it at the same address. */
SM_EXPORT void *softmetal_gpu_allocate_host(sm_gpu *gpu, size_t length) {
  void *address = NULL;
  if (cuCtxSetCurrent(gpu->context) ||
      cuMemHostAlloc(&address, length, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_MAPPED))
    return NULL;
  memset(address, 0, length);
  return address;
}

SM_EXPORT void softmetal_gpu_free_host(sm_gpu *gpu, void *address) {
  cuCtxSetCurrent(gpu->context);
  cuMemFreeHost(address);
}

static bool copy_now(sm_u64 to, sm_u64 from, size_t size) {
  return !cuMemcpyAsync(to, from, size, NULL) && !cuStreamSynchronize(NULL);
}

static void free_mirror(sm_gpu *gpu, sm_mirror *mirror) {
  if (mirror->owned && mirror->host) softmetal_gpu_free_host(gpu, mirror->host);
  free(mirror->sent);
  free(mirror->held);
}

/* The host's side of an allocation: `host` if the program has it already, which the device then gets;
   else new memory, which gets what the device has. Null: no memory. */
SM_EXPORT void *softmetal_gpu_mirror(sm_gpu *gpu, sm_u64 device, size_t length, char *host) {
  sm_mirror mirror = {.device = device, .length = length, .owned = !host};
  mirror.host = host ? host : softmetal_gpu_allocate_host(gpu, length);
  mirror.sent = malloc(length);
  mirror.held = malloc(length);
  if (mirror.host && mirror.sent && mirror.held && !cuCtxSetCurrent(gpu->context)) {
    bool copied;
    if (host) { /* if it cannot be read, submitting a list reports it */
      if (!sm_read_host(mirror.sent, host, length)) memset(mirror.sent, 0, length);
      copied = copy_now(device, (sm_u64)mirror.sent, length);
    } else {
      copied = copy_now((sm_u64)mirror.host, device, length);
      memcpy(mirror.sent, mirror.host, length);
    }
    memcpy(mirror.held, mirror.sent, length);
    if (copied && sm_mirror_add(&gpu->mirrors, mirror)) return mirror.host;
  }
  free_mirror(gpu, &mirror);
  return NULL;
}

static void unmirror(sm_gpu *gpu, sm_u64 device) {
  sm_mirror *mirror = sm_mirror_remove(&gpu->mirrors, device);
  if (mirror) free_mirror(gpu, mirror);
  free(mirror);
}

/* An allocation, with its host's side if it has one. */
SM_EXPORT void softmetal_gpu_free(sm_gpu *gpu, sm_u64 address) {
  cuCtxSetCurrent(gpu->context);
  unmirror(gpu, address);
  cuMemFree(address);
}
