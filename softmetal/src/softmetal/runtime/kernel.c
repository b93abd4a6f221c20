/* Loading compiled kernels. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

/* ---- threadgroup variables ------------------------------------------------------------------- */

_Thread_local char *sm_statics __attribute__((tls_model("initial-exec")));

#if defined(__x86_64__)
/* What kernels call to find a thread-local variable (compiler/stages.py links them so). glibc's
   function would allocate it on the heap, which a kernel that runs over its end would damage. The
   caller assumes that only the integer registers of the calling convention change. */
SM_EXPORT void *find_static(const sm_u64 place[2]) __asm__("__wrap___tls_get_addr");
SM_EXPORT void *find_static(const sm_u64 place[2]) { return sm_statics + place[1]; }

static void measure_statics(sm_kernel *kernel, const ElfW(Phdr) *segment) {
  kernel->statics = segment->p_memsz;
  kernel->statics_shift = segment->p_align ? segment->p_vaddr & (segment->p_align - 1) : 0;
}
#else
/* TLS descriptors are resolved by the dynamic linker: glibc allocates the variables. */
static void measure_statics(sm_kernel *kernel, const ElfW(Phdr) *segment) {
  (void)kernel, (void)segment;
}
#endif

/* ---- loading --------------------------------------------------------------------------------- */

/* The segments of machine code, and of thread-local variables. */
static void find_segments(sm_kernel *kernel) {
  Dl_info place;
  if (!dladdr(kernel->entry.address, &place)) return;
  const char *base = place.dli_fbase;
  const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)base;
  const ElfW(Phdr) *segment = (const ElfW(Phdr) *)(base + head->e_phoff);
  for (int i = 0; i < head->e_phnum; i++, segment++) {
    if (segment->p_type == PT_TLS) measure_statics(kernel, segment);
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
  size_t length = strlen(name) + sizeof "kernel ''";
  char *subject = malloc(length);
  if (!kernel || !subject) {
    snprintf(error, capacity, "out of memory");
    free(kernel);
    free(subject);
    return NULL;
  }
  memset(kernel, 0, sizeof *kernel);
  snprintf(subject, length, "kernel '%s'", name);
  kernel->subject = subject;
  kernel->library = library;
  kernel->entry.address = entry;
  find_segments(kernel);
  kernel->mode = info->mode;
  kernel->anchor_address = (char *(*)(void))dlsym(library, "softmetal_anchor_address");
  kernel->checks = NULL;
  atomic_init(&kernel->cost, 0);
  return kernel;
}

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

/* No command list may still use it. */
SM_EXPORT void softmetal_unload(sm_kernel *kernel) {
  dlclose(kernel->library);
  free(kernel->checks);
  free((char *)kernel->subject);
  free(kernel);
}
