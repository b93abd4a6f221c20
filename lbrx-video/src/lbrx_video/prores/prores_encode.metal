#include "prores_encode.h"
