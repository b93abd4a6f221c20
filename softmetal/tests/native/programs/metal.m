/* One of each thing that programs do with Metal, with results that are known. */
#import <Metal/Metal.h>

#include "expect.h"

static NSString *const source =
    @"#include <metal_stdlib>\n"
     "using namespace metal;\n"
     "constant float scale [[function_constant(0)]];\n"
     "kernel void add(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],\n"
     "                constant float &c [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
     "  y[i] = scale * x[i] + c;\n"
     "}\n"
     "kernel void total(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],\n"
     "                  threadgroup float *s [[threadgroup(0)]], uint t "
     "[[thread_index_in_threadgroup]]) {\n"
     "  s[t] = x[t];\n"
     "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
     "  if (t == 0) { float sum = 0; for (int i = 0; i < 32; i++) sum += s[i]; y[0] = sum; }\n"
     "}\n";

static id<MTLComputePipelineState> pipeline(id<MTLDevice> device, id<MTLLibrary> library,
                                            NSString *name) {
  MTLFunctionConstantValues *values = [MTLFunctionConstantValues new];
  float scale = 2;
  [values setConstantValue:&scale type:MTLDataTypeFloat atIndex:0];
  NSError *error = nil;
  id<MTLFunction> function = [library newFunctionWithName:name constantValues:values error:&error];
  EXPECT(function && !error && [function.name isEqual:name]);
  MTLComputePipelineDescriptor *descriptor = [[MTLComputePipelineDescriptor alloc] init];
  descriptor.computeFunction = function;
  descriptor.label = name;
  MTLComputePipelineReflection *reflection = nil;
  id<MTLComputePipelineState> made =
      [device newComputePipelineStateWithDescriptor:descriptor
                                            options:MTLPipelineOptionArgumentInfo
                                         reflection:&reflection
                                              error:&error];
  EXPECT(made && reflection.bindings.count >= 2 && made.threadExecutionWidth == 32);
  return made;
}

static void describe(id<MTLDevice> device) {
  EXPECT(device.name.length > 0 && [device supportsFamily:MTLGPUFamilyMetal3]);
  MTLSize most = device.maxThreadsPerThreadgroup;
  EXPECT(most.width == 1024 && most.height == 1024 && most.depth == 1024);
  MTLSizeAndAlign room = [device heapBufferSizeAndAlignWithLength:100 options:0];
  EXPECT(room.size >= 100 && room.align > 0);
  EXPECT([device conformsToProtocol:@protocol(MTLDevice)]);
  EXPECT([device respondsToSelector:@selector(newCommandQueue)]);
  EXPECT(device == MTLCreateSystemDefaultDevice()); /* one object as long as somebody holds it */
}

static void compute(id<MTLDevice> device, id<MTLLibrary> library) {
  id<MTLCommandQueue> queue = [device newCommandQueue];
  float numbers[32], constant = 0.5f;
  for (int i = 0; i < 32; i++) numbers[i] = (float)i;
  id<MTLBuffer> x = [device newBufferWithBytes:numbers
                                        length:sizeof numbers
                                       options:MTLResourceStorageModeShared];
  id<MTLBuffer> y = [device newBufferWithLength:128 options:MTLResourceStorageModeShared];
  id<MTLBuffer> z = [device newBufferWithLength:4 options:MTLResourceStorageModeShared];
  EXPECT(x.length == 128 && ((float *)x.contents)[7] == 7);
  id<MTLCommandBuffer> commands = [queue commandBuffer];
  __block _Atomic int handled = 0;
  [commands addScheduledHandler:^(id<MTLCommandBuffer> buffer) {
    handled += 1;
  }];
  [commands addCompletedHandler:^(id<MTLCommandBuffer> buffer) {
    handled += buffer == commands && buffer.status == MTLCommandBufferStatusCompleted ? 10 : 100;
  }];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:pipeline(device, library, @"add")];
  id<MTLBuffer> both[] = {x, y};
  NSUInteger offsets[] = {0, 0};
  [encoder setBuffers:both offsets:offsets withRange:NSMakeRange(0, 2)];
  [encoder setBytes:&constant length:4 atIndex:2];
  [encoder dispatchThreads:MTLSizeMake(32, 1, 1) threadsPerThreadgroup:MTLSizeMake(16, 1, 1)];
  [encoder dispatchThreadgroups:MTLSizeMake(0, 1, 1) threadsPerThreadgroup:MTLSizeMake(16, 1, 1)];
  [encoder setComputePipelineState:pipeline(device, library, @"total")];
  [encoder setBuffer:y offset:0 atIndex:0];
  [encoder setBuffer:z offset:0 atIndex:1];
  [encoder setThreadgroupMemoryLength:132 atIndex:0]; /* rounded up, as by Apple's driver */
  [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EXPECT(handled == 11 && commands.error == nil && commands.GPUEndTime >= commands.GPUStartTime);
  EXPECT(((float *)y.contents)[31] == 62.5f && *(float *)z.contents == 1008);
}

static void move(id<MTLDevice> device) {
  MTLHeapDescriptor *descriptor = [[MTLHeapDescriptor alloc] init];
  descriptor.size = 1 << 16;
  descriptor.storageMode = MTLStorageModeShared;
  id<MTLHeap> heap = [device newHeapWithDescriptor:descriptor];
  id<MTLBuffer> from = [heap newBufferWithLength:64 options:MTLResourceStorageModeShared];
  id<MTLBuffer> to = [device newBufferWithLength:64 options:MTLResourceStorageModeShared];
  memset(from.contents, 7, 64);
  __block int freed = 0;
  void *memory = NULL;
  EXPECT(!posix_memalign(&memory, 16384, 16384));
  @autoreleasepool {
    id<MTLBuffer> wrapped = [device newBufferWithBytesNoCopy:memory
                                                      length:16384
                                                     options:MTLResourceStorageModeShared
                                                 deallocator:^(void *pointer, NSUInteger length) {
                                                   freed = pointer == memory && length == 16384;
                                                 }];
    EXPECT(wrapped.contents == memory);
#if !__has_feature(objc_arc)
    [wrapped release];
#endif
  }
  EXPECT(freed);
  free(memory);
  id<MTLCommandBuffer> commands = [[device newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> blit = [commands blitCommandEncoder];
  [blit copyFromBuffer:from sourceOffset:0 toBuffer:to destinationOffset:32 size:32];
  [blit fillBuffer:to range:NSMakeRange(0, 32) value:3];
  [blit endEncoding];
  id<MTLSharedEvent> event = [device newSharedEvent];
  [commands encodeSignalEvent:event value:5];
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  dispatch_queue_t queue = dispatch_queue_create("listener", DISPATCH_QUEUE_SERIAL);
  MTLSharedEventListener *listener = [[MTLSharedEventListener alloc] initWithDispatchQueue:queue];
  __block uint64_t value = 0;
  [event notifyListener:listener
                atValue:5
                  block:^(id<MTLSharedEvent> which, uint64_t reached) {
                    value = which == event ? reached : 0;
                    dispatch_semaphore_signal(told);
                  }];
  [commands commit];
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  [commands waitUntilCompleted];
  EXPECT(value == 5 && event.signaledValue == 5);
  EXPECT(((char *)to.contents)[0] == 3 && ((char *)to.contents)[63] == 7);
}

static void refuse(id<MTLDevice> device) {
  NSError *error = nil;
  id<MTLLibrary> bad = [device newLibraryWithSource:@"kernel void k() { nonsense; }"
                                            options:nil
                                              error:&error];
  EXPECT(!bad && [error.localizedDescription containsString:@"nonsense"]);
  EXPECT([error.domain isEqual:MTLLibraryErrorDomain]);
  EXPECT(NSClassFromString(@"MTLNoSuchClass") == Nil);
}

int main(void) {
  @autoreleasepool {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    NSError *error = nil;
    id<MTLLibrary> library = [device newLibraryWithSource:source options:nil error:&error];
    EXPECT(library && [library.functionNames isEqual:(@[ @"add", @"total" ])]);
    describe(device), compute(device, library), move(device), refuse(device);
  }
  return failures;
}
