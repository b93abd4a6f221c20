/* Loading compiled kernels. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

static sm_kernel *kernel_from(void *library, char *error, size_t capacity) {
  void *entry = dlsym(library, "softmetal_entry");
  const sm_info *info = dlsym(library, "softmetal_info");
  if (!entry || !info) {
    snprintf(error, capacity, "softmetal_entry or softmetal_info is missing");
    return NULL;
  }
  if (info->abi != SM_ABI || info->mode > SM_FIBERS) {
    snprintf(error, capacity, "kernel ABI %u, mode %u: expected ABI %d, mode 0 to %d", info->abi,
             info->mode, SM_ABI, SM_FIBERS);
    return NULL;
  }
  sm_kernel *kernel = aligned_alloc(_Alignof(sm_kernel), sizeof *kernel);
  if (!kernel) {
    snprintf(error, capacity, "out of memory");
    return NULL;
  }
  kernel->entry.address = entry;
  kernel->mode = info->mode;
  atomic_init(&kernel->cost, 0);
  return kernel;
}

/* Kernels are never unloaded: a pipeline may outlive everything that knows of it. */
SM_EXPORT sm_kernel *softmetal_load(const char *path, char *error, size_t capacity) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error, capacity, "%s", dlerror());
    return NULL;
  }
  sm_kernel *kernel = kernel_from(library, error, capacity);
  if (!kernel) dlclose(library);
  return kernel;
}
