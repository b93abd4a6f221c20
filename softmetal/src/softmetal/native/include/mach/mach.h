/* Mach's names for memory and time. */
#pragma once

#include <mach/mach_time.h>
#include <mach/vm_page_size.h>
#include <stdint.h>
#include <sys/mman.h>

typedef int kern_return_t;
typedef unsigned mach_port_t, task_id_token_t;
typedef uintptr_t vm_address_t, vm_size_t, vm_map_t;

enum { KERN_SUCCESS = 0, KERN_NO_SPACE = 3, VM_FLAGS_ANYWHERE = 1 };

static inline vm_map_t mach_task_self(void) { return 0; }

static inline kern_return_t vm_allocate(vm_map_t task, vm_address_t *address, vm_size_t size,
                                        int flags) {
  (void)task, (void)flags;
  void *memory =
      mmap(0, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *address = (vm_address_t)memory;
  return memory == MAP_FAILED ? KERN_NO_SPACE : KERN_SUCCESS;
}

static inline kern_return_t vm_deallocate(vm_map_t task, vm_address_t address, vm_size_t size) {
  (void)task;
  return munmap((void *)address, size ? size : 1) ? KERN_NO_SPACE : KERN_SUCCESS;
}
