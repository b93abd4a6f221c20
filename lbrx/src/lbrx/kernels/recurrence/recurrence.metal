#include "recurrence.h"
