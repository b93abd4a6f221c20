/* Kernels, device memory, pinned memory, and mirrors of shared buffers. */
#include <sys/mman.h>

#include "driver.h"

/* Without this, threadgroup arguments end at 48 KiB. */
static void allow_large_threadgroup_memory(const sm_gpu *gpu, const sm_gpu_kernel *kernel) {
  int used = 0, most = 0;
  if (!cuFuncGetAttribute(&used, CU_FUNCTION_SHARED_BYTES, kernel->function) &&
      !cuDeviceGetAttribute(&most, CU_DEVICE_MOST_SHARED_BYTES, gpu->device))
    cuFuncSetAttribute(kernel->function, CU_FUNCTION_MOST_DYNAMIC_BYTES, most - used);
}

/* `image`: PTX with its final zero, or a cubin. */
SM_EXPORT sm_gpu_kernel *softmetal_gpu_load(sm_gpu *gpu, const char *image, const char *name,
                                            const char *entry, sm_u32 written, bool logs,
                                            bool checked, char *error, size_t capacity) {
  char text[ERROR_BYTES];
  sm_gpu_kernel *kernel = calloc(1, sizeof *kernel + strlen(name) + 1);
  if (!kernel) {
    snprintf(error, capacity, "no memory");
    return NULL;
  }
  static atomic_ullong loaded;
  strcpy(kernel->name, name);
  kernel->serial = atomic_fetch_add(&loaded, 1);
  kernel->written = written;
  kernel->logs = logs;
  kernel->checked = checked;
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_BYTES};
  void *values[] = {error, (void *)capacity};
  error[0] = 0;
  CUresult code;
  if (!sm_gpu_enter(gpu)) {
    snprintf(error, capacity, "%s", gpu->why_lost);
    free(kernel);
    return NULL;
  }
  if ((code = cuModuleLoadDataEx(&kernel->module, image, 2, options, values)) ||
      (code = cuModuleGetFunction(&kernel->function, kernel->module, entry))) {
    if (!error[0]) snprintf(error, capacity, "%s", sm_gpu_describe(code, text));
    free(kernel);
    return NULL;
  }
  cuFuncGetAttribute(&kernel->max_threads, CU_FUNCTION_MAX_THREADS, kernel->function);
  CUdeviceptr found;
  size_t size;
  kernel->waits = !cuModuleGetGlobal(&found, &size, kernel->module, "softmetal_waits");
  kernel->reads_early =
      !cuModuleGetGlobal(&found, &size, kernel->module, "softmetal_reads_early");
  allow_large_threadgroup_memory(gpu, kernel);
  return kernel;
}

SM_EXPORT int softmetal_gpu_max_threads(const sm_gpu_kernel *kernel) { return kernel->max_threads; }

SM_EXPORT void softmetal_gpu_unload(sm_gpu *gpu, sm_gpu_kernel *kernel) {
  if (sm_gpu_enter(gpu)) cuModuleUnload(kernel->module);
  free(kernel);
}

SM_EXPORT sm_u64 softmetal_gpu_allocate(sm_gpu *gpu, size_t length) {
  CUdeviceptr address = 0;
  if (!sm_gpu_enter(gpu) || cuMemAlloc(&address, length)) return 0;
  if (cuMemsetD8Async(address, 0, length, NULL) || cuStreamSynchronize(NULL)) return 0;
  return address;
}

/* Pinned: the GPU reads and writes it at the same address. The memory is ours rather than the driver's, so
   that it outlives a lost context. */
void *softmetal_gpu_allocate_host(sm_gpu *gpu, size_t length) {
  if (!sm_gpu_enter(gpu)) return NULL;
  void *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return NULL;
  if (!cuMemHostRegister(address, length, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_MAPPED))
    return address;
  munmap(address, length);
  return NULL;
}

void softmetal_gpu_free_host(sm_gpu *gpu, void *address, size_t length) {
  if (sm_gpu_enter(gpu)) cuMemHostUnregister(address);
  munmap(address, length);
}

static bool copy_now(sm_u64 to, sm_u64 from, size_t size) {
  return !cuMemcpyAsync(to, from, size, NULL) && !cuStreamSynchronize(NULL);
}

bool sm_gpu_upload(sm_u64 device, const char *from, size_t size) {
  return copy_now(device, (sm_u64)from, size);
}

bool sm_gpu_download(char *to, sm_u64 device, size_t size) {
  return copy_now((sm_u64)to, device, size);
}

/* Registers an allocation whose host's side the program may ask for; false: no memory. */
SM_EXPORT bool softmetal_gpu_share(sm_gpu *gpu, sm_u64 device, size_t length) {
  return sm_mirror_add(&gpu->mirrors, device, length);
}

/* The host's side of a registered allocation: `host` if the program has it already, else new pinned
   memory with what the device has. Null: no memory. */
SM_EXPORT void *softmetal_gpu_host_side(sm_gpu *gpu, sm_u64 device, char *host) {
  sm_mirror *mirror = sm_mirror_find(&gpu->mirrors, device);
  char *made = host ? host : softmetal_gpu_allocate_host(gpu, mirror->length);
  if (made && sm_gpu_enter(gpu) && sm_mirror_host(&gpu->mirrors, mirror, made, !host)) return made;
  if (made && !host) softmetal_gpu_free_host(gpu, made, mirror->length);
  return NULL;
}

/* An allocation, with its host's side if it has one. */
SM_EXPORT void softmetal_gpu_free(sm_gpu *gpu, sm_u64 address) {
  sm_mirror *mirror = sm_mirror_remove(&gpu->mirrors, address);
  if (mirror) {
    if (mirror->owned && mirror->host) softmetal_gpu_free_host(gpu, mirror->host, mirror->length);
    sm_mirror_free(mirror);
  }
  if (sm_gpu_enter(gpu)) cuMemFree(address);
}
