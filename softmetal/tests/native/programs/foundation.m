/* Foundation's values and collections, after Apple's documentation. Compiled with ARC and without.
 */
#import <Foundation/Foundation.h>

#include "expect.h"

static void strings(void) {
  NSString *text =
      [NSString stringWithFormat:@"%d %5.2f %s %@ %lu %c%%", -3, 2.5, "C", @"é€😀", 7ul, 'x'];
  EXPECT([text isEqualToString:@"-3  2.50 C é€😀 7 x%"]);
  EXPECT([@"é€😀" length] == 4); /* units of UTF-16 */
  EXPECT([@"é€😀" characterAtIndex:1] == 0x20ac);
  EXPECT([@"é€😀" characterAtIndex:2] == 0xd83d && [@"é€😀" characterAtIndex:3] == 0xde00);
  EXPECT(strcmp([@"é€😀" UTF8String], "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == 0);
  EXPECT([@"é€😀" lengthOfBytesUsingEncoding:NSUTF8StringEncoding] == 9);
  EXPECT([@"a.b.c" componentsSeparatedByString:@"."].count == 3);
  EXPECT([[@"a.b.c" stringByReplacingOccurrencesOfString:@"."
                                              withString:@"--"] isEqual:@"a--b--c"]);
  EXPECT([@"kernel_mul" hasPrefix:@"kernel"] && ![@"ker" hasPrefix:@"kernel"]);
  EXPECT([@"x.metal" hasSuffix:@".metal"] && [@"abc" containsString:@"bc"]);
  NSRange range = [@"é€ab" rangeOfString:@"ab"];
  EXPECT(range.location == 2 && range.length == 2);
  EXPECT([@"abc" rangeOfString:@"x"].location == NSNotFound);
  EXPECT([[@"é€ab" substringFromIndex:2] isEqualToString:@"ab"]);
  EXPECT([@"42abc" intValue] == 42 && [@"2.5" doubleValue] == 2.5 && [@"YES" boolValue]);
  EXPECT(![@"" boolValue] && ![@"0" boolValue]);
  EXPECT([@"a" compare:@"b"] == NSOrderedAscending);
  NSString *path = @"/tmp/folder/kernels.metal";
  EXPECT([path.lastPathComponent isEqual:@"kernels.metal"] &&
         [path.pathExtension isEqual:@"metal"]);
  EXPECT([path.stringByDeletingLastPathComponent isEqual:@"/tmp/folder"]);
  EXPECT([[@"/tmp" stringByAppendingPathComponent:@"x"] isEqual:@"/tmp/x"]);
  NSMutableString *mutable = [NSMutableString stringWithString:@"a"];
  [mutable appendFormat:@"%d", 1];
  NSString *copy = [mutable copy];
  [mutable appendString:@"z"];
  EXPECT([copy isEqual:@"a1"] && [mutable isEqual:@"a1z"] && [copy hash] == [@"a1" hash]);
}

static void collections(void) {
  NSMutableArray *array = [NSMutableArray arrayWithArray:@[ @3, @1, @2 ]];
  [array addObject:@"end"];
  [array removeObject:@1];
  [array insertObject:@9 atIndex:0];
  array[1] = @4;
  EXPECT([array isEqual:@[ @9, @4, @2, @"end" ]] && [array indexOfObject:@2] == 2);
  EXPECT([array.lastObject isEqual:@"end"] && [@[] firstObject] == nil);
  NSInteger sum = 0;
  for (id each in array) sum += [each isKindOfClass:[NSNumber class]] ? [each integerValue] : 0;
  EXPECT(sum == 15);
  NSMutableDictionary *dictionary = [NSMutableDictionary dictionary];
  for (int i = 0; i < 1000; i++) dictionary[[NSString stringWithFormat:@"key %d", i]] = @(i * i);
  for (int i = 0; i < 1000; i += 2)
    [dictionary removeObjectForKey:[NSString stringWithFormat:@"key %d", i]];
  EXPECT(dictionary.count == 500 && dictionary[@"key 4"] == nil);
  EXPECT([dictionary[@"key 31"] intValue] == 961);
  NSUInteger seen = 0;
  for (NSString *key in dictionary) seen += [dictionary[key] intValue] > 0;
  EXPECT(seen == 500 && [@{@"a" : @1} isEqual:@{@"a" : @1}]);
  __block int found = 0;
  [@[ @1, @2, @3 ] enumerateObjectsUsingBlock:^(id object, NSUInteger index, BOOL *stop) {
    found += [object intValue];
    *stop = index == 1;
  }];
  EXPECT(found == 3);
  EXPECT([[NSSet setWithArray:@[ @1, @1, @2 ]] count] == 2);
  EXPECT([[@[ @"a", @"b" ] componentsJoinedByString:@"+"] isEqual:@"a+b"]);
}

static void values(void) {
  EXPECT([@1.5 doubleValue] == 1.5 && [@1.5 intValue] == 1 && [@YES boolValue]);
  EXPECT([@(1ull << 63) unsignedLongLongValue] == 1ull << 63);
  EXPECT([@2 isEqual:@2.0] && [@1 compare:@2] == NSOrderedAscending);
  EXPECT([[@(-7) stringValue] isEqual:@"-7"]);
  NSMutableData *data = [NSMutableData dataWithLength:3];
  [data appendBytes:"ab" length:2];
  EXPECT(data.length == 5 && memcmp(data.bytes, "\0\0\0ab", 5) == 0);
  NSError *error = [NSError errorWithDomain:@"d"
                                       code:-5
                                   userInfo:@{NSLocalizedDescriptionKey : @"why"}];
  EXPECT(error.code == -5 && [error.localizedDescription isEqual:@"why"]);
  NSURL *url = [NSURL fileURLWithPath:@"/a folder/x.metallib"];
  EXPECT([url.absoluteString isEqual:@"file:///a%20folder/x.metallib"]);
  EXPECT([url.path isEqual:@"/a folder/x.metallib"] && url.isFileURL);
  error = nil;
  EXPECT(![NSString stringWithContentsOfFile:@"/nonexistent" encoding:4 error:&error] && error);
  EXPECT([[[NSProcessInfo processInfo] arguments] count] == 2);
  EXPECT([[[NSProcessInfo processInfo] environment][@"NATIVE_TEST"] isEqual:@"value"]);
}

@protocol Shape
- (double)area;
@end

@interface Square : NSObject <Shape>
@property double side;
@property(copy) NSString *name;
@end

@implementation Square
- (double)area {
  return self.side * self.side;
}
- (void)dealloc {
#if !__has_feature(objc_arc)
  [_name release];
  [super dealloc];
#endif
}
@end

@interface Cube : Square
@end

@implementation Cube
- (double)area {
  return 6 * [super area];
}
@end

@interface NSString (Shouting)
- (NSString *)shouted;
@end

@implementation NSString (Shouting)
- (NSString *)shouted {
  return [[self uppercaseString] stringByAppendingString:@"!"];
}
@end

static void classes(void) {
  Cube *cube = [[Cube alloc] init];
  cube.side = 2;
  cube.name = [NSMutableString stringWithString:@"cube"];
  EXPECT([cube area] == 24 && [cube.name isEqual:@"cube"]);
  EXPECT([cube isKindOfClass:[Square class]] && ![cube isMemberOfClass:[Square class]]);
  EXPECT([cube conformsToProtocol:@protocol(Shape)] && ![@"" conformsToProtocol:@protocol(Shape)]);
  EXPECT([cube respondsToSelector:@selector(area)] && ![cube respondsToSelector:@selector(count)]);
  EXPECT([[@"loud" shouted] isEqual:@"LOUD!"]);
  EXPECT([NSStringFromClass([cube class]) isEqual:@"Cube"] &&
         NSClassFromString(@"Cube") == [Cube class]);
  Cube *nothing = nil;
  EXPECT([nothing area] == 0 && nothing.name == nil);
#if !__has_feature(objc_arc)
  [cube release];
#endif
}

static void blocks(void) {
  __block int count = 0;
  NSString *captured = [NSString stringWithFormat:@"%d", 5];
  void (^work)(void) = [^{
    count += [captured intValue];
  } copy];
  work(), work();
  EXPECT(count == 10);
  dispatch_queue_t serial = dispatch_queue_create("serial", DISPATCH_QUEUE_SERIAL);
  NSMutableArray *order = [NSMutableArray array];
  for (int i = 0; i < 100; i++)
    dispatch_async(serial, ^{
      [order addObject:@(i)];
    });
  dispatch_sync(serial, ^{
    [order addObject:@100];
  });
  BOOL sorted = order.count == 101;
  for (int i = 0; i < 101 && sorted; i++) sorted = [order[(NSUInteger)i] intValue] == i;
  EXPECT(sorted);
  dispatch_group_t group = dispatch_group_create();
  __block _Atomic int sum = 0;
  for (int i = 0; i < 20; i++)
    dispatch_group_async(group, dispatch_get_global_queue(0, 0), ^{
      sum += i;
    });
  EXPECT(dispatch_group_wait(group, DISPATCH_TIME_FOREVER) == 0 && sum == 190);
  __block _Atomic int squares = 0;
  dispatch_apply(50, dispatch_get_global_queue(0, 0), ^(size_t i) {
    squares += (int)(i * i);
  });
  EXPECT(squares == 40425);
  dispatch_semaphore_t semaphore = dispatch_semaphore_create(0);
  EXPECT(dispatch_semaphore_wait(semaphore, dispatch_time(DISPATCH_TIME_NOW, 1000000)) != 0);
  dispatch_semaphore_signal(semaphore);
  EXPECT(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_FOREVER) == 0);
  static dispatch_once_t once;
  __block int times = 0;
  for (int i = 0; i < 3; i++)
    dispatch_once(&once, ^{
      times++;
    });
  EXPECT(times == 1);
#if !__has_feature(objc_arc)
  [work release];
  dispatch_release(serial), dispatch_release(group), dispatch_release(semaphore);
#endif
}

#if __has_feature(objc_arc)
static void weak_references(void) {
  __weak Square *weak = nil;
  @autoreleasepool {
    Square *square = [Square new];
    weak = square;
    EXPECT(weak == square);
  }
  EXPECT(weak == nil);
}
#else
static void weak_references(void) {
  Square *square = [[Square alloc] init];
  EXPECT([square retainCount] == 1);
  @autoreleasepool {
    [[square retain] autorelease];
    EXPECT([square retainCount] == 2);
  }
  EXPECT([square retainCount] == 1);
  [square release];
}
#endif

int main(void) {
  @autoreleasepool {
    strings(), collections(), values(), classes(), blocks(), weak_references();
    @synchronized([NSString class]) {
      EXPECT(1);
    }
  }
  return failures;
}
