/* Surfaces are not implemented: metal-cpp names the type. */
#pragma once

typedef struct __IOSurface *IOSurfaceRef;
