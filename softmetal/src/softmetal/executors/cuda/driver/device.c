/* Opening a GPU, what it is, and its clock. */
#include "driver.h"

static const char KERNELS[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry stamp(.param .u64 to, .param .u64 offset) {\n.reg .u64 %a, %t, %o;\n"
    "ld.param.u64 %a, [to];\nld.param.u64 %o, [offset];\nmov.u64 %t, %globaltimer;\n"
    "add.u64 %t, %t, %o;\nst.u64 [%a], %t;\nret;\n}\n"
    /* A block for each sm_patch, a thread for each of its bytes. */
    ".visible .entry patch(.param .u64 patches, .param .u32 stride) {\n"
    ".reg .pred %p;\n.reg .u16 %v;\n.reg .u32 %b, %n, %t;\n.reg .u64 %a, %i, %r, %s;\n"
    "ld.param.u64 %r, [patches];\nld.param.u32 %n, [stride];\n"
    "mov.u32 %b, %ctaid.x;\nmul.wide.u32 %i, %b, %n;\nadd.u64 %r, %r, %i;\n"
    "ld.u64 %s, [%r+24];\nld.u64 %a, [%r+32];\n"
    "mov.u32 %t, %tid.x;\ncvt.u64.u32 %i, %t;\nsetp.ge.u64 %p, %i, %s;\n@%p ret;\n"
    "add.u64 %r, %r, %i;\nld.u8 %v, [%r+1064];\nsetp.eq.u16 %p, %v, 0;\n@%p ret;\n"
    "ld.u8 %v, [%r+40];\nadd.u64 %a, %a, %i;\nst.u8 [%a], %v;\nret;\n}\n";
_Static_assert(offsetof(sm_patch, size) == 24 && offsetof(sm_patch, device) == 32 &&
                   offsetof(sm_patch, bytes) == 40 && offsetof(sm_patch, changed) == 1064,
               "the kernel reads these");

CUresult sm_gpu_stamp(const sm_gpu *gpu, sm_u64 address, CUstream stream) {
  sm_u64 offset = gpu->clock_offset;
  void *arguments[] = {&address, &offset};
  return cuLaunchKernel(gpu->stamp, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

CUresult sm_gpu_patch(const sm_gpu *gpu, sm_u64 patches, size_t count, CUstream stream) {
  sm_u32 stride = sizeof(sm_patch);
  void *arguments[] = {&patches, &stride};
  return cuLaunchKernel(gpu->patch, (unsigned)count, 1, 1, SM_PATCH_BYTES, 1, 1, 0, stream,
                        arguments, NULL);
}

/* The difference between the host's clock and the GPU's, from the quickest of some readings. */
static CUresult compare_clocks(sm_gpu *gpu) {
  sm_u64 *value = softmetal_gpu_allocate_host(gpu, sizeof *value), best = ~(sm_u64)0, offset = 0;
  if (!value) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult code = 0;
  for (int i = 0; i < 8 && !code; i++) {
    sm_u64 start = sm_now();
    (void)((code = sm_gpu_stamp(gpu, (sm_u64)value, NULL)) || (code = cuStreamSynchronize(NULL)));
    sm_u64 took = sm_now() - start;
    if (took < best) best = took, offset = start + took / 2 - *value;
  }
  gpu->clock_offset = offset;
  softmetal_gpu_free_host(gpu, value, sizeof *value);
  return code;
}

/* The primary context, which other CUDA code of the process uses too. After a fault it is made anew, if
   the driver can do that. */
static CUresult take_context(sm_gpu *gpu, bool anew) {
  CUresult code;
  if (anew && (code = cuDevicePrimaryCtxReset(gpu->device))) return code;
  if ((code = cuDevicePrimaryCtxRetain(&gpu->context, gpu->device))) return code;
  return cuCtxSetCurrent(gpu->context);
}

/* `timeout`: nanoseconds that a list may run, or 0. `anew`: an earlier context of this GPU was lost. */
SM_EXPORT sm_gpu *softmetal_gpu_open(int index, sm_u64 timeout, bool anew, char *error,
                                     size_t capacity) {
  char text[ERROR_BYTES];
  const char *missing = sm_find_libcuda();
  sm_gpu *gpu = calloc(1, sizeof *gpu);
  CUmodule module;
  CUresult code;
  if (missing || !gpu) {
    snprintf(error, capacity, "%s", missing ? missing : "no memory");
    free(gpu);
    return NULL;
  }
  if ((code = cuInit(0)) || (code = cuDeviceGet(&gpu->device, index)) ||
      (code = take_context(gpu, anew)) || (code = cuEventCreate(&gpu->base, 0)) ||
      (gpu->base_time = sm_now(), code = cuEventRecord(gpu->base, NULL)) ||
      (code = cuStreamSynchronize(NULL)) ||
      (code = cuModuleLoadDataEx(&module, KERNELS, 0, NULL, NULL)) ||
      (code = cuModuleGetFunction(&gpu->stamp, module, "stamp")) ||
      (code = cuModuleGetFunction(&gpu->patch, module, "patch")) ||
      (code = cuStreamCreate(&gpu->copies, CU_STREAM_NON_BLOCKING)) ||
      (code = compare_clocks(gpu))) {
    snprintf(error, capacity, "%s", sm_gpu_describe(code, text));
    free(gpu);
    return NULL;
  }
  gpu->newest = &gpu->launched;
  gpu->mirrors.upload = sm_gpu_upload;
  gpu->mirrors.download = sm_gpu_download;
  gpu->mirrors.finish = sm_gpu_finish_for;
  gpu->timeout = timeout;
  if (sm_gpu_start_watchdog(gpu)) return gpu;
  snprintf(error, capacity, "no thread can be started");
  free(gpu);
  return NULL;
}

/* Why the context was lost; null if it was not. */
SM_EXPORT const char *softmetal_gpu_lost(sm_gpu *gpu) {
  return atomic_load(&gpu->lost) ? gpu->why_lost : NULL;
}

SM_EXPORT int softmetal_gpu_attribute(sm_gpu *gpu, int attribute) {
  int value = 0;
  cuDeviceGetAttribute(&value, attribute, gpu->device);
  return value;
}

SM_EXPORT sm_u64 softmetal_gpu_memory(sm_gpu *gpu) {
  size_t bytes = 0;
  cuDeviceTotalMem(&bytes, gpu->device);
  return bytes;
}

SM_EXPORT void softmetal_gpu_name(sm_gpu *gpu, char *name, int capacity) {
  cuDeviceGetName(name, capacity, gpu->device);
}

/* "" if the library has cuBLAS, else what is wrong with it. */
SM_EXPORT const char *softmetal_gpu_set_blas(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
#define LIBCUBLAS_FIND(name, symbol, arguments) \
  if (!(name = (CUresult(*) arguments)dlsym(library, #symbol))) return #symbol " is missing";
  LIBCUBLAS(LIBCUBLAS_FIND)
  return "";
}
