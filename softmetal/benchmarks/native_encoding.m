/* What encoding a dispatch with its bindings costs on 1 to 4 threads. */
#import <Metal/Metal.h>

#include <pthread.h>

enum { DISPATCHES = 2000, ROUNDS = 20 };

static id<MTLDevice> device;
static id<MTLComputePipelineState> pipeline;
static id<MTLBuffer> x, y;

static void *encode(void *unused) {
  id<MTLCommandQueue> queue = [device newCommandQueue];
  uint32_t count = 4;
  for (int round = 0; round < ROUNDS; round++) {
    @autoreleasepool {
      id<MTLCommandBuffer> commands = [queue commandBuffer];
      id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
      for (int i = 0; i < DISPATCHES; i++) {
        [encoder setComputePipelineState:pipeline];
        [encoder setBuffer:x offset:0 atIndex:0];
        [encoder setBuffer:y offset:0 atIndex:1];
        [encoder setBytes:&count length:4 atIndex:2];
        [encoder dispatchThreads:MTLSizeMake(4, 1, 1) threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
      }
      [encoder endEncoding];
    }
  }
  return NULL;
}

static double processor_time(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
  @autoreleasepool {
    device = MTLCreateSystemDefaultDevice();
    NSString *source = @"kernel void k(device float *x, device float *y, constant uint &n,\n"
                        "uint i [[thread_position_in_grid]]) { if (i < n) y[i] = x[i]; }";
    id<MTLLibrary> library = [device newLibraryWithSource:source options:nil error:NULL];
    pipeline = [device newComputePipelineStateWithFunction:[library newFunctionWithName:@"k"]
                                                     error:NULL];
    x = [device newBufferWithLength:64 options:0], y = [device newBufferWithLength:64 options:0];
    for (int count = 1; count <= 4; count *= 2) {
      pthread_t threads[4];
      double best = 1e18, least = 1e18, all = (double)count * ROUNDS * DISPATCHES;
      for (int attempt = 0; attempt < 5; attempt++) {
        uint64_t start = mach_absolute_time();
        double processor = processor_time();
        for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, encode, NULL);
        for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
        best = fmin(best, (double)(mach_absolute_time() - start));
        least = fmin(least, processor_time() - processor);
      }
      printf("%d %g %g\n", count, least / all, best / all); /* nanoseconds a dispatch */
    }
  }
  return 0;
}
