// include/target/check.h compiled for the processor: one thread of a threadgroup, and two variables.
static unsigned tid[3], ctaid[3];
static const void *local_start;
#define __nvvm_isspacep_local(p) ((const char *)(p) - (const char *)local_start < 64ull)
#define __nvvm_read_ptx_sreg_tid_x() tid[0]
#define __nvvm_read_ptx_sreg_tid_y() tid[1]
#define __nvvm_read_ptx_sreg_tid_z() tid[2]
#define __nvvm_read_ptx_sreg_ctaid_x() ctaid[0]
#define __nvvm_read_ptx_sreg_ctaid_y() ctaid[1]
#define __nvvm_read_ptx_sreg_ctaid_z() ctaid[2]
#define SOFTMETAL_TARGET_H  // what needs a GPU
#include <softmetal/config.h>
#include <target/launch.h>
typedef __UINT8_TYPE__ sm_u8;
typedef __UINT32_TYPE__ sm_u32;
typedef __UINT64_TYPE__ sm_u64;
namespace softmetal {
struct where {
  sm_u32 grid[3], groups[3], full_group[3], group[3], group_size[3], local[3], global[3], index;
};
inline sm_u32 volume(const sm_u32 (&size)[3]) { return size[0] * size[1] * size[2]; }
}  // namespace softmetal
#include <target/check.h>

#define EXPORT extern "C" __attribute__((visibility("default")))
char softmetal_scratch[256];
static char variables[2][64];
EXPORT sm_u32 softmetal_variable_count() { return 2; }
EXPORT sm_u64 softmetal_variable_start(sm_u32 i) { return (sm_u64)variables[i]; }
EXPORT sm_u64 softmetal_variable_size(sm_u32 i) { return i ? 16 : 48; }
EXPORT bool softmetal_variable_is_constant(sm_u32 i) { return i == 1; }

static softmetal::sm_check_report report;
static softmetal::sm_check_block block;

// One buffer of `size` bytes at index 3, a threadgroup argument of 40 bytes, a grid of 10 threads in
// threadgroups of 4: the last is ragged.
EXPORT void set_up(char *buffer, sm_u64 size, const void *local) {
  report = {};
  block.report = &report;
  block.launch.kernel = 77;
  const sm_u32 grid[3] = {10, 1, 1}, group[3] = {4, 1, 1}, groups[3] = {3, 1, 1};
  for (int i = 0; i < 3; i++)
    block.launch.grid[i] = grid[i], block.launch.group[i] = group[i], block.launch.groups[i] = groups[i];
  block.launch.flat_group = 1;
  tid[0] = 1, ctaid[0] = 2;
  block.scratch_count = 1, block.scratch_length[0] = 40, block.launch.scratch_offset[0] = 128;
  block.region_count = 1;
  block.regions[0] = {(sm_u64)buffer, (sm_u64)buffer + size, softmetal::BUFFER, 3};
  local_start = local;
  softmetal::check_block = &block;
}
EXPORT sm_u64 address_of(int what) {
  char *const places[] = {softmetal_scratch + 128, variables[0], variables[1], (char *)block.zeros,
                          (char *)block.sink};
  return (sm_u64)places[what];
}
EXPORT sm_u32 findings(void **list) { return *list = report.findings, report.count; }
