/* Many ways to bind and dispatch, in random order, beside what each must compute. */
#import <Metal/Metal.h>

#include <pthread.h>

#include "expect.h"

enum { ROUNDS = 4, DISPATCHES = 100, FLOATS = 4096 };

static NSString *const source =
    @"#include <metal_stdlib>\n"
     "using namespace metal;\n"
     "struct Big { float values[40]; };\n"
     "kernel void add(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],\n"
     "                constant float &c [[buffer(2)]], uint i [[thread_position_in_grid]]) { y[i] "
     "+= x[i] + c; }\n"
     "kernel void pick(constant Big &b [[buffer(3)]], device float *y [[buffer(1)]],\n"
     "                 uint i [[thread_position_in_grid]]) { y[i] = b.values[i]; }\n"
     "kernel void turn(device float *y [[buffer(1)]], threadgroup float *s [[threadgroup(1)]],\n"
     "                 uint t [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) "
     "{\n"
     "  s[t] = y[t]; threadgroup_barrier(mem_flags::mem_threadgroup); y[t] = s[n - 1 - t]; }\n";

struct scene {
  id<MTLDevice> device;
  id<MTLComputePipelineState> add, pick, turn;
  unsigned seed;
};

static unsigned next(unsigned *seed) { return (*seed = *seed * 1664525 + 1013904223) >> 8; }

static void encode(struct scene *s, id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> x,
                   id<MTLBuffer> y, float *expected) {
  float *input = x.contents;
  NSUInteger from = 0, to = 0;
  [encoder setBuffer:x offset:0 atIndex:0];
  [encoder setBuffer:y offset:0 atIndex:1];
  for (int i = 0; i < DISPATCHES; i++) {
    NSUInteger count = 1 + next(&s->seed) % 40;
    if (next(&s->seed) % 2) {
      from = 4 * (next(&s->seed) % (FLOATS - 64));
      to = 4 * (next(&s->seed) % (FLOATS - 64));
      if (next(&s->seed) % 4 == 0) {
        id<MTLBuffer> both[] = {x, y};
        NSUInteger offsets[] = {from, to};
        [encoder setBuffers:both offsets:offsets withRange:NSMakeRange(0, 2)];
      } else {
        [encoder setBufferOffset:from atIndex:0];
        [encoder setBuffer:y offset:to atIndex:1];
      }
    }
    float *out = expected + to / 4, constant = (float)(next(&s->seed) % 100);
    switch (next(&s->seed) % 4) {
    case 0:
    case 1:
      [encoder setComputePipelineState:s->add];
      [encoder setBytes:&constant length:4 atIndex:2];
      [encoder dispatchThreads:MTLSizeMake(count, 1, 1)
          threadsPerThreadgroup:MTLSizeMake(16, 1, 1)];
      for (NSUInteger k = 0; k < count; k++) out[k] += input[from / 4 + k] + constant;
      break;
    case 2: {
      float big[40];
      for (int k = 0; k < 40; k++) big[k] = (float)k + constant;
      [encoder setComputePipelineState:s->pick];
      [encoder setBytes:big length:sizeof big atIndex:3];
      [encoder dispatchThreadgroups:MTLSizeMake(count, 1, 1)
              threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];
      for (NSUInteger k = 0; k < count; k++) out[k] = big[k];
      break;
    }
    default:
      [encoder setComputePipelineState:s->turn];
      [encoder setThreadgroupMemoryLength:(4 * count + 15) / 16 * 16 atIndex:1];
      [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1)
              threadsPerThreadgroup:MTLSizeMake(count, 1, 1)];
      for (NSUInteger k = 0; k < count / 2; k++) {
        float kept = out[k];
        out[k] = out[count - 1 - k], out[count - 1 - k] = kept;
      }
    }
    [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
  }
}

static void *work(void *argument) {
  struct scene scene = *(struct scene *)argument;
  id<MTLCommandQueue> queue = [scene.device newCommandQueue];
  id<MTLBuffer> y = [scene.device newBufferWithLength:4 * FLOATS options:0];
  float *expected = calloc(FLOATS, 4);
  memset(y.contents, 0, 4 * FLOATS);
  for (int round = 0; round < ROUNDS; round++) {
    @autoreleasepool {
      id<MTLBuffer> x = [scene.device newBufferWithLength:4 * FLOATS options:0];
      for (int i = 0; i < FLOATS; i++) ((float *)x.contents)[i] = (float)(i % 17);
      id<MTLCommandBuffer> commands = [queue commandBuffer];
      id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
      encode(&scene, encoder, x, y, expected);
      [encoder endEncoding];
      [commands commit];
      [x release]; /* the command buffer keeps it */
      [commands waitUntilCompleted];
      EXPECT(commands.error == nil);
      EXPECT(memcmp(y.contents, expected, 4 * FLOATS) == 0);
      memcpy(expected, y.contents, 4 * FLOATS);
    }
  }
  free(expected);
  return NULL;
}

int main(void) {
  @autoreleasepool {
    struct scene scenes[4] = {{.device = MTLCreateSystemDefaultDevice()}};
    struct scene *first = scenes;
    id<MTLLibrary> library = [first->device newLibraryWithSource:source options:nil error:NULL];
    first->add =
        [first->device newComputePipelineStateWithFunction:[library newFunctionWithName:@"add"]
                                                     error:NULL];
    first->pick =
        [first->device newComputePipelineStateWithFunction:[library newFunctionWithName:@"pick"]
                                                     error:NULL];
    first->turn =
        [first->device newComputePipelineStateWithFunction:[library newFunctionWithName:@"turn"]
                                                     error:NULL];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) {
      scenes[i] = *first;
      scenes[i].seed = i + 1;
      pthread_create(&threads[i], NULL, work, &scenes[i]);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  }
  return failures;
}
