/* Indirect command buffers as CUDA graphs: one call launches them all.

   Slots that are executed a second time become a graph of one kernel after the other. Later executions
   change the nodes whose slots have changed; that does not affect executions in flight. A kernel that
   waits by itself for the one before it begins while that one ends. */
#include "driver.h"

enum { FEWEST = 4, /* kernels: a launch of a graph takes as long as some of them */ MOST_GRAPHS = 16 };

typedef struct sm_gpu_graph {
  struct sm_gpu_graph *next;
  const char *slots; /* where they are; others may be there later */
  size_t count;
  char *known; /* what they were */
  sm_u64 *kernels; /* their serial numbers */
  const sm_gpu_kernel *last;
  CUgraph graph; /* null until the second execution */
  CUgraphExec exec;
  CUgraphNode *nodes; /* by slot; null for empty ones */
  bool *waits;        /* by slot: whether its kernel waits by itself */
} sm_gpu_graph;

static void discard_graph(sm_gpu_queue *queue, sm_gpu_graph *graph) {
  if (!atomic_load(&queue->gpu->lost)) {
    if (graph->exec) cuGraphExecDestroy(graph->exec);
    if (graph->graph) cuGraphDestroy(graph->graph);
  }
  free(graph->nodes);
  free(graph->waits);
  free(graph->known);
  free(graph->kernels);
  free(graph);
}

void sm_gpu_free_graphs(sm_gpu_queue *queue) {
  for (sm_gpu_graph *graph; (graph = queue->graphs);) {
    queue->graphs = graph->next;
    discard_graph(queue, graph);
  }
}

/* Notes slots that are executed for the first time; the one that was not used for longest gives way. */
static void note_slots(sm_gpu_queue *queue, const char *slots, size_t count) {
  sm_gpu_graph *graph = calloc(1, sizeof *graph), **place = &queue->graphs;
  if (!graph) return;
  *graph = (sm_gpu_graph){.next = queue->graphs, .slots = slots, .count = count};
  queue->graphs = graph;
  for (size_t i = 0; *place && i < MOST_GRAPHS; i++) place = &(*place)->next;
  if (*place) {
    sm_gpu_graph *oldest = *place;
    *place = oldest->next;
    discard_graph(queue, oldest);
  }
}

static sm_gpu_graph *find_graph(sm_gpu_queue *queue, const char *slots, size_t count) {
  for (sm_gpu_graph **place = &queue->graphs; *place; place = &(*place)->next) {
    sm_gpu_graph *graph = *place;
    if (graph->slots != slots || graph->count != count) continue;
    *place = graph->next;
    graph->next = queue->graphs;
    return queue->graphs = graph;
  }
  return NULL;
}

/* Whether a launch depends on its slot alone: not of kernels that log or are checked, or whose grid,
   kernel or buffers are not in it. */
static bool is_plain(const sm_dispatch *dispatch) {
  const sm_gpu_kernel *kernel = (const sm_gpu_kernel *)dispatch->kernel;
  if (!dispatch->group[0]) return true;
  return kernel && !kernel->logs && !kernel->checked && !dispatch->indirect && dispatch->buffer_count;
}

bool sm_gpu_runs_graph(const sm_gpu_queue *queue, const char *slots, size_t count) {
  if (count < FEWEST) {
    for (size_t i = 0; i < count; i++)
      if (!is_plain((const sm_dispatch *)(slots + i * SM_SLOT_BYTES))) return false;
    return true;
  }
  for (const sm_gpu_graph *graph = queue->graphs; graph; graph = graph->next)
    if (graph->slots == slots && graph->count == count) return graph->exec;
  return false;
}

/* Adds a kernel after another. */
static CUresult add_node(CUgraph graph, CUgraphNode before, const sm_gpu_launch *made,
                         CUgraphNode *to) {
  const CUgraphEdgeData early = {CU_PORT_PROGRAMMATIC, 0, CU_DEPENDENCY_PROGRAMMATIC, {0}};
  if (!before || !made->kernel->waits || !cuGraphAddDependencies)
    return cuGraphAddKernelNode(to, graph, &before, before != NULL, &made->node);
  CUresult code = cuGraphAddKernelNode(to, graph, NULL, 0, &made->node);
  return code ? code : cuGraphAddDependencies(graph, &before, to, &early, 1);
}

static bool build_graph(sm_gpu_queue *queue, sm_ticket *ticket, sm_gpu_graph *graph) {
  graph->known = malloc(graph->count * SM_SLOT_BYTES);
  graph->kernels = calloc(graph->count, sizeof *graph->kernels);
  graph->nodes = calloc(graph->count, sizeof *graph->nodes);
  graph->waits = calloc(graph->count, sizeof *graph->waits);
  if (!graph->known || !graph->kernels || !graph->nodes || !graph->waits ||
      cuGraphCreate(&graph->graph, 0))
    return false;
  memcpy(graph->known, graph->slots, graph->count * SM_SLOT_BYTES);
  CUgraphNode before = NULL;
  for (size_t i = 0; i < graph->count; i++) {
    const sm_dispatch *dispatch = (const sm_dispatch *)(graph->slots + i * SM_SLOT_BYTES);
    sm_gpu_launch made;
    if (!is_plain(dispatch)) return false;
    if (!sm_gpu_prepare(queue, ticket, dispatch, NULL, &made)) continue;
    if (add_node(graph->graph, before, &made, &graph->nodes[i])) return false;
    before = graph->nodes[i];
    graph->waits[i] = made.kernel->waits;
    graph->kernels[i] = made.kernel->serial;
    graph->last = made.kernel;
  }
  return before && !cuGraphInstantiate(&graph->exec, graph->graph, 0);
}

/* Brings nodes up to date; false if an empty slot is now in use or the reverse, or a kernel that waits by
   itself is now another or the reverse. */
static bool update_graph(sm_gpu_queue *queue, sm_ticket *ticket, sm_gpu_graph *graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const char *slot = graph->slots + i * SM_SLOT_BYTES;
    char *known = graph->known + i * SM_SLOT_BYTES;
    const sm_dispatch *dispatch = (const sm_dispatch *)slot;
    const sm_gpu_kernel *kernel = (const sm_gpu_kernel *)dispatch->kernel;
    bool same_kernel = !graph->nodes[i] || (kernel && kernel->serial == graph->kernels[i]);
    if (same_kernel && !memcmp(slot, known, SM_SLOT_BYTES)) continue;
    sm_gpu_launch made;
    if (!is_plain(dispatch)) return false;
    bool empty = !sm_gpu_prepare(queue, ticket, dispatch, NULL, &made);
    if (empty != !graph->nodes[i]) return false;
    if (!empty && made.kernel->waits != graph->waits[i]) return false;
    if (!empty && cuGraphExecKernelNodeSetParams(graph->exec, graph->nodes[i], &made.node))
      return false;
    memcpy(known, slot, SM_SLOT_BYTES);
    if (empty) continue;
    graph->kernels[i] = made.kernel->serial;
    graph->last = made.kernel; /* an error names one of them */
  }
  return true;
}

/* Forgets a graph that did not serve: its slots are noted anew. */
static void forget_first(sm_gpu_queue *queue) {
  sm_gpu_graph *graph = queue->graphs;
  queue->graphs = graph->next;
  discard_graph(queue, graph);
}

bool sm_gpu_run_graph(sm_gpu_queue *queue, sm_ticket *ticket, const char *slots, size_t count) {
  if (count < FEWEST) return false;
  sm_gpu_graph *graph = find_graph(queue, slots, count);
  if (!graph) {
    note_slots(queue, slots, count);
    return false;
  }
  bool ready = graph->exec ? update_graph(queue, ticket, graph) : build_graph(queue, ticket, graph);
  if (sm_gpu_has_failed(ticket)) return true;
  if (!ready ||
      cuStreamWriteValue64(queue->stream, (CUdeviceptr)&queue->control->current, ticket->number,
                           CU_STREAM_WRITE_DEFAULT) ||
      cuGraphLaunch(graph->exec, queue->stream)) {
    forget_first(queue);
    return false;
  }
  ticket->last = graph->last;
  return true;
}
