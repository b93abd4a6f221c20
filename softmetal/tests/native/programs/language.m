/* The language itself, after Apple's documentation: structures of all sizes, categories, protocols,
   +load and +initialize, properties, weak references, associated objects. Compiled with ARC. */
#import <Metal/Metal.h>

#import <objc/message.h>

#include "expect.h"

struct s1 {
  char a;
};
struct s3 {
  char a[3];
};
struct s12 {
  float x, y, z;
};
struct s16 {
  double x;
  long y;
};
struct s16f {
  float a, b, c, d;
};
struct s24 {
  long a, b, c;
};
struct s64 {
  double v[8];
};
struct s4096 {
  char v[4096];
};

static int loads, category_loads, initializations, subclass_initializations;
static NSMutableString *order;

@protocol Speaks <NSObject>
- (NSString *)speak;
@optional
- (int)perhaps;
@end

@protocol Adopted
- (int)adopted;
@end

@interface Base : NSObject
@property(copy) NSString *name;
@property(weak) id other;
@property(nonatomic) struct s24 size;
@property struct s64 large;
@end

@implementation Base
+ (void)load {
  loads++;
}
+ (void)initialize {
  if (self == [Base class])
    initializations++;
  else
    subclass_initializations++;
}
- (struct s1)s1 {
  return (struct s1){7};
}
- (struct s3)s3 {
  return (struct s3){{1, 2, 3}};
}
- (struct s12)s12 {
  return (struct s12){1, 2, 3};
}
- (struct s16)s16 {
  return (struct s16){1.5, 9};
}
- (struct s16f)s16f {
  return (struct s16f){1, 2, 3, 4};
}
- (struct s24)s24 {
  return (struct s24){1, 2, 3};
}
- (struct s64)s64:(int)place and:(double)value {
  struct s64 result = {{0}};
  result.v[place] = value;
  return result;
}
- (struct s4096)s4096 {
  struct s4096 result;
  memset(&result, 9, sizeof result);
  return result;
}
- (float)twice:(float)value {
  return value * 2;
}
- (long double)extended:(long double)value {
  return value * 2;
}
- (_Complex long double)complex {
  return 1.0L + 2.0iL;
}
- (char)c {
  return -3;
}
- (short)sh {
  return -300;
}
- (double)sum:(int)count, ... {
  va_list values;
  va_start(values, count);
  double total = 0;
  for (int i = 0; i < count; i++) total += va_arg(values, double);
  va_end(values);
  return total;
}
- (double)a:(int)a
          b:(float)b
          c:(double)c
          d:(char)d
          e:(long)e
          f:(struct s24)f
          g:(double)g
          h:(double)h
          i:(double)i
          j:(double)j
          k:(double)k
          l:(double)l
          m:(double)m
          n:(int)n
          o:(int)o
          p:(int)p {
  return a + b + c + d + (double)(e + f.a + f.b + f.c) + g + h + i + j + k + l + m + n + o + p;
}
@end

@interface Base (More)
- (int)more;
+ (int)classMore;
@end

@implementation Base (More)
+ (void)load {
  category_loads++;
}
- (int)more {
  return 11;
}
+ (int)classMore {
  return 12;
}
@end

@interface Sub : Base <Speaks> {
  id held;
}
@property int extra;
@end

@implementation Sub
- (instancetype)init {
  if ((self = [super init])) _extra = 6;
  return self;
}
- (NSString *)speak {
  return @"said";
}
- (struct s64)s64:(int)place and:(double)value {
  struct s64 result = [super s64:place and:value];
  result.v[7] = 70;
  return result;
}
- (struct s24)s24 {
  struct s24 result = [super s24];
  result.a = 10;
  return result;
}
- (void)dealloc {
  [order appendString:@"S"];
}
@end

@interface Sub (Adopting) <Adopted>
@end
@implementation Sub (Adopting)
- (int)adopted {
  return 1;
}
@end

@interface NSObject (Everywhere)
- (int)everywhere;
@end
@implementation NSObject (Everywhere)
- (int)everywhere {
  return 77;
}
@end

/* Owns another of its kind; both tell when they end. */
@interface Owner : NSObject {
@public
  Owner *child;
  const char *tag;
}
@end
@implementation Owner
- (void)dealloc {
  [order appendFormat:@"%s", tag];
}
@end

static void results(void) {
  Base *b = [Base new], *nothing = nil;
  Sub *s = [Sub new];
  EXPECT([b s1].a == 7 && [b s3].a[2] == 3 && [b s12].z == 3 && [b s16f].d == 4);
  EXPECT([b s16].x == 1.5 && [b s16].y == 9 && [b s24].c == 3 && [b s4096].v[4095] == 9);
  EXPECT([b s64:3 and:2.5].v[3] == 2.5 && [s s64:3 and:2.5].v[7] == 70);
  EXPECT([s s24].a == 10 && [s s24].c == 3 && [b c] == -3 && [b sh] == -300);
  EXPECT([b twice:1.5f] == 3 && [b extended:1.5L] == 3 && __imag__[b complex] == 2);
  EXPECT([b sum:9, 1., 2., 3., 4., 5., 6., 7., 8., 9.] == 45);
  struct s24 f = {6, 7, 8};
  EXPECT([b a:1 b:2 c:3 d:4 e:5 f:f g:9 h:10 i:11 j:12 k:13 l:14 m:15 n:16 o:17 p:18] == 171);
  EXPECT([nothing s64:1 and:2].v[1] == 0 && [nothing s24].b == 0 && [nothing s16f].d == 0);
  EXPECT([nothing twice:1] == 0 && [nothing extended:1] == 0 && nothing.name == nil);
  EXPECT(__real__[nothing complex] == 0 && __imag__[nothing complex] == 0);
  id<MTLDevice> device = nil;
  EXPECT(device.maxThreadsPerThreadgroup.width == 0 && [device newCommandQueue] == nil);
}

static void classes(void) {
  EXPECT(loads == 1 && category_loads == 1 && initializations == 0);
  EXPECT([Base classMore] == 12 && initializations == 1 && subclass_initializations == 0);
  Sub *s = [[Sub alloc] init];
  EXPECT(initializations == 1 && subclass_initializations == 1 && s.extra == 6);
  EXPECT([s more] == 11 && [Sub classMore] == 12);
  EXPECT([s conformsToProtocol:@protocol(Speaks)] && [s conformsToProtocol:@protocol(NSObject)]);
  EXPECT([s conformsToProtocol:@protocol(Adopted)]);
  EXPECT(![[Base new] conformsToProtocol:@protocol(Adopted)]);
  EXPECT([s respondsToSelector:@selector(speak)] && ![s respondsToSelector:@selector(perhaps)]);
  EXPECT([[s performSelector:@selector(speak)] isEqual:@"said"]);
  EXPECT([[@"a" performSelector:NSSelectorFromString(@"stringByAppendingString:")
                     withObject:@"b"] isEqual:@"ab"]);
  EXPECT([@"" everywhere] == 77);
  EXPECT([(NSObject *)^{
         } everywhere] == 77 &&
         [(NSObject *)[Sub class] everywhere] == 77);
  Class made = objc_allocateClassPair([Sub class], "Made", 0);
  objc_registerClassPair(made);
  EXPECT([[made new] more] == 11 && [NSStringFromClass(made) isEqual:@"Made"]);
}

static void objects_of_metal(void) {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  EXPECT([(NSObject *)device everywhere] == 77);
  EXPECT([device conformsToProtocol:@protocol(MTLDevice)]);
  EXPECT(![device respondsToSelector:sel_registerName("no:such:selector:")]);
  NSMutableDictionary *dictionary = [NSMutableDictionary dictionary];
  dictionary[@"device"] = device;
  EXPECT(dictionary[@"device"] == device && [[NSSet setWithObject:device] containsObject:device]);
}

static void lifetimes(void) {
  order = [NSMutableString string];
  Base *b = [Base new];
  @autoreleasepool {
    Owner *parent = [Owner new];
    parent->tag = "p";
    parent->child = [Owner new];
    parent->child->tag = "c";
  }
  @autoreleasepool {
    (void)[[NSClassFromString(@"Made") alloc] init];
  }
  EXPECT([order isEqual:@"pcS"]);
  @autoreleasepool {
    Owner *other = [Owner new];
    other->tag = "o";
    b.other = other;
    EXPECT(b.other == other);
    objc_setAssociatedObject(b, &order, other, OBJC_ASSOCIATION_RETAIN);
    EXPECT(objc_getAssociatedObject(b, &order) == other);
  }
  @autoreleasepool {
    EXPECT(b.other != nil);
    objc_setAssociatedObject(b, &order, nil, OBJC_ASSOCIATION_RETAIN);
  }
  EXPECT(b.other == nil && [order isEqual:@"pcSo"]);
  @autoreleasepool {
    Owner *key = [Owner new];
    key->tag = "k";
    objc_setAssociatedObject([Base new], &order, key, OBJC_ASSOCIATION_RETAIN_NONATOMIC);
  }
  EXPECT([order isEqual:@"pcSok"]);
  b.size = (struct s24){4, 5, 6};
  b.large = (struct s64){{1, 2, 3}};
  b.name = [NSMutableString stringWithString:@"n"];
  EXPECT(b.size.b == 5 && b.large.v[2] == 3 && [b.name isEqual:@"n"]);
}

int main(int count, char **arguments) {
  @autoreleasepool {
    classes();
    results();
    lifetimes();
    if (count == 1) objects_of_metal(); /* an argument: without Python */
  }
  return failures;
}
