/* The commands of a list, put into a stream. */
#include "driver.h"

enum {
  SCRATCH_ALIGNMENT = 128,
  MAX_LAYERS = 64,  /* of a block */
  MAX_ROWS = 65535, /* of a grid, and layers */
  PROMPT_CALLS = 16,
  PROMPT_LISTS = 32,     /* in flight: a stream that holds a thousand launches takes no more */
  STAGED_BYTES = 65536,  /* the driver copies so many of pageable memory before it returns */
};

/* Brings words that the GPU computes to the host. */
static const sm_u32 *read_words(sm_gpu_queue *queue, sm_ticket *ticket, sm_u64 address, int count) {
  const CUdeviceptr counts = (CUdeviceptr)queue->counts;
  const size_t size = 4u * (unsigned)count;
  if (sm_gpu_failed(ticket, cuMemcpyAsync(counts, address, size, queue->stream)) ||
      !sm_gpu_await(queue, ticket))
    return NULL;
  return queue->counts;
}

/* Threadgroup arguments one after the other; the bytes they take together. */
static sm_u32 lay_out(sm_launch *launch, const sm_u32 *lengths, sm_u32 count) {
  sm_u32 used = 0;
  for (sm_u32 i = 0; i < count; i++) {
    launch->scratch_offset[i] = used;
    used += (lengths[i] + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
  }
  return used;
}

static sm_log_block *log_of(sm_ticket *ticket) {
  if (!ticket->log && (ticket->log = softmetal_gpu_allocate_host(ticket->gpu, LOG_BYTES)))
    ticket->log->size = LOG_BYTES - sizeof(sm_log_block);
  return ticket->log;
}

/* The numbers of threads and blocks of a launch. What the GPU cannot do, or null. */
static const char *shape(sm_launch *launch, CUDA_KERNEL_NODE_PARAMS *to) {
  sm_u64 groups = 1;
  bool ragged = launch->group[2] > MAX_LAYERS;
  for (int i = 0; i < 3; i++) {
    launch->groups[i] = (launch->grid[i] + launch->group[i] - 1) / launch->group[i];
    ragged |= launch->grid[i] % launch->group[i] != 0;
    groups *= launch->groups[i];
    to->grid[i] = launch->groups[i];
    to->block[i] = launch->group[i];
  }
  launch->flat_group = ragged;
  launch->flat_grid = launch->groups[1] > MAX_ROWS || launch->groups[2] > MAX_ROWS;
  if (launch->flat_grid && groups > 0x7fffffff)
    return "more than 2^31 - 1 threadgroups in rows and layers, which a GPU does not take";
  if (launch->flat_grid) to->grid[0] = (unsigned)groups, to->grid[1] = to->grid[2] = 1;
  if (ragged) {
    to->block[0] = launch->group[0] * launch->group[1] * launch->group[2];
    to->block[1] = to->block[2] = 1;
  }
  return NULL;
}

bool sm_gpu_prepare(sm_gpu_queue *queue, sm_ticket *ticket, const sm_dispatch *dispatch,
                    const sm_dispatch *inherited, sm_gpu_launch *to) {
  sm_launch *launch = &to->launch;
  memset(to, 0, sizeof *to);
  launch->control = queue->control;
  to->kernel = (const sm_gpu_kernel *)dispatch->kernel;
  if (!to->kernel && inherited) to->kernel = (const sm_gpu_kernel *)inherited->kernel;
  if (!dispatch->group[0]) return false; /* an empty slot */
  launch->kernel = (sm_u64)to->kernel;
  const sm_dispatch *bound = dispatch->buffer_count || !inherited ? dispatch : inherited;
  memcpy(launch->buffers, bound->buffers, bound->buffer_count * sizeof(sm_u64));
  memcpy(launch->group, dispatch->group, sizeof launch->group);
  memcpy(launch->grid, dispatch->grid, sizeof launch->grid);
  if (dispatch->indirect) {
    const sm_u32 *counts = read_words(queue, ticket, dispatch->indirect, 3);
    if (!counts) return false;
    for (int i = 0; i < 3; i++) launch->grid[i] = counts[i] * launch->group[i];
  }
  if (!launch->grid[0] || !launch->grid[1] || !launch->grid[2]) return false;
  const sm_u32 *lengths = (const sm_u32 *)(dispatch->buffers + dispatch->buffer_count);
  if (to->kernel->logs) launch->log = log_of(ticket);
  to->node.function = to->kernel->function;
  to->node.shared = lay_out(launch, lengths, dispatch->threadgroup_count);
  to->arguments[0] = launch;
  to->node.arguments = to->arguments;
  const char *error = shape(launch, &to->node);
  if (error) sm_gpu_fail(ticket, "kernel %s: %s", to->kernel->name, error);
  return !error;
}

/* Launches a kernel; one that waits by itself begins while the one before it ends, unless that one may
   compute what it reads before it waits. */
static CUresult launch(const sm_gpu_launch *made, CUstream stream) {
  const CUDA_KERNEL_NODE_PARAMS *node = &made->node;
  if (!made->kernel->waits || made->kernel->reads_early || !cuLaunchKernelEx)
    return cuLaunchKernel(node->function, node->grid[0], node->grid[1], node->grid[2],
                          node->block[0], node->block[1], node->block[2], node->shared, stream,
                          node->arguments, NULL);
  CUlaunchAttribute early = {CU_PROGRAMMATIC_STREAM_SERIALIZATION, 0, {1}};
  CUlaunchConfig config = {{node->grid[0], node->grid[1], node->grid[2]},
                           {node->block[0], node->block[1], node->block[2]},
                           node->shared, stream, &early, 1};
  return cuLaunchKernelEx(&config, node->function, node->arguments, NULL);
}

static void run_dispatch(sm_gpu_queue *queue, sm_ticket *ticket, const sm_dispatch *dispatch,
                         const sm_dispatch *inherited) {
  sm_gpu_launch made;
  if (!sm_gpu_prepare(queue, ticket, dispatch, inherited, &made)) return;
  made.launch.list = ticket->number;
  if (made.kernel->checked) {
    const sm_u32 *lengths = (const sm_u32 *)(dispatch->buffers + dispatch->buffer_count);
    sm_gpu_prepare_check(queue, ticket, lengths, dispatch->threadgroup_count, &made.launch);
    if (sm_gpu_has_failed(ticket)) return;
  }
  const sm_u32 *group = made.launch.group;
  CUresult code = launch(&made, queue->stream);
  char text[ERROR_BYTES];
  if (sm_gpu_is_fatal(code)) ticket->fatal = code;
  else if (code)
    sm_gpu_fail(ticket, "kernel %s, threadgroups of %ux%ux%u, %u bytes of threadgroup memory: %s",
                made.kernel->name, group[0], group[1], group[2], made.node.shared,
                sm_gpu_describe(code, text));
  ticket->last = made.kernel;
}

static void run_execute(sm_gpu_queue *queue, sm_ticket *ticket, const sm_command_execute *execute) {
  sm_u64 start = execute->start, count = execute->count;
  if (execute->range) {
    const sm_u32 *range = read_words(queue, ticket, execute->range, 2);
    if (!range) return;
    start = range[0], count = range[1];
  }
  if (start + count > execute->slot_count) {
    sm_gpu_fail(ticket, "commands %llu to %llu of an indirect command buffer that holds %u",
                (unsigned long long)start, (unsigned long long)(start + count), execute->slot_count);
    return;
  }
  sm_within(execute, &start, &count);
  const char *slots = (const char *)execute->slots + start * SM_SLOT_BYTES;
  if (sm_gpu_run_graph(queue, ticket, slots, (size_t)count)) return;
  for (sm_u64 i = 0; i < count && !sm_gpu_has_failed(ticket); i++)
    run_dispatch(queue, ticket, (const sm_dispatch *)(slots + i * SM_SLOT_BYTES),
                 &execute->inherited);
}

/* Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)'. */
static void run_gemm(sm_gpu_queue *queue, sm_ticket *ticket, const sm_command_gemm *g) {
  static const int types[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
  static const sm_u64 sizes[] = {4, 2, 2};
  if (!cublasCreate || (!queue->blas && (cublasCreate(&queue->blas) ||
                                         cublasSetStream(queue->blas, queue->stream)))) {
    sm_gpu_fail(ticket, "a matrix product needs cuBLAS: pip install nvidia-cublas");
    return;
  }
  const float alpha = (float)g->alpha, beta = (float)g->beta;
  int code = cublasGemmStridedBatchedEx(
      queue->blas, (int)g->transpose_b, (int)g->transpose_a, (int)g->n, (int)g->m, (int)g->k,
      &alpha, (const void *)g->b, types[g->type_b], (int)g->ldb,
      g->stride_b / (long long)sizes[g->type_b], (const void *)g->a, types[g->type_a], (int)g->lda,
      g->stride_a / (long long)sizes[g->type_a], &beta, (void *)g->c, types[g->type_c],
      (int)g->ldc, g->stride_c / (long long)sizes[g->type_c], (int)g->batch, CUBLAS_COMPUTE_32F,
      -1);
  if (code) sm_gpu_fail(ticket, "cuBLAS refuses the product with status %d", code);
}

/* Memory of the device for a list's patches: the stream uses it in the order of lists. */
static CUresult room_for_patches(sm_gpu_queue *queue, size_t size) {
  CUresult code = 0;
  if (size <= queue->patches_size) return 0;
  if ((code = cuStreamSynchronize(queue->stream)) ||
      (queue->patches && (code = cuMemFree(queue->patches))))
    return code;
  queue->patches = queue->patches_size = 0;
  if (!(code = cuMemAlloc(&queue->patches, 2 * size))) queue->patches_size = 2 * size;
  return code;
}

static void apply_patches(sm_gpu_queue *queue, sm_ticket *ticket) {
  const sm_patches *patches = &ticket->uses.patches;
  const size_t size = patches->count * sizeof(sm_patch);
  if (!patches->count || sm_gpu_failed(ticket, room_for_patches(queue, size))) return;
  for (size_t i = 0; i < patches->count; i++) sm_mirror_pend(&patches->items[i]);
  const sm_u64 to = queue->patches, from = (sm_u64)patches->items;
  if (!sm_gpu_failed(ticket, cuMemcpyAsync(to, from, size, queue->stream)))
    sm_gpu_failed(ticket, sm_gpu_patch(queue->gpu, to, patches->count, queue->stream));
}

static bool writes_mirrors(const sm_uses *uses) {
  for (size_t i = 0; i < uses->count; i++)
    if (uses->items[i].written) return true;
  return false;
}

static void run_signal(sm_gpu_queue *queue, sm_ticket *ticket, const sm_command_event *signal) {
  sm_gpu_event *event = (sm_gpu_event *)signal->event;
  if (writes_mirrors(&ticket->uses) && !sm_gpu_has_failed(ticket)) {
    /* The host may look as soon as it sees the signal. */
    if (sm_gpu_await(queue, ticket)) {
      sm_lock(&queue->gpu->sweep);
      sm_gpu_finish_launched(queue->gpu);
      sm_ticket_note_patches(ticket);
      const char *error = sm_ticket_absorb(ticket);
      sm_unlock(&queue->gpu->sweep);
      if (error) sm_gpu_fail(ticket, "%s", error);
    }
  }
  if (atomic_load(&event->promised) < signal->value) atomic_store(&event->promised, signal->value);
  if (atomic_load(&queue->gpu->lost) ||
      cuStreamWriteValue64(queue->stream, (CUdeviceptr)event->value, signal->value,
                           CU_STREAM_WRITE_DEFAULT))
    atomic_store(event->value, signal->value); /* the context is lost: end all waits */
  atomic_fetch_add(&event->sequence, 1);
  sm_futex_wake(&event->sequence, INT_MAX);
}

static void run_wait(sm_gpu_queue *queue, sm_ticket *ticket, const sm_command_event *wait) {
  sm_gpu_event *event = (sm_gpu_event *)wait->event;
  for (;;) {
    unsigned sequence = atomic_load(&event->sequence);
    if (atomic_load(event->value) >= wait->value) return;
    if (atomic_load(&event->promised) >= wait->value) break;
    if (atomic_load(&queue->gpu->lost)) return;
    sm_futex_wait(&event->sequence, sequence, ~(sm_u64)0);
  }
  sm_gpu_failed(ticket, cuStreamWaitValue64(queue->stream, (CUdeviceptr)event->value, wait->value,
                                            CU_STREAM_WAIT_GREATER_EQUAL));
  /* The list's time begins when it need not wait any more. */
  sm_gpu_failed(ticket, cuEventRecord(ticket->start, queue->stream));
}

static void run_command(sm_gpu_queue *queue, sm_ticket *ticket, const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH:
      run_dispatch(queue, ticket, &((const sm_command_dispatch *)command)->dispatch, NULL);
      break;
    case SM_OP_COPY: {
      const sm_command_copy *copy = (const sm_command_copy *)command;
      if (copy->size)
        sm_gpu_failed(ticket, cuMemcpyAsync(copy->destination, copy->source, copy->size,
                                            queue->stream));
      break;
    }
    case SM_OP_FILL: {
      const sm_command_fill *fill = (const sm_command_fill *)command;
      if (fill->size)
        sm_gpu_failed(ticket, cuMemsetD8Async(fill->destination, (unsigned char)fill->value,
                                              fill->size, queue->stream));
      break;
    }
    case SM_OP_SIGNAL:
      run_signal(queue, ticket, (const sm_command_event *)command);
      break;
    case SM_OP_WAIT:
      run_wait(queue, ticket, (const sm_command_event *)command);
      break;
    case SM_OP_GEMM:
      run_gemm(queue, ticket, (const sm_command_gemm *)command);
      break;
    case SM_OP_TIMESTAMP: {
      sm_u64 address = ((const sm_command_timestamp *)command)->address;
      sm_gpu_failed(ticket, sm_gpu_stamp(queue->gpu, address, queue->stream));
      break;
    }
    case SM_OP_EXECUTE:
      run_execute(queue, ticket, (const sm_command_execute *)command);
      break;
    case SM_OP_RESOURCES:
      queue->resources = (const sm_command_resources *)command;
      break;
    case SM_OP_ORDER:
    case SM_OP_USE:
      break;
    default:
      sm_gpu_fail(ticket, "command %u is not known to the CUDA executor", command->opcode);
  }
}

static bool is_prompt(const sm_gpu_queue *queue, const sm_command *command) {
  switch (command->opcode) {
    case SM_OP_DISPATCH: {
      const sm_dispatch *dispatch = &((const sm_command_dispatch *)command)->dispatch;
      const sm_gpu_kernel *kernel = (const sm_gpu_kernel *)dispatch->kernel;
      return kernel && !kernel->logs && !kernel->checked && !dispatch->indirect;
    }
    case SM_OP_EXECUTE: {
      const sm_command_execute *execute = (const sm_command_execute *)command;
      const char *slots = (const char *)execute->slots + execute->start * SM_SLOT_BYTES;
      return !execute->range && execute->start + (sm_u64)execute->count <= execute->slot_count &&
             sm_gpu_runs_graph(queue, slots, execute->count);
    }
    case SM_OP_GEMM:
      return queue->blas; /* making it takes a while */
    case SM_OP_COPY:      /* the host's side of a copy is pinned */
    case SM_OP_FILL:
    case SM_OP_TIMESTAMP:
    case SM_OP_ORDER:
    case SM_OP_USE:
      return true;
    default:
      return false;
  }
}

bool sm_gpu_is_prompt(const sm_gpu_queue *queue, const sm_ticket *ticket) {
  unsigned calls = 0;
  if (ticket->uses.patches.count * sizeof(sm_patch) > STAGED_BYTES ||
      atomic_load(&queue->unfinished) > PROMPT_LISTS)
    return false;
  for (const char *at = ticket->list; at < ticket->list + ticket->size;) {
    const sm_command *command = (const sm_command *)at;
    if (!is_prompt(queue, command)) return false;
    if (command->opcode != SM_OP_USE && ++calls > PROMPT_CALLS) return false;
    at += command->size;
  }
  return true;
}

/* After an error only signals are executed, so that other queues do not wait forever. */
void sm_gpu_run_list(sm_gpu_queue *queue, sm_ticket *ticket) {
  if (!sm_gpu_enter(queue->gpu)) {
    sm_gpu_fail(ticket, "%s", queue->gpu->why_lost);
  } else {
    sm_gpu_failed(ticket, sm_ticket_take_events(ticket));
    apply_patches(queue, ticket);
    sm_gpu_failed(ticket, cuEventRecord(ticket->start, queue->stream));
  }
  queue->resources = NULL;
  for (const char *at = ticket->list; at < ticket->list + ticket->size;) {
    const sm_command *command = (const sm_command *)at;
    if (!sm_gpu_has_failed(ticket) || command->opcode == SM_OP_SIGNAL) run_command(queue, ticket, command);
    at += command->size;
  }
  if (ticket->end) sm_gpu_failed(ticket, cuEventRecord(ticket->end, queue->stream));
}
