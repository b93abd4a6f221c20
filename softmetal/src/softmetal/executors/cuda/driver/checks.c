/* `bounds`: what kernels compiled for checking are told, and what they found. */
#include "driver.h"

static CUresult make_report(sm_ticket *ticket, CUstream stream) {
  CUresult code = cuMemAlloc(&ticket->report, sizeof(sm_check_report));
  if (code) ticket->report = 0;
  return code ? code : cuMemsetD8Async(ticket->report, 0, sizeof(sm_check_report), stream);
}

static void add_regions(sm_check_block *block, const sm_command_resources *resources) {
  const sm_u64 count = resources ? resources->count : 0;
  for (sm_u64 i = 0; i < count && block->region_count < SM_CHECK_REGIONS; i++) {
    const sm_command_region *given = &resources->regions[i];
    if (given->length)
      block->regions[block->region_count++] =
          (sm_check_region){given->address, given->address + given->length,
                            given->index < 0 ? RESIDENT : BUFFER, (sm_u32)given->index};
  }
}

void sm_gpu_prepare_check(sm_gpu_queue *queue, sm_ticket *ticket, const sm_u32 *lengths,
                          sm_u32 count, sm_launch *launch) {
  sm_check_block *block = calloc(1, sizeof *block);
  if (!block) {
    sm_gpu_fail(ticket, "no memory for the checks of a kernel");
    return;
  }
  /* The stream uses the queue's block in the order of launches. */
  if ((!ticket->report && sm_gpu_failed(ticket, make_report(ticket, queue->stream))) ||
      (!queue->check_block && sm_gpu_failed(ticket, cuMemAlloc(&queue->check_block, sizeof *block)))) {
    free(block);
    return;
  }
  launch->check = (void *)queue->check_block;
  block->report = (sm_check_report *)ticket->report;
  block->launch = *launch;
  block->scratch_count = count;
  memcpy(block->scratch_length, lengths, count * sizeof *lengths);
  add_regions(block, queue->resources);
  sm_gpu_failed(ticket, cuMemcpyAsync(queue->check_block, (sm_u64)block, sizeof *block,
                                      queue->stream));
  free(block); /* the driver has copied it */
}

void sm_ticket_read_report(sm_ticket *ticket) {
  sm_gpu *gpu = ticket->gpu;
  ticket->found = calloc(1, sizeof *ticket->found);
  if (!ticket->found ||
      cuMemcpyAsync((sm_u64)ticket->found, ticket->report, sizeof *ticket->found, gpu->copies) ||
      cuStreamSynchronize(gpu->copies))
    sm_gpu_fail(ticket, "the findings of the command buffer cannot be read");
  cuMemFree(ticket->report);
  ticket->report = 0;
}

/* Those of a list that is done. */
SM_EXPORT sm_u32 softmetal_gpu_findings(const sm_ticket *ticket, const sm_finding **list) {
  if (!ticket->found) return 0;
  *list = ticket->found->findings;
  return ticket->found->count < FINDINGS ? ticket->found->count : FINDINGS;
}
