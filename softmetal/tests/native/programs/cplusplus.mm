/* Objective-C and C++ in one program: members with destructors, captures, exceptions, threads. */
#import <Metal/Metal.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

static int destroyed;
struct Counted {
  std::string text = "member";
  ~Counted() { destroyed++; }
};

@interface Mixed : NSObject {
  Counted counted;
  std::vector<int> numbers;
}
- (size_t)size;
@end
@implementation Mixed
- (instancetype)init {
  if ((self = [super init])) numbers.assign(5, 1);
  return self;
}
- (size_t)size {
  return numbers.size() + counted.text.size();
}
@end

static void language() {
  @autoreleasepool {
    EXPECT([[Mixed new] size] == 11);
  }
  EXPECT(destroyed == 1);
  auto shared = std::make_shared<int>(5);
  @autoreleasepool {
    void (^kept)(void) = [^{
      EXPECT(*shared == 5);
    } copy];
    EXPECT(shared.use_count() > 1);
    kept();
  }
  EXPECT(shared.use_count() == 1);
  std::string message = "thrown";
  void (^throws)(void) = ^{
    throw std::runtime_error(message);
  };
  try {
    throws();
    EXPECT(false);
  } catch (const std::exception &problem) {
    EXPECT(problem.what() == message);
  }
}

struct Guard {
  ~Guard() { destroyed += 10; }
};

/* Exceptions of both languages through one function, which has handlers of both. */
static int both(int which) {
  @try {
    try {
      Guard guard;
      if (which == 1) throw std::runtime_error("C++");
      if (which == 2) @throw @"Objective-C";
      if (which == 3) throw 7;
    } catch (const std::exception &problem) {
      return 1;
    }
  } @catch (NSString *text) {
    return 2;
  } @catch (...) {
    return 3;
  }
  return 0;
}

static void handlers(id<MTLDevice> device) {
  NSString *source = @"kernel void k(device float *x, uint i [[thread_position_in_grid]]) "
                      "{ x[i] += 1; }";
  NSError *error = nil;
  id<MTLLibrary> library = [device newLibraryWithSource:source options:nil error:&error];
  EXPECT([library newFunctionWithName:@"absent"] == nil && !error);
  EXPECT(![device newLibraryWithSource:@"kernel void k( {" options:nil error:NULL]);
  id<MTLFunction> function = [library newFunctionWithName:@"k"];
  id<MTLComputePipelineState> state = [device newComputePipelineStateWithFunction:function
                                                                            error:NULL];
  id<MTLCommandQueue> queue = [device newCommandQueue];
  std::atomic<int> done{0}, *counter = &done;
  dispatch_group_t group = dispatch_group_create();
  auto work = [&] {
    for (int i = 0; i < 50; i++) {
      @autoreleasepool {
        id<MTLBuffer> buffer = [device newBufferWithLength:64 options:0];
        id<MTLCommandBuffer> commands = [queue commandBuffer];
        id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
        [encoder setComputePipelineState:state];
        [encoder setBuffer:buffer offset:0 atIndex:0];
        [encoder dispatchThreads:MTLSizeMake(16, 1, 1) threadsPerThreadgroup:MTLSizeMake(16, 1, 1)];
        [encoder endEncoding];
        dispatch_group_enter(group);
        [commands addCompletedHandler:^(id<MTLCommandBuffer> completed) {
          *counter += completed.error == nil && ((float *)buffer.contents)[15] == 1;
          dispatch_group_leave(group);
        }];
        [commands commit];
        if (i % 2) [commands waitUntilCompleted];
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(work);
  for (auto &thread : threads) thread.join();
  dispatch_group_wait(group, DISPATCH_TIME_FOREVER);
  EXPECT(done == 200);
}

static void memory(id<MTLDevice> device) {
  id<MTLBuffer> ended = [device newBufferWithLength:16 options:0];
  std::thread([&ended] { ended = nil; }).join();
  void *pages = aligned_alloc(16384, 16384);
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  @autoreleasepool {
    void (^freed)(void *, NSUInteger) = ^(void *pointer, NSUInteger length) {
      EXPECT(pointer == pages && length == 16384);
      free(pointer);
      dispatch_semaphore_signal(told);
    };
    id<MTLBuffer> buffer = [device newBufferWithBytesNoCopy:pages
                                                     length:16384
                                                    options:0
                                                deallocator:freed];
    EXPECT(buffer.contents == pages);
  }
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  id<MTLSharedEvent> event = [device newSharedEvent];
  dispatch_queue_t queue = dispatch_queue_create("listener", DISPATCH_QUEUE_SERIAL);
  MTLSharedEventListener *listener = [[MTLSharedEventListener alloc] initWithDispatchQueue:queue];
  [event notifyListener:listener
                atValue:5
                  block:^(id<MTLSharedEvent> signaled, uint64_t value) {
                    EXPECT(value >= 5 && signaled.signaledValue >= 5);
                    dispatch_semaphore_signal(told);
                  }];
  event.signaledValue = 5;
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
}

int main() {
  @autoreleasepool {
    language();
    destroyed = 0;
    EXPECT(both(0) == 0 && both(1) == 1 && both(2) == 2 && both(3) == 3 && destroyed == 40);
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    handlers(device);
    memory(device);
  }
  return failures;
}
