#include "prores_serial.h"
