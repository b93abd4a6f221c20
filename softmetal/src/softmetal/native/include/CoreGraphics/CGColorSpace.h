/* Color spaces are not implemented: metal-cpp names the type. */
#pragma once

typedef struct CGColorSpace *CGColorSpaceRef;
