// os_log on the GPU: a message with its texts is written to a block that the host reads.
#ifndef SOFTMETAL_TARGET_LOG_H
#define SOFTMETAL_TARGET_LOG_H

#include <target/target.h>


namespace softmetal {

// Set by the entry from the launch; each thread writes it before it reads it.
static __attribute__((shared)) sm_log_block* log_block;

SM_INLINE sm_u32 text_bytes(const char* text) {
  sm_u32 n = 0;
  while (text[n]) ++n;
  return n + 1;
}
SM_INLINE sm_u8* put_text(sm_u8* at, const char* text) {
  while ((*at++ = (sm_u8)*text++)) {
  }
  return at;
}

__attribute__((noinline)) inline void write_log(const char* subsystem, const char* category,
                                                sm_u32 level, const char* format,
                                                const sm_u8* kinds, const sm_u64* values,
                                                sm_u32 count) {
  sm_log_block* block = log_block;
  if (!block) return;
  sm_u32 bytes = sizeof(sm_log_record) + count * 9;
  bytes += text_bytes(subsystem) + text_bytes(category) + text_bytes(format);
  for (sm_u32 i = 0; i < count; ++i)
    if (kinds[i] == 's') bytes += text_bytes((const char*)values[i]);
  bytes = (bytes + 7) / 8 * 8;
  const sm_u32 start = __atomic_fetch_add(&block->used, bytes, __ATOMIC_RELAXED);
  if (start > block->size || bytes > block->size - start) {
    __atomic_fetch_add(&block->dropped, 1u, __ATOMIC_RELAXED);
    return;
  }
  sm_u8* at = block->data + start;
  auto* record = (sm_log_record*)at;
  record->level = level, record->count = count;
  at += sizeof(sm_log_record);
  for (sm_u32 i = 0; i < count; ++i, at += 8) *(sm_u64*)at = values[i];
  for (sm_u32 i = 0; i < count; ++i) *at++ = kinds[i];
  at = put_text(put_text(put_text(at, subsystem), category), format);
  for (sm_u32 i = 0; i < count; ++i)
    if (kinds[i] == 's') at = put_text(at, (const char*)values[i]);
  record->bytes = bytes;
}

}  // namespace softmetal

#endif
