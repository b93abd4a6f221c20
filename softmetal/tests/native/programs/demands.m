/* `demands NAME`: one thing that goes wrong, or that needs care. */
#import <Metal/Metal.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "expect.h"

@protocol Textures
- (id)newTextureWithDescriptor:(id)descriptor;
@end

static NSString *const source = @"kernel void late(device float *x [[buffer(0)]], uint i "
                                @"[[thread_position_in_grid]]) { x[i + 8] = 1; }\n"
                                 "kernel void fill(device float *x [[buffer(0)]], uint i "
                                 "[[thread_position_in_grid]]) { x[i] += 1; }\n";

static id<MTLComputePipelineState> pipeline(id<MTLDevice> device, NSString *name) {
  id<MTLLibrary> library = [device newLibraryWithSource:source options:nil error:NULL];
  return [device newComputePipelineStateWithFunction:[library newFunctionWithName:name] error:NULL];
}

static id<MTLCommandBuffer> dispatch(id<MTLCommandQueue> queue, id<MTLComputePipelineState> state,
                                     id<MTLBuffer> buffer, NSUInteger groups) {
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:state];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreadgroups:MTLSizeMake(groups, 1, 1)
          threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  return commands;
}

struct work {
  id<MTLDevice> device;
  id<MTLComputePipelineState> state;
};

static void *encode_many(void *argument) {
  struct work *work = argument;
  id<MTLCommandQueue> queue = [work->device newCommandQueue];
  id<MTLBuffer> buffer = [work->device newBufferWithLength:16 options:0];
  memset(buffer.contents, 0, 16);
  for (int i = 0; i < 200; i++) {
    @autoreleasepool {
      dispatch(queue, work->state, buffer, 1);
    }
  }
  EXPECT(((float *)buffer.contents)[3] == 200);
  [buffer release], [queue release];
  return NULL;
}

static void threads(id<MTLDevice> device) {
  struct work work = {device, pipeline(device, @"fill")};
  pthread_t each[4];
  for (int i = 0; i < 4; i++) pthread_create(&each[i], NULL, encode_many, &work);
  for (int i = 0; i < 4; i++) pthread_join(each[i], NULL);
}

static volatile int interrupts;
static void interrupted(int signal) { interrupts++; }

static void signals(id<MTLDevice> device) {
  signal(SIGINT, interrupted);
  raise(SIGINT);
  id<MTLBuffer> buffer = [device newBufferWithLength:16 options:0];
  dispatch([device newCommandQueue], pipeline(device, @"fill"), buffer, 1);
  raise(SIGINT);
  EXPECT(interrupts == 2 && ((float *)buffer.contents)[0] == 1);
}

/* Encodes what Metal refuses; it must end the program. */
static void refused(id<MTLDevice> device, const char *what) {
  id<MTLBuffer> buffer = [device newBufferWithLength:16 options:0];
  id<MTLComputeCommandEncoder> encoder =
      [[[device newCommandQueue] commandBuffer] computeCommandEncoder];
  NSUInteger threads = strcmp(what, "too many threads") ? 4 : 2048;
  float value = 1;
  if (strcmp(what, "no pipeline")) [encoder setComputePipelineState:pipeline(device, @"fill")];
  if (!strcmp(what, "beyond the buffer"))
    [encoder setBuffer:buffer offset:17 atIndex:0];
  else if (!strcmp(what, "an index of 31"))
    [encoder setBuffer:buffer offset:0 atIndex:31];
  else if (!strcmp(what, "written bytes"))
    [encoder setBytes:&value length:4 atIndex:0];
  else if (strcmp(what, "unbound"))
    [encoder setBuffer:buffer offset:0 atIndex:0];
  if (!strcmp(what, "ended")) [encoder endEncoding];
  [encoder dispatchThreads:MTLSizeMake(4, 1, 1) threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
  puts("accepted");
}

int main(int count, char **arguments) {
  const char *what = arguments[1];
  if (!strcmp(what, "fork")) { /* before the first device, as programs that start helpers do */
    pid_t child = fork();
    int status = 0;
    if (child) waitpid(child, &status, 0);
    EXPECT(status == 0);
  }
  @autoreleasepool {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    if (!strcmp(what, "texture")) [(id<Textures>)device newTextureWithDescriptor:nil];
    if (!strcmp(what, "class")) EXPECT(NSClassFromString(@"MTKTextureLoader") == Nil);
    if (!strcmp(what, "asked"))
      EXPECT(![device respondsToSelector:@selector(newTextureWithDescriptor:)]);
    if (!strcmp(what, "empty"))
      dispatch([device newCommandQueue], pipeline(device, @"fill"),
               [device newBufferWithLength:16 options:0], 0);
    if (!strcmp(what, "bounds")) {
      id<MTLCommandBuffer> done = dispatch([device newCommandQueue], pipeline(device, @"late"),
                                           [device newBufferWithLength:32 options:0], 1);
      if (done.error) puts(done.error.localizedDescription.UTF8String);
    }
    if (count > 2) refused(device, what);
    if (!strcmp(what, "threads")) threads(device);
    if (!strcmp(what, "signals") || !strcmp(what, "fork")) signals(device);
    if (!strcmp(what, "released")) {
      id object = [[NSObject alloc] init];
      [object release];
    }
  }
  return failures;
}
