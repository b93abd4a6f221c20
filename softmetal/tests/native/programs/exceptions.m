/* @try, @catch, @finally and @throw, after Apple's documentation. With an argument, one that nobody
   catches. Compiled with ARC and without. */
#import <Metal/Metal.h>

#include "expect.h"

@interface Special : NSException
@end
@implementation Special
@end

@interface NSObject (Unknown)
- (void)noSuchMethod;
@end

static NSMutableString *order;

static void deep(int count) {
  if (count)
    deep(count - 1);
  else
    @throw [Special exceptionWithName:@"Deep" reason:@"because" userInfo:@{@"key" : @1}];
}

static void kinds(void) {
  @try {
    @throw [[NSObject alloc] init];
  } @catch (NSException *wrong) {
    [order appendString:@"wrong"];
  } @catch (id any) {
    [order appendString:@"any "];
  } @finally {
    [order appendString:@"finally "];
  } @
  try {
    deep(3);
  } @catch (NSString *wrong) {
    [order appendString:@"wrong"];
  } @catch (NSException *above) {
    [order appendFormat:@"%@ %@ ", above.name, above.userInfo[@"key"]];
  } @
  try {
    @synchronized(order) {
      deep(3);
    }
  } @catch (...) {
    [order appendString:@"all"];
  } @
  synchronized(order) { /* it was given back */ }
  EXPECT([order isEqual:@"any finally Deep 1 all"]);
}

static int paths(int which) {
  for (int i = 0; i < 4; i++) {
    @try {
      if (which == 0) return 1;
      if (which == 1) break;
      if (which == 2 && i < 2) continue;
      if (which == 3) @throw @"text";
    } @catch (NSString *text) {
      [order appendString:text];
      break;
    } @finally {
      [order appendFormat:@"%d ", i];
    }
  }
  return 0;
}

static void again(void) {
  @try {
    @try {
      deep(1);
    } @catch (Special *first) {
      [order appendString:@"inner "];
      @throw;
    } @finally {
      [order appendString:@"finally "];
    }
  } @catch (NSException *second) {
    [order appendString:second.reason];
    @try {
      [NSException raise:NSRangeException format:@"%d", 7];
    } @catch (NSException *within) {
      [order appendString:within.reason];
    }
    [order appendString:second.name];
  }
  EXPECT([order isEqual:@"inner finally because7Deep"]);
}

static NSString *raised(void (^block)(void)) {
  @try {
    block();
  } @catch (NSException *exception) {
    return exception.name;
  }
  return nil;
}

static void foundations(id<MTLDevice> device) {
  EXPECT([raised(^{
    [@[ @1 ] objectAtIndex:1];
  }) isEqual:NSRangeException]);
  EXPECT([raised(^{
    [@"abc" characterAtIndex:3];
  }) isEqual:NSRangeException]);
  id nothing = nil;
  EXPECT([raised(^{
    [[NSMutableArray array] addObject:nothing];
  }) isEqual:NSInvalidArgumentException]);
  EXPECT([raised(^{
    [[NSMutableDictionary dictionary] setObject:@1 forKey:nothing];
  }) isEqual:NSInvalidArgumentException]);
  EXPECT([raised(^{
    [[NSObject class] noSuchMethod];
  }) isEqual:NSInvalidArgumentException]);
  EXPECT([raised(^{
    [(NSObject *)device noSuchMethod];
  }) isEqual:NSInvalidArgumentException]);
  EXPECT([raised(^{
    NSMutableArray *array = [NSMutableArray arrayWithArray:@[ @1, @2 ]];
    for (id each in array) [array addObject:each];
  }) isEqual:NSGenericException]);
  EXPECT(raised(^{
           [device newCommandQueue];
         }) == nil);
}

int main(int count, char **arguments) {
  @autoreleasepool {
    order = [[NSMutableString alloc] init];
    kinds();
    [order setString:@""];
    EXPECT(paths(0) == 1 && paths(1) == 0 && paths(2) == 0 && paths(3) == 0);
    EXPECT([order isEqual:@"0 0 0 1 2 3 text0 "]);
    [order setString:@""];
    again();
    foundations(MTLCreateSystemDefaultDevice());
    if (count > 1) deep(2);
  }
  return failures;
}
