/* The root class. */
#pragma once

#include <limits.h>
#include <objc/runtime.h>
#include <stdarg.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef double NSTimeInterval;

#define NSIntegerMax LONG_MAX
#define NSIntegerMin LONG_MIN
#define NSUIntegerMax ULONG_MAX

#define FOUNDATION_EXPORT OBJC_EXTERN
#define NS_INLINE static inline
#define NS_ENUM(type, name) \
  enum name : type name;    \
  enum name : type
#define NS_OPTIONS(type, name) NS_ENUM(type, name)
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))
#define NS_UNAVAILABLE __attribute__((unavailable))
#define NS_DESIGNATED_INITIALIZER
#define NS_FORMAT_FUNCTION(format, values)

#ifdef __OBJC__

@class NSString, NSMethodSignature, Protocol;

typedef struct _NSZone NSZone;

@protocol NSObject
- (BOOL)isEqual:(id)object;
@property(readonly) NSUInteger hash;
@property(readonly) Class superclass;
- (Class)class;
- (instancetype)self;
- (id)performSelector:(SEL)selector;
- (id)performSelector:(SEL)selector withObject:(id)object;
- (BOOL)isKindOfClass:(Class)kind;
- (BOOL)isMemberOfClass:(Class)kind;
- (BOOL)conformsToProtocol:(Protocol *)protocol;
- (BOOL)respondsToSelector:(SEL)selector;
#if !__has_feature(objc_arc)
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
#endif
@property(readonly, copy) NSString *description;
@optional
@property(readonly, copy) NSString *debugDescription;
@end

@protocol NSCopying
- (id)copyWithZone:(NSZone *)zone;
@end

@protocol NSMutableCopying
- (id)mutableCopyWithZone:(NSZone *)zone;
@end

@interface Protocol
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject> {
  Class isa;
}
+ (instancetype)alloc;
+ (instancetype)allocWithZone:(NSZone *)zone;
+ (instancetype)new;
+ (void)load;
+ (void)initialize;
+ (Class)class;
+ (Class)superclass;
+ (BOOL)instancesRespondToSelector:(SEL)selector;
+ (BOOL)isSubclassOfClass:(Class)kind;
+ (NSString *)description;
- (instancetype)init;
- (void)dealloc;
- (id)copy;
- (id)mutableCopy;
- (IMP)methodForSelector:(SEL)selector;
- (NSMethodSignature *)methodSignatureForSelector:(SEL)selector;
- (void)doesNotRecognizeSelector:(SEL)selector;
@end

#endif
