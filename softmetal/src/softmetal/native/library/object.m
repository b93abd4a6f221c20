/* NSObject, and the root of the objects that Python has. */
#include "native.h"

#import <Foundation/Foundation.h>

@implementation NSObject

+ (void)load {
}
+ (void)initialize {
}
+ (instancetype)alloc {
  id object = softmetal_make(self, class_getInstanceSize(self));
  static SEL construct;
  if (!construct) construct = sel_registerName(".cxx_construct");
  struct objc_method *method = softmetal_method(self, construct);
  if (method) ((void (*)(id, SEL))method->function)(object, construct);
  return object;
}
+ (instancetype)allocWithZone:(NSZone *)zone {
  return [self alloc];
}
+ (instancetype)new {
  return [[self alloc] init];
}
+ (Class)class {
  return self;
}
+ (Class)superclass {
  return class_getSuperclass(self);
}
+ (instancetype)self {
  return (id)self;
}
+ (BOOL)instancesRespondToSelector:(SEL)selector {
  return class_respondsToSelector(self, selector);
}
+ (BOOL)isSubclassOfClass:(Class)kind {
  for (Class each = self; each; each = class_getSuperclass(each))
    if (each == kind) return YES;
  return NO;
}
+ (BOOL)conformsToProtocol:(Protocol *)protocol {
  return class_conformsToProtocol(self, protocol);
}
+ (NSString *)description {
  return NSStringFromClass(self);
}
+ (instancetype)retain {
  return (id)self;
}
+ (oneway void)release {
}
+ (instancetype)autorelease {
  return (id)self;
}
+ (id)copy {
  return (id)self;
}

- (instancetype)init {
  return self;
}
- (void)dealloc {
  softmetal_call_destructors(self);
  softmetal_free(self);
}
- (id)copy {
  return [(id<NSCopying>)self copyWithZone:NULL];
}
- (id)mutableCopy {
  return [(id<NSMutableCopying>)self mutableCopyWithZone:NULL];
}
- (BOOL)isEqual:(id)object {
  return self == object;
}
- (NSUInteger)hash {
  return (uintptr_t)self >> 4;
}
- (Class)class {
  return object_getClass(self);
}
- (Class)superclass {
  return class_getSuperclass(object_getClass(self));
}
- (instancetype)self {
  return self;
}
- (id)performSelector:(SEL)selector {
  return ((id (*)(id, SEL))softmetal_lookup(self, selector))(self, selector);
}
- (id)performSelector:(SEL)selector withObject:(id)object {
  return ((id (*)(id, SEL, id))softmetal_lookup(self, selector))(self, selector, object);
}
- (BOOL)isKindOfClass:(Class)kind {
  return softmetal_is_kind(self, kind);
}
- (BOOL)isMemberOfClass:(Class)kind {
  return object_getClass(self) == kind;
}
- (BOOL)conformsToProtocol:(Protocol *)protocol {
  return class_conformsToProtocol(object_getClass(self), protocol);
}
- (BOOL)respondsToSelector:(SEL)selector {
  if (softmetal_method(object_getClass(self), selector)) return YES;
  softmetal_missing("selector", object_getClassName(self), sel_getName(selector));
  return NO;
}
- (IMP)methodForSelector:(SEL)selector {
  return softmetal_lookup(self, selector);
}
- (NSMethodSignature *)methodSignatureForSelector:(SEL)selector {
  return nil; /* there are no invocations: a caller that asks wants to know whether it may send */
}
- (void)doesNotRecognizeSelector:(SEL)selector {
  softmetal_fatal("-[%s %s]: unrecognized selector", object_getClassName(self),
                  sel_getName(selector));
}
- (instancetype)retain {
  return objc_retain(self);
}
- (oneway void)release {
  objc_release(self);
}
- (instancetype)autorelease {
  return objc_autorelease(self);
}
- (NSUInteger)retainCount {
  return (NSUInteger)atomic_load(&HEAD(self)->count);
}
- (NSString *)description {
  return [NSString stringWithFormat:@"<%s: %p>", object_getClassName(self), (void *)self];
}
- (NSString *)debugDescription {
  return [self description];
}

@end

/* Its subclasses' methods are those of Python's classes; see softmetal_method. */
@interface SoftmetalObject : NSObject
@end

@implementation SoftmetalObject
- (void)dealloc {
  softmetal_destroy_bridged(self);
}
- (id)copyWithZone:(NSZone *)zone {
  return objc_retain(self);
}
@end

/* Blocks are objects. The names that clang uses for their classes are aliases. */
@interface NSBlock : NSObject
@end
@interface SoftmetalStackBlock : NSBlock
@end
@interface SoftmetalGlobalBlock : NSBlock
@end
@interface SoftmetalHeapBlock : NSBlock
@end

@implementation NSBlock
- (id)copy {
  return _Block_copy(self);
}
@end
@implementation SoftmetalStackBlock
@end
@implementation SoftmetalGlobalBlock
@end
@implementation SoftmetalHeapBlock
@end

@implementation Protocol
@end

#define ALIAS(name, class) __asm__(".globl " name "\n.set " name ", \"OBJC_CLASS_$_" class "\"");
ALIAS("_NSConcreteStackBlock", "SoftmetalStackBlock")
ALIAS("_NSConcreteGlobalBlock", "SoftmetalGlobalBlock")
ALIAS("_NSConcreteMallocBlock", "SoftmetalHeapBlock")

/* What clang calls in place of common messages, and so would call here if they were written so. */
static void *send(id object, const char *name, const void *argument) {
  SEL selector = sel_registerName(name);
  return ((void *(*)(id, SEL, const void *))softmetal_lookup(object, selector))(object, selector,
                                                                                argument);
}

id objc_alloc(Class class) { return class ? send(class, "alloc", NULL) : nil; }
id objc_allocWithZone(Class class) { return objc_alloc(class); }
id objc_alloc_init(Class class) { return class ? send(objc_alloc(class), "init", NULL) : nil; }
id objc_opt_new(Class class) { return class ? send(class, "new", NULL) : nil; }
id objc_opt_self(id object) { return object; }
Class objc_opt_class(id object) { return object ? send(object, "class", NULL) : Nil; }
BOOL objc_opt_isKindOfClass(id object, Class class) {
  return object && (uint8_t)(uintptr_t)send(object, "isKindOfClass:", class);
}
BOOL objc_opt_respondsToSelector(id object, SEL selector) {
  return object && (uint8_t)(uintptr_t)send(object, "respondsToSelector:", selector);
}

Protocol *objc_getProtocol(const char *name) { return nil; /* they leave no trace in a program */ }

const void *CFRetain(const void *object) { return objc_retain((id)object); }
void CFRelease(const void *object) { objc_release((id)object); }
