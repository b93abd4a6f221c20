/* Messages of kernels: records of the GPU become entries of a log. */
#include "driver.h"

static const char *skip(const char *text) { return text + strlen(text) + 1; }

/* One record as an entry of the log: uint32 size, uint32 level, subsystem, category, text. */
static size_t put_message(char *to, const sm_log_record *record) {
  const sm_u64 *values = (const sm_u64 *)(record + 1);
  const sm_u8 *kinds = (const sm_u8 *)(values + record->count);
  const char *subsystem = (const char *)(kinds + record->count), *category = skip(subsystem);
  const char *format = skip(category), *string = skip(format);
  sm_u64 bits[record->count + 1];
  for (sm_u32 i = 0; i < record->count; i++) {
    bits[i] = kinds[i] == 's' ? (sm_u64)string : values[i];
    if (kinds[i] == 's') string = skip(string);
  }
  char text[SM_TEXT_BYTES];
  sm_format(text, format, kinds, bits, record->count);
  int length = sprintf(to + 8, "%s%c%s%c%s", subsystem, 0, category, 0, text) + 1;
  sm_u32 head[2] = {((sm_u32)length + 15) / 8 * 8, record->level};
  memcpy(to, head, sizeof head);
  return head[0];
}

/* A message may be longer than its record: formats expand, at most to SM_TEXT_BYTES. */
void sm_ticket_read_log(sm_ticket *ticket) {
  const sm_log_block *log = ticket->log;
  const sm_u32 end = log->used < log->size ? log->used : log->size;
  sm_u32 records = 0;
  const sm_log_record *record;
  for (sm_u32 at = 0; at < end; at += record->bytes, records++) {
    record = (const sm_log_record *)(log->data + at);
    if (!record->bytes) break;
  }
  ticket->messages = malloc(end + records * (SM_TEXT_BYTES + 16u) + 8);
  if (!ticket->messages) return;
  for (sm_u32 at = 0; records--; at += record->bytes) {
    record = (const sm_log_record *)(log->data + at);
    ticket->message_bytes += put_message(ticket->messages + ticket->message_bytes, record);
  }
}
