#include "prores.h"
