/* Loading compiled kernels. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

/* ---- threadgroup variables ------------------------------------------------------------------- */

_Thread_local char *sm_statics __attribute__((tls_model("initial-exec")));

static void measure_statics(sm_kernel *kernel, const ElfW(Phdr) *segment) {
  kernel->statics = segment->p_memsz;
  kernel->statics_shift = segment->p_align ? segment->p_vaddr & (segment->p_align - 1) : 0;
}

#if defined(__x86_64__)
/* What kernels call to find a thread-local variable (compiler/stages.py links them so). glibc's
   function would allocate it on the heap, which a kernel that runs over its end would damage. The
   caller assumes that only the integer registers of the calling convention change. */
SM_EXPORT void *find_static(const sm_u64 place[2]) __asm__("__wrap___tls_get_addr");
SM_EXPORT void *find_static(const sm_u64 place[2]) { return sm_statics + place[1]; }

static void redirect_statics(const char *base, const ElfW(Dyn) *dynamic) {
  (void)base, (void)dynamic;
}

#elif defined(__aarch64__)
/* Kernels call the first word of a TLS descriptor with its address in x0. It returns an offset from
   the thread pointer and changes no other register. The second word is the variable's offset. */
void sm_find_static(void) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".p2align 4\n"
        ".globl sm_find_static\n"
        ".hidden sm_find_static\n"
        ".type sm_find_static, %function\n"
        "sm_find_static:\n"
        "  stp x1, x2, [sp, #-16]!\n"
        "  ldr x1, [x0, #8]\n"
        "  mrs x2, tpidr_el0\n"
        "  adrp x0, :gottprel:sm_statics\n"
        "  ldr x0, [x0, #:gottprel_lo12:sm_statics]\n"
        "  ldr x0, [x2, x0]\n"
        "  add x0, x0, x1\n"
        "  sub x0, x0, x2\n"
        "  ldp x1, x2, [sp], #16\n"
        "  ret\n"
        ".size sm_find_static, . - sm_find_static\n");

/* Replaces the descriptors that the dynamic linker has filled in. Variables are local to a kernel,
   so that their relocations have an offset and no symbol. */
static void redirect_table(const char *base, sm_u64 table, sm_u64 size) {
  if (table < (sm_u64)base) table += (sm_u64)base; /* glibc has added it, other linkers have not */
  const ElfW(Rela) *entry = (const ElfW(Rela) *)table;
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (sm_u64 i = 0; i < size / sizeof *entry; i++, entry++) {
    if (ELF64_R_TYPE(entry->r_info) != R_AARCH64_TLSDESC || ELF64_R_SYM(entry->r_info)) continue;
    sm_u64 *descriptor = (sm_u64 *)(base + entry->r_offset);
    char *start = (char *)((sm_u64)descriptor & ~(sm_u64)(page - 1));
    size_t length = (size_t)((char *)(descriptor + 2) - start);
    if (mprotect(start, length, PROT_READ | PROT_WRITE)) continue;
    descriptor[0] = (sm_u64)sm_find_static;
    descriptor[1] = (sm_u64)entry->r_addend;
  }
}

static void redirect_statics(const char *base, const ElfW(Dyn) *dynamic) {
  sm_u64 tables[2] = {0, 0}, sizes[2] = {0, 0};
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
    if (dynamic->d_tag == DT_RELA) tables[0] = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_RELASZ) sizes[0] = dynamic->d_un.d_val;
    if (dynamic->d_tag == DT_JMPREL) tables[1] = dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_PLTRELSZ) sizes[1] = dynamic->d_un.d_val;
  }
  for (int i = 0; i < 2; i++) redirect_table(base, tables[i], sizes[i]);
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
    if (segment->p_type == PT_DYNAMIC)
      redirect_statics(base, (const ElfW(Dyn) *)(base + segment->p_vaddr));
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
  if (info->abi != SM_ABI || info->mode > SM_SIMDGROUPS) {
    snprintf(error, capacity, "kernel ABI %u, mode %u: expected ABI %d, mode 0 to %d", info->abi,
             info->mode, SM_ABI, SM_SIMDGROUPS);
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
  for (sm_u32 i = 0; i < info->argument_count; i++)
    if (!info->arguments[i].kind && info->arguments[i].writable)
      kernel->written |= 1u << info->arguments[i].index;
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
