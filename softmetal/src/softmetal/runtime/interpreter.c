/* The commands of a list. Streams run the lists: see streams.c. */
#include <stdarg.h>
#include <stdio.h>

#include "check.h"

__attribute__((format(printf, 2, 3))) void sm_fail(sm_submission *submission, const char *format,
                                                   ...) {
  if (submission->error) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(submission->error_text, sizeof submission->error_text, format, arguments);
  va_end(arguments);
  submission->error = submission->error_text;
}

static void run_wait(sm_worker *worker, sm_submission *submission, const sm_command_event *wait) {
  atomic_store(&worker->activity, SM_IDLE);
  while (!sm_event_wait((sm_event *)wait->event, wait->value, ~(sm_u64)0)) {
  }
  sm_check_wait(submission, sm_event_signals((sm_event *)wait->event), wait->value);
  atomic_store(&worker->activity, SM_BUSY);
}

static void run_execute(sm_worker *worker, sm_submission *submission,
                        const sm_command_execute *execute) {
  sm_u64 start = execute->start, count = execute->count;
  if (execute->range) {
    sm_u32 range[2];
    if (!sm_read_buffer(worker, submission, range, execute->range, sizeof range)) return;
    start = range[0];
    count = range[1];
  }
  if (start + count > execute->slot_count) {
    sm_fail(submission, "commands %llu to %llu of an indirect command buffer that holds %u",
            (unsigned long long)start, (unsigned long long)(start + count), execute->slot_count);
    return;
  }
  sm_within(execute, &start, &count);
  for (sm_u64 i = start; i < start + count && !submission->error; i++) {
    const char *slot = (const char *)execute->slots + i * SM_SLOT_BYTES;
    sm_run_dispatch(worker, submission, (const sm_dispatch *)slot, &execute->inherited);
    sm_checkpoint(worker);
  }
}

static void run_command(sm_worker *worker, sm_submission *submission, const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH:
      sm_run_dispatch(worker, submission, &((const sm_command_dispatch *)command)->dispatch, NULL);
      break;
    case SM_OP_COPY: {
      const sm_command_copy *copy = (const sm_command_copy *)command;
      sm_check_copy(submission, copy->source, copy->destination, copy->size);
      sm_run_copy(worker, submission, copy);
      break;
    }
    case SM_OP_FILL: {
      const sm_command_fill *fill = (const sm_command_fill *)command;
      sm_check_copy(submission, 0, fill->destination, fill->size);
      sm_run_fill(worker, submission, fill);
      break;
    }
    case SM_OP_SIGNAL: {
      const sm_command_event *signal = (const sm_command_event *)command;
      sm_check_signal(submission, sm_event_signals((sm_event *)signal->event), signal->value);
      sm_event_signal((sm_event *)signal->event, signal->value);
      break;
    }
    case SM_OP_WAIT:
      run_wait(worker, submission, (const sm_command_event *)command);
      break;
    case SM_OP_TIMESTAMP:
      *(sm_u64 *)((const sm_command_timestamp *)command)->address = sm_now();
      break;
    case SM_OP_GEMM:
      sm_run_gemm(worker, submission, (const sm_command_gemm *)command);
      break;
    case SM_OP_EXECUTE:
      run_execute(worker, submission, (const sm_command_execute *)command);
      break;
    case SM_OP_RESOURCES: {
      const sm_command_resources *resources = (const sm_command_resources *)command;
      submission->regions = resources->regions;
      submission->region_count = (sm_u32)resources->count;
      break;
    }
    case SM_OP_USE:
      break;
    case SM_OP_ORDER: {
      const sm_command_order *order = (const sm_command_order *)command;
      sm_check_order(submission, (sm_u32)order->kind, order->value);
      break;
    }
    default:
      sm_fail(submission, "unknown command %u", command->opcode);
  }
}

/* Gives the device what the program changed, and later the host what the list changed. */
static void apply_patches(sm_submission *submission) {
  sm_patches *patches = &submission->uses.patches;
  for (size_t i = 0; i < patches->count; i++) {
    sm_patch_apply(&patches->items[i], (char *)patches->items[i].device);
    sm_mirror_patched(&patches->items[i]);
  }
}

static void absorb_changes(sm_submission *submission) {
  for (size_t i = 0; i < submission->uses.count; i++) {
    const sm_used *used = &submission->uses.items[i];
    if (used->written && sm_mirror_absorbs(used->mirror))
      sm_mirror_absorb(used->mirror, (char *)used->mirror->device);
  }
}

/* After an error only signals are executed, so that other queues do not wait forever. */
void sm_run_list(sm_worker *worker, sm_submission *submission) {
  const char *at = submission->list, *end = at + submission->size;
  apply_patches(submission);
  while (at < end) {
    const sm_command *command = (const sm_command *)at;
    sm_checkpoint(worker);
    if (command->opcode == SM_OP_SIGNAL) absorb_changes(submission);
    if (!submission->error || command->opcode == SM_OP_SIGNAL)
      run_command(worker, submission, command);
    at += command->size;
  }
  absorb_changes(submission);
  sm_uses_end(&submission->uses);
}
