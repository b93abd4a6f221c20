/* libdispatch and threads, after Apple's documentation. Compiled with ARC. */
#import <Foundation/Foundation.h>

#include <stdatomic.h>

#include "expect.h"

static void many_blocks(void) {
  dispatch_group_t group = dispatch_group_create();
  __block _Atomic int count = 0;
  for (int i = 0; i < 20000; i++)
    dispatch_group_async(group, dispatch_get_global_queue(QOS_CLASS_DEFAULT, 0), ^{
      @autoreleasepool {
        count += [NSString stringWithFormat:@"%d", i].length > 0;
      }
    });
  EXPECT(dispatch_group_wait(group, DISPATCH_TIME_FOREVER) == 0 && count == 20000);
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  dispatch_group_enter(group);
  dispatch_group_notify(group, dispatch_get_main_queue(), ^{
    dispatch_semaphore_signal(told);
  });
  EXPECT(dispatch_group_wait(group, dispatch_time(DISPATCH_TIME_NOW, NSEC_PER_MSEC)) != 0);
  dispatch_group_leave(group);
  EXPECT(dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER) == 0);
}

static void orders(void) {
  dispatch_queue_t serial = dispatch_queue_create("serial", DISPATCH_QUEUE_SERIAL);
  NSMutableArray *seen = [NSMutableArray array];
  for (int i = 0; i < 100; i++)
    dispatch_async(serial, ^{
      [seen addObject:@(i)];
    });
  dispatch_sync(serial, ^{
    EXPECT(seen.count == 100);
  });
  for (int i = 0; i < 100; i++) EXPECT([seen[i] intValue] == i);
  dispatch_queue_t concurrent = dispatch_queue_create("concurrent", DISPATCH_QUEUE_CONCURRENT);
  __block int plain = 0; /* barriers alone change it */
  __block _Atomic int wrong = 0;
  for (int i = 0; i < 100; i++) {
    for (int k = 0; k < 3; k++)
      dispatch_async(concurrent, ^{
        wrong += plain != i;
      });
    dispatch_barrier_async(concurrent, ^{
      usleep(10);
      plain++;
    });
  }
  dispatch_barrier_sync(concurrent, ^{
    plain += 1000;
  });
  EXPECT(plain == 1100 && wrong == 0);
  static dispatch_once_t token;
  __block int once = 0;
  for (int i = 0; i < 3; i++)
    dispatch_once(&token, ^{
      once++;
    });
  EXPECT(once == 1);
}

static void times(void) {
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  uint64_t start = mach_absolute_time();
  EXPECT(dispatch_semaphore_wait(told, dispatch_time(DISPATCH_TIME_NOW, 20 * NSEC_PER_MSEC)) != 0);
  EXPECT(mach_absolute_time() - start >= 20 * NSEC_PER_MSEC);
  dispatch_after(dispatch_time(DISPATCH_TIME_NOW, 10 * NSEC_PER_MSEC),
                 dispatch_get_global_queue(0, 0), ^{
                   dispatch_semaphore_signal(told);
                 });
  EXPECT(dispatch_semaphore_wait(told, dispatch_time(DISPATCH_TIME_NOW, 300 * NSEC_PER_SEC)) == 0);
}

static void threads(void) {
  dispatch_semaphore_t told = dispatch_semaphore_create(0);
  NSThread *thread = [[NSThread alloc] initWithBlock:^{
    EXPECT(![NSThread isMainThread]);
    dispatch_semaphore_signal(told);
  }];
  thread.name = @"worker";
  [thread start];
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  NSMutableArray *array = [NSMutableArray array];
  [NSThread detachNewThreadWithBlock:^{
    @synchronized(array) {
      [array addObject:thread.name];
    }
    dispatch_semaphore_signal(told);
  }];
  dispatch_semaphore_wait(told, DISPATCH_TIME_FOREVER);
  EXPECT([array isEqual:@[ @"worker" ]]);
}

static void sorting(void) {
  NSMutableArray *pairs = [NSMutableArray array];
  for (int i = 0; i < 1000; i++) [pairs addObject:@[ @(i * 7919 % 10), @(i) ]];
  [pairs sortUsingComparator:^NSComparisonResult(NSArray *a, NSArray *b) {
    return [b[0] compare:a[0]];
  }];
  for (int i = 1; i < 1000; i++) {
    NSComparisonResult first = [pairs[i - 1][0] compare:pairs[i][0]];
    NSComparisonResult second = [pairs[i - 1][1] compare:pairs[i][1]];
    EXPECT(first == NSOrderedDescending ||
           (first == NSOrderedSame && second == NSOrderedAscending));
  }
  EXPECT([[@[ @"b", @"a" ] sortedArrayUsingSelector:@selector(compare:)] isEqual:@[ @"a", @"b" ]]);
}

int main(void) {
  @autoreleasepool {
    many_blocks();
    orders();
    times();
    threads();
    sorting();
  }
  return failures;
}
