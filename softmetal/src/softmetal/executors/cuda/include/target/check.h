// `bounds` on the GPU: what the compiler calls before each access of a kernel compiled for checking.
#ifndef SOFTMETAL_TARGET_CHECK_H
#define SOFTMETAL_TARGET_CHECK_H

#include <target/entry.h>

#define SM_CHECKER \
  __attribute__((device, used, noinline, no_sanitize("kernel-address"), no_sanitize("address")))

// The variables of a kernel, threadgroup's first: instrumentation.py defines them.
extern "C" __attribute__((device)) sm_u32 softmetal_variable_count();
extern "C" __attribute__((device)) sm_u64 softmetal_variable_start(sm_u32 index);
extern "C" __attribute__((device)) sm_u64 softmetal_variable_size(sm_u32 index);
extern "C" __attribute__((device)) bool softmetal_variable_is_constant(sm_u32 index);

namespace softmetal {

enum { PAGE = 4096 };

// Set by the entry from the launch; each thread writes it before it reads it.
static __attribute__((shared)) sm_check_block* check_block;

// Calls `visit` with each region that the kernel may access, until it returns true.
template <class Visit>
__attribute__((no_sanitize("kernel-address"), always_inline)) inline bool each_region(
    const sm_check_block* block, Visit visit) {
  for (sm_u32 i = 0; i < block->region_count; ++i)
    if (visit(block->regions[i])) return true;
  for (sm_u32 i = 0; i < block->scratch_count; ++i) {
    const sm_u64 start = (sm_u64)softmetal_scratch + block->launch.scratch_offset[i];
    if (visit(sm_check_region{start, start + block->scratch_length[i], SCRATCH, i})) return true;
  }
  for (sm_u32 i = 0; i < softmetal_variable_count(); ++i) {
    const sm_u64 start = softmetal_variable_start(i);
    const sm_u32 kind = softmetal_variable_is_constant(i) ? CONSTANT : VARIABLE;
    if (visit(sm_check_region{start, start + softmetal_variable_size(i), kind, i})) return true;
  }
  return false;
}

// The region that an access most likely belongs to: the nearest, at a distance of at most its length
// and a page.
__attribute__((no_sanitize("kernel-address"))) inline sm_check_region nearest_region(
    const sm_check_block* block, sm_u64 address) {
  sm_check_region nearest = {0, 0, NOWHERE, 0};
  sm_u64 least = ~(sm_u64)0;
  each_region(block, [&](const sm_check_region& region) __attribute__((device)) {
    sm_u64 distance = address < region.start ? region.start - address : address - region.end + 1;
    if (address >= region.start && address < region.end) distance = 0;
    if (distance < least && distance <= region.end - region.start + PAGE)
      nearest = region, least = distance;
    return false;
  });
  return nearest;
}

SM_CHECKER inline void add_finding(const sm_check_block* block, sm_u64 address, sm_u64 size,
                                   sm_u32 place) {
  sm_check_report* report = block->report;
  const sm_u64 kernel = block->launch.kernel;
  const sm_u32 bit = ((place & SITE) + (sm_u32)(kernel >> 4) * 2654435761u) % SM_SEEN;
  if (__atomic_fetch_or(&report->seen[bit / 32], 1u << bit % 32, __ATOMIC_RELAXED) >> bit % 32 & 1)
    return;
  const sm_u32 number = __atomic_fetch_add(&report->count, 1u, __ATOMIC_RELAXED);
  if (number >= FINDINGS) return;
  const sm_check_region region = nearest_region(block, address);
  sm_finding* finding = &report->findings[number];
  finding->kernel = kernel;
  finding->type = OUT_OF_BOUNDS;
  finding->region = region.kind, finding->index = region.index;
  finding->offset = (__INT64_TYPE__)(address - region.start);
  finding->length = region.end - region.start;
  finding->size = (sm_u32)size, finding->write = (place & WRITE) != 0, finding->site = place & SITE;
  where w = {};
  find_thread(block->launch, w);
  finding->thread = w.index;
  for (int i = 0; i < 3; i++)
    finding->group[i] = w.group[i], finding->group_size[i] = w.group_size[i],
    finding->groups[i] = w.groups[i];
}

__attribute__((no_sanitize("kernel-address"))) inline bool is_allowed(const sm_check_block* block,
                                                                      sm_u64 address, sm_u64 size) {
  if (!block || __nvvm_isspacep_local((const void*)address)) return true;
  return each_region(block, [=](const sm_check_region& region) __attribute__((device)) {
    const sm_u64 length = region.end - region.start, offset = address - region.start;
    return offset <= length && size <= length - offset;
  });
}

// The address to use in the place of `address`.
extern "C" SM_CHECKER sm_u64 softmetal_check_access(sm_u64 address, sm_u64 size, sm_u32 place, sm_u64) {
  sm_check_block* block = check_block;
  if (is_allowed(block, address, size)) return address;
  add_finding(block, address, size, place);
  return (sm_u64)(place & WRITE ? block->sink : block->zeros);
}

// A place of -1 is the trampoline's own.
extern "C" SM_CHECKER void* softmetal_check_memmove(void* to, const void* from, sm_u64 size,
                                                    sm_u32 place) {
  sm_check_block* block = check_block;
  const bool checked = place != ~0u;
  const bool readable = !checked || is_allowed(block, (sm_u64)from, size);
  const bool writable = !checked || is_allowed(block, (sm_u64)to, size);
  if (!readable) add_finding(block, (sm_u64)from, size, place);
  if (!writable) add_finding(block, (sm_u64)to, size, place | WRITE);
  if (readable && writable) __builtin_memmove(to, from, size);
  return to;
}

extern "C" SM_CHECKER void* softmetal_check_memcpy(void* to, const void* from, sm_u64 size,
                                                   sm_u32 place) {
  return softmetal_check_memmove(to, from, size, place);
}

extern "C" SM_CHECKER void* softmetal_check_memset(void* to, sm_u32 value, sm_u64 size, sm_u32 place) {
  sm_check_block* block = check_block;
  if (place == ~0u || is_allowed(block, (sm_u64)to, size))
    return __builtin_memset(to, (int)value, size);
  add_finding(block, (sm_u64)to, size, place | WRITE);
  return to;
}

}  // namespace softmetal

#endif
