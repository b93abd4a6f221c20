// What a kernel does while those before it still run, on devices that begin it early.
#pragma once
#include <metal_stdlib>
using namespace metal;

#if __has_include(<softmetal/prefetch>)
#include <softmetal/prefetch>

// Asks for bytes that threadgroups will read: one thread for all of them.
inline void prefetch(device const void* from, ulong bytes) { softmetal::prefetch(from, bytes); }
// Until here only `constant` arguments are read. All threads come here.
inline void await_previous() { softmetal::await_previous(); }
// Before it so is what no kernel of the same list writes (`metal.commands.is_settled`).
inline void reads_early() { softmetal::reads_early(); }
#else
inline void prefetch(device const void*, ulong) {}
inline void await_previous() {}
inline void reads_early() {}
#endif
