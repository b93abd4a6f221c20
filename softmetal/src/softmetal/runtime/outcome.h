/* What Python reads of a list that has run, in one call; executors/outcome.py has the same fields. */
#ifndef SOFTMETAL_OUTCOME_H
#define SOFTMETAL_OUTCOME_H

#include <string.h>

#include "words.h"

typedef struct sm_outcome {
  sm_u64 start, end;         /* nanoseconds */
  sm_u64 error, error_bytes; /* an address and a length; these texts live as long as the ticket */
  sm_u64 log, log_bytes, log_dropped;
} sm_outcome;

static inline void sm_outcome_error(sm_outcome *outcome, const char *text) {
  outcome->error = (sm_u64)text;
  outcome->error_bytes = text ? strlen(text) : 0;
}

#endif
