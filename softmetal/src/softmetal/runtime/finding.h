/* What a checking mode reports; mirrored by executors/findings.py. */
#ifndef SOFTMETAL_FINDING_H
#define SOFTMETAL_FINDING_H

#ifdef __cplusplus
namespace softmetal { /* a kernel's own names are global */
#endif

enum finding_type { OUT_OF_BOUNDS, RACE, UNINITIALISED, DIVERGENT };
enum region_kind { BUFFER, RESIDENT, VARIABLE, SCRATCH, CONSTANT, NOWHERE };
/* A place: the number of a site, and what happens there. */
enum { WRITE = 1 << 16, ATOMIC = 1 << 17, MODIFY = 1 << 18, SITE = 0x7ff };
enum { FINDINGS = 16 /* of a command list */ };

typedef struct sm_finding {
  __UINT64_TYPE__ kernel, other_kernel;
  __INT64_TYPE__ offset;      /* of the access in its region, bytes */
  __UINT64_TYPE__ length;     /* of the region */
  __UINT32_TYPE__ type;       /* enum finding_type */
  __UINT32_TYPE__ region, index; /* enum region_kind; buffer index or variable */
  __UINT32_TYPE__ size, write, site;
  __UINT32_TYPE__ thread, group[3], group_size[3], groups[3];
  __UINT32_TYPE__ other_thread, other_group, other_write, other_site;
  __UINT32_TYPE__ other_group_size[3], other_groups[3];
} sm_finding;

#ifdef __cplusplus
}
#endif

#endif
