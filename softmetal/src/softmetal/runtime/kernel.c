/* Loading compiled kernels. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* The segment of machine code that the entry is in. */
static void find_code(sm_kernel *kernel) {
  Dl_info place;
  if (!dladdr(kernel->entry.address, &place)) return;
  const char *base = place.dli_fbase;
  const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)base;
  const ElfW(Phdr) *segment = (const ElfW(Phdr) *)(base + head->e_phoff);
  for (int i = 0; i < head->e_phnum; i++, segment++) {
    if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X)) continue;
    kernel->code = base + segment->p_vaddr;
    kernel->code_size = segment->p_memsz;
  }
}

static sm_kernel *kernel_from(void *library, const char *name, char *error, size_t capacity) {
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
  char *own_name = strdup(name);
  if (!kernel || !own_name) {
    snprintf(error, capacity, "out of memory");
    free(kernel);
    free(own_name);
    return NULL;
  }
  memset(kernel, 0, sizeof *kernel);
  kernel->name = own_name;
  kernel->entry.address = entry;
  find_code(kernel);
  kernel->mode = info->mode;
  kernel->anchor_address = (char *(*)(void))dlsym(library, "softmetal_anchor_address");
  kernel->checks = NULL;
  atomic_init(&kernel->cost, 0);
  return kernel;
}

/* Kernels are never unloaded: other objects may still use the handle. */
SM_EXPORT sm_kernel *softmetal_load(const char *path, const char *name, char *error,
                                    size_t capacity) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(error, capacity, "%s", dlerror());
    return NULL;
  }
  sm_kernel *kernel = kernel_from(library, name, error, capacity);
  if (!kernel) dlclose(library);
  return kernel;
}
