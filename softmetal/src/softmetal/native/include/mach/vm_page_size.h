#pragma once

#include <unistd.h>

#define vm_page_size ((size_t)sysconf(_SC_PAGESIZE))
