/* A small Foundation: values, collections, errors, files and locks. */
#pragma once

#include <Availability.h>
#include <Block.h>
#include <TargetConditionals.h>
#include <dispatch/dispatch.h>
#include <inttypes.h>
#include <mach/mach.h>
#include <math.h>
#include <objc/runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#import <Foundation/NSObject.h>

typedef struct _NSRange {
  NSUInteger location, length;
} NSRange;
typedef NSRange *NSRangePointer;

NS_INLINE NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}

#define NSMaxRange(range) ((range).location + (range).length)
#define NSNotFound NSIntegerMax

typedef NSUInteger NSStringEncoding;
enum {
  NSASCIIStringEncoding = 1,
  NSUTF8StringEncoding = 4,
  NSISOLatin1StringEncoding = 5,
};

typedef NSInteger NSComparisonResult;
enum { NSOrderedAscending = -1, NSOrderedSame = 0, NSOrderedDescending = 1 };

typedef unsigned short unichar;

#ifdef __OBJC__

@class NSArray, NSData, NSDictionary, NSError, NSURL, NSEnumerator, NSSet;

typedef struct {
  unsigned long state;
  id __unsafe_unretained *itemsPtr;
  unsigned long *mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id __unsafe_unretained *)objects
                                    count:(NSUInteger)count;
@end

typedef NSComparisonResult (^NSComparator)(id a, id b);
typedef NSString *NSExceptionName;
typedef NSString *NSErrorDomain;
typedef NSString *NSFileAttributeKey;
typedef NSString *NSErrorUserInfoKey;

@interface NSString : NSObject <NSCopying, NSMutableCopying>
@property(readonly) NSUInteger length;
@property(readonly) const char *UTF8String;
@property(readonly) int intValue;
@property(readonly) NSInteger integerValue;
@property(readonly) long long longLongValue;
@property(readonly) float floatValue;
@property(readonly) double doubleValue;
@property(readonly) BOOL boolValue;
@property(readonly, copy) NSString *lowercaseString;
@property(readonly, copy) NSString *uppercaseString;
@property(readonly, copy) NSString *lastPathComponent;
@property(readonly, copy) NSString *pathExtension;
@property(readonly, copy) NSString *stringByDeletingLastPathComponent;
@property(readonly, copy) NSString *stringByDeletingPathExtension;
+ (instancetype)string;
+ (instancetype)stringWithString:(NSString *)text;
+ (instancetype)stringWithUTF8String:(const char *)text;
+ (instancetype)stringWithCString:(const char *)text encoding:(NSStringEncoding)encoding;
+ (instancetype)stringWithFormat:(NSString *)format, ...;
+ (instancetype)stringWithContentsOfFile:(NSString *)path
                                encoding:(NSStringEncoding)encoding
                                   error:(NSError **)error;
+ (instancetype)stringWithContentsOfURL:(NSURL *)url
                               encoding:(NSStringEncoding)encoding
                                  error:(NSError **)error;
- (instancetype)initWithString:(NSString *)text;
- (instancetype)initWithUTF8String:(const char *)text;
- (instancetype)initWithCString:(const char *)text encoding:(NSStringEncoding)encoding;
- (instancetype)initWithBytes:(const void *)bytes
                       length:(NSUInteger)length
                     encoding:(NSStringEncoding)encoding;
- (instancetype)initWithBytesNoCopy:(void *)bytes
                             length:(NSUInteger)length
                           encoding:(NSStringEncoding)encoding
                       freeWhenDone:(BOOL)free;
- (instancetype)initWithData:(NSData *)data encoding:(NSStringEncoding)encoding;
- (instancetype)initWithFormat:(NSString *)format, ...;
- (instancetype)initWithFormat:(NSString *)format arguments:(va_list)values;
- (unichar)characterAtIndex:(NSUInteger)index;
- (const char *)cStringUsingEncoding:(NSStringEncoding)encoding;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (NSUInteger)maximumLengthOfBytesUsingEncoding:(NSStringEncoding)encoding;
- (NSData *)dataUsingEncoding:(NSStringEncoding)encoding;
- (BOOL)isEqualToString:(NSString *)other;
- (NSComparisonResult)compare:(NSString *)other;
- (BOOL)hasPrefix:(NSString *)text;
- (BOOL)hasSuffix:(NSString *)text;
- (BOOL)containsString:(NSString *)text;
- (NSRange)rangeOfString:(NSString *)text;
- (NSString *)substringFromIndex:(NSUInteger)index;
- (NSString *)substringToIndex:(NSUInteger)index;
- (NSString *)substringWithRange:(NSRange)range;
- (NSString *)stringByAppendingString:(NSString *)text;
- (NSString *)stringByAppendingFormat:(NSString *)format, ...;
- (NSString *)stringByAppendingPathComponent:(NSString *)name;
- (NSString *)stringByAppendingPathExtension:(NSString *)extension;
- (NSString *)stringByReplacingOccurrencesOfString:(NSString *)text withString:(NSString *)with;
- (NSArray *)componentsSeparatedByString:(NSString *)separator;
- (BOOL)writeToFile:(NSString *)path
         atomically:(BOOL)atomically
           encoding:(NSStringEncoding)encoding
              error:(NSError **)error;
@end

@interface NSCharacterSet : NSObject <NSCopying>
+ (NSCharacterSet *)whitespaceCharacterSet;
+ (NSCharacterSet *)whitespaceAndNewlineCharacterSet;
+ (NSCharacterSet *)newlineCharacterSet;
+ (NSCharacterSet *)decimalDigitCharacterSet;
+ (NSCharacterSet *)characterSetWithCharactersInString:(NSString *)text;
- (BOOL)characterIsMember:(unichar)character;
@end

@interface NSString (Text)
+ (NSString *)pathWithComponents:(NSArray *)components;
@property(readonly, copy) NSString *stringByStandardizingPath;
- (NSString *)stringByTrimmingCharactersInSet:(NSCharacterSet *)set;
@end

@interface NSScanner : NSObject
@property(copy) NSCharacterSet *charactersToBeSkipped;
@property(readonly, getter=isAtEnd) BOOL atEnd;
+ (instancetype)scannerWithString:(NSString *)text;
- (instancetype)initWithString:(NSString *)text;
- (BOOL)scanString:(NSString *)text intoString:(NSString *__autoreleasing *)found;
- (BOOL)scanUpToString:(NSString *)text intoString:(NSString *__autoreleasing *)found;
- (BOOL)scanInteger:(NSInteger *)value;
@end

@interface NSMutableString : NSString
- (void)appendString:(NSString *)text;
- (void)appendFormat:(NSString *)format, ...;
- (void)setString:(NSString *)text;
@end

@interface NSArray<Object> : NSObject <NSCopying, NSMutableCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
@property(readonly) Object firstObject;
@property(readonly) Object lastObject;
+ (instancetype)array;
+ (instancetype)arrayWithObject:(Object)object;
+ (instancetype)arrayWithObjects:(Object)first, ...;
+ (instancetype)arrayWithObjects:(const Object[])objects count:(NSUInteger)count;
+ (instancetype)arrayWithArray:(NSArray *)other;
- (instancetype)initWithObjects:(const Object[])objects count:(NSUInteger)count;
- (instancetype)initWithArray:(NSArray *)other;
- (Object)objectAtIndex:(NSUInteger)index;
- (Object)objectAtIndexedSubscript:(NSUInteger)index;
- (BOOL)containsObject:(Object)object;
- (NSUInteger)indexOfObject:(Object)object;
- (BOOL)isEqualToArray:(NSArray *)other;
- (NSArray *)sortedArrayUsingComparator:(NSComparator)compare;
- (NSArray *)sortedArrayUsingSelector:(SEL)selector;
- (NSArray *)arrayByAddingObject:(Object)object;
- (NSString *)componentsJoinedByString:(NSString *)separator;
- (NSEnumerator *)objectEnumerator;
- (void)enumerateObjectsUsingBlock:(void (^)(Object object, NSUInteger index, BOOL *stop))block;
@end

@interface NSMutableArray<Object> : NSArray
+ (instancetype)arrayWithCapacity:(NSUInteger)capacity;
- (instancetype)initWithCapacity:(NSUInteger)capacity;
- (void)addObject:(Object)object;
- (void)addObjectsFromArray:(NSArray *)other;
- (void)insertObject:(Object)object atIndex:(NSUInteger)index;
- (void)replaceObjectAtIndex:(NSUInteger)index withObject:(Object)object;
- (void)setObject:(Object)object atIndexedSubscript:(NSUInteger)index;
- (void)sortUsingComparator:(NSComparator)compare;
- (void)sortUsingSelector:(SEL)selector;
- (void)removeObject:(Object)object;
- (void)removeObjectAtIndex:(NSUInteger)index;
- (void)removeLastObject;
- (void)removeAllObjects;
@end

@interface NSEnumerator<Object> : NSObject <NSFastEnumeration>
- (Object)nextObject;
- (NSArray *)allObjects;
@end

@interface NSDictionary<Key, Object> : NSObject <NSCopying, NSMutableCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray *allKeys;
@property(readonly, copy) NSArray *allValues;
+ (instancetype)dictionary;
+ (instancetype)dictionaryWithObject:(Object)object forKey:(Key)key;
+ (instancetype)dictionaryWithObjects:(const Object[])objects
                              forKeys:(const Key[])keys
                                count:(NSUInteger)count;
+ (instancetype)dictionaryWithObjectsAndKeys:(id)first, ...;
+ (instancetype)dictionaryWithDictionary:(NSDictionary *)other;
- (instancetype)initWithObjects:(const Object[])objects
                        forKeys:(const Key[])keys
                          count:(NSUInteger)count;
- (instancetype)initWithDictionary:(NSDictionary *)other;
- (Object)objectForKey:(Key)key;
- (Object)objectForKeyedSubscript:(Key)key;
- (BOOL)isEqualToDictionary:(NSDictionary *)other;
- (NSEnumerator *)keyEnumerator;
- (NSEnumerator *)objectEnumerator;
- (void)enumerateKeysAndObjectsUsingBlock:(void (^)(Key key, Object object, BOOL *stop))block;
@end

@interface NSMutableDictionary<Key, Object> : NSDictionary
+ (instancetype)dictionaryWithCapacity:(NSUInteger)capacity;
- (instancetype)initWithCapacity:(NSUInteger)capacity;
- (void)setObject:(Object)object forKey:(Key)key;
- (void)setObject:(Object)object forKeyedSubscript:(Key)key;
- (void)removeObjectForKey:(Key)key;
- (void)removeAllObjects;
@end

@interface NSSet<Object> : NSObject <NSFastEnumeration>
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray *allObjects;
+ (instancetype)set;
+ (instancetype)setWithObject:(Object)object;
+ (instancetype)setWithArray:(NSArray *)objects;
- (instancetype)initWithObjects:(const Object[])objects count:(NSUInteger)count;
- (BOOL)containsObject:(Object)object;
- (NSEnumerator *)objectEnumerator;
@end

@interface NSMutableSet<Object> : NSSet
- (void)addObject:(Object)object;
- (void)removeObject:(Object)object;
@end

@interface NSValue : NSObject <NSCopying>
@property(readonly) const char *objCType;
@property(readonly) void *pointerValue;
+ (instancetype)valueWithPointer:(const void *)pointer;
+ (instancetype)valueWithBytes:(const void *)bytes objCType:(const char *)type;
- (instancetype)initWithBytes:(const void *)bytes objCType:(const char *)type;
- (void)getValue:(void *)value;
- (void)getValue:(void *)value size:(NSUInteger)size;
@end

#define SOFTMETAL_NUMBERS(X)                                                              \
  X(BOOL, Bool, bool) X(char, Char, char) X(unsigned char, UnsignedChar, unsignedChar)    \
  X(short, Short, short) X(unsigned short, UnsignedShort, unsignedShort) X(int, Int, int) \
  X(unsigned, UnsignedInt, unsignedInt) X(long, Long, long)                               \
  X(unsigned long, UnsignedLong, unsignedLong) X(long long, LongLong, longLong)           \
  X(unsigned long long, UnsignedLongLong, unsignedLongLong)                               \
  X(NSInteger, Integer, integer) X(NSUInteger, UnsignedInteger, unsignedInteger)          \
  X(float, Float, float) X(double, Double, double)

@interface NSNumber : NSValue
#define X(type, Name, name)                \
  +(instancetype)numberWith##Name : (type)value; \
  -(instancetype)initWith##Name : (type)value;   \
  -(type)name##Value;
SOFTMETAL_NUMBERS(X)
#undef X
@property(readonly, copy) NSString *stringValue;
- (BOOL)isEqualToNumber:(NSNumber *)other;
- (NSComparisonResult)compare:(NSNumber *)other;
@end

@interface NSData : NSObject <NSCopying, NSMutableCopying>
@property(readonly) const void *bytes;
@property(readonly) NSUInteger length;
+ (instancetype)data;
+ (instancetype)dataWithBytes:(const void *)bytes length:(NSUInteger)length;
+ (instancetype)dataWithBytesNoCopy:(void *)bytes length:(NSUInteger)length;
+ (instancetype)dataWithBytesNoCopy:(void *)bytes length:(NSUInteger)length freeWhenDone:(BOOL)free;
+ (instancetype)dataWithContentsOfFile:(NSString *)path;
+ (instancetype)dataWithContentsOfURL:(NSURL *)url;
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length;
- (instancetype)initWithContentsOfFile:(NSString *)path;
- (void)getBytes:(void *)buffer length:(NSUInteger)length;
- (BOOL)isEqualToData:(NSData *)other;
- (BOOL)writeToFile:(NSString *)path atomically:(BOOL)atomically;
@end

@interface NSMutableData : NSData
@property(readonly) void *mutableBytes;
+ (instancetype)dataWithLength:(NSUInteger)length;
- (void)appendBytes:(const void *)bytes length:(NSUInteger)length;
- (void)setLength:(NSUInteger)length;
@end

@interface NSError : NSObject <NSCopying>
@property(readonly, copy) NSErrorDomain domain;
@property(readonly) NSInteger code;
@property(readonly, copy) NSDictionary *userInfo;
@property(readonly, copy) NSString *localizedDescription;
@property(readonly, copy) NSString *localizedFailureReason;
@property(readonly, copy) NSString *localizedRecoverySuggestion;
@property(readonly, copy) NSArray *localizedRecoveryOptions;
+ (instancetype)errorWithDomain:(NSErrorDomain)domain
                           code:(NSInteger)code
                       userInfo:(NSDictionary *)info;
- (instancetype)initWithDomain:(NSErrorDomain)domain
                          code:(NSInteger)code
                      userInfo:(NSDictionary *)info;
@end

@interface NSURL : NSObject <NSCopying>
@property(readonly, copy) NSString *absoluteString;
@property(readonly, copy) NSString *path;
@property(readonly, copy) NSString *lastPathComponent;
@property(readonly, getter=isFileURL) BOOL fileURL;
@property(readonly) const char *fileSystemRepresentation;
+ (instancetype)URLWithString:(NSString *)text;
+ (instancetype)fileURLWithPath:(NSString *)path;
+ (instancetype)fileURLWithPath:(NSString *)path isDirectory:(BOOL)directory;
- (instancetype)initWithString:(NSString *)text;
- (instancetype)initFileURLWithPath:(NSString *)path;
- (NSURL *)URLByAppendingPathComponent:(NSString *)name;
- (NSURL *)URLByDeletingLastPathComponent;
@end

@interface NSBundle : NSObject
@property(readonly, copy) NSString *bundlePath;
@property(readonly, copy) NSString *resourcePath;
@property(readonly, copy) NSString *executablePath;
@property(readonly, copy) NSString *bundleIdentifier;
@property(readonly, copy) NSURL *bundleURL;
@property(readonly, copy) NSURL *resourceURL;
+ (NSBundle *)mainBundle;
+ (NSBundle *)bundleForClass:(Class)kind;
+ (NSBundle *)bundleWithPath:(NSString *)path;
- (NSString *)pathForResource:(NSString *)name ofType:(NSString *)extension;
- (NSURL *)URLForResource:(NSString *)name withExtension:(NSString *)extension;
- (id)objectForInfoDictionaryKey:(NSString *)key;
@end

typedef struct {
  NSInteger majorVersion, minorVersion, patchVersion;
} NSOperatingSystemVersion;

@interface NSProcessInfo : NSObject
@property(readonly, copy) NSArray *arguments;
@property(readonly, copy) NSDictionary *environment;
@property(readonly, copy) NSString *processName;
@property(readonly, copy) NSString *hostName;
@property(readonly, copy) NSString *operatingSystemVersionString;
@property(readonly) NSOperatingSystemVersion operatingSystemVersion;
@property(readonly) int processIdentifier;
@property(readonly) NSUInteger processorCount;
@property(readonly) NSUInteger activeProcessorCount;
@property(readonly) unsigned long long physicalMemory;
@property(readonly) NSTimeInterval systemUptime;
@property(readonly, getter=isLowPowerModeEnabled) BOOL lowPowerModeEnabled;
@property(readonly) NSInteger thermalState;
+ (NSProcessInfo *)processInfo;
- (BOOL)isOperatingSystemAtLeastVersion:(NSOperatingSystemVersion)version;
@end

@interface NSFileManager : NSObject
@property(readonly, copy) NSString *currentDirectoryPath;
+ (NSFileManager *)defaultManager;
- (BOOL)fileExistsAtPath:(NSString *)path;
- (BOOL)fileExistsAtPath:(NSString *)path isDirectory:(BOOL *)directory;
- (BOOL)isReadableFileAtPath:(NSString *)path;
- (NSDictionary *)attributesOfItemAtPath:(NSString *)path error:(NSError **)error;
- (BOOL)removeItemAtPath:(NSString *)path error:(NSError **)error;
- (BOOL)createDirectoryAtPath:(NSString *)path
    withIntermediateDirectories:(BOOL)intermediate
                     attributes:(NSDictionary *)attributes
                          error:(NSError **)error;
- (NSString *)destinationOfSymbolicLinkAtPath:(NSString *)path error:(NSError **)error;
@end

@protocol NSLocking
- (void)lock;
- (void)unlock;
@end

@interface NSLock : NSObject <NSLocking>
- (BOOL)tryLock;
@end

@interface NSRecursiveLock : NSLock
@end

@interface NSCondition : NSLock
- (void)wait;
- (void)signal;
- (void)broadcast;
@end

@interface NSException : NSObject
@property(readonly, copy) NSExceptionName name;
@property(readonly, copy) NSString *reason;
@property(readonly, copy) NSDictionary *userInfo;
+ (NSException *)exceptionWithName:(NSExceptionName)name
                            reason:(NSString *)reason
                          userInfo:(NSDictionary *)info;
+ (void)raise:(NSExceptionName)name format:(NSString *)format, ...;
- (instancetype)initWithName:(NSExceptionName)name
                      reason:(NSString *)reason
                    userInfo:(NSDictionary *)info;
- (void)raise;
@end

@interface NSThread : NSObject
@property(copy) NSString *name;
@property(readonly, getter=isFinished) BOOL finished;
+ (BOOL)isMainThread;
+ (void)sleepForTimeInterval:(NSTimeInterval)seconds;
+ (void)detachNewThreadWithBlock:(void (^)(void))block;
+ (void)detachNewThreadSelector:(SEL)selector toTarget:(id)target withObject:(id)argument;
- (instancetype)initWithBlock:(void (^)(void))block;
- (instancetype)initWithTarget:(id)target selector:(SEL)selector object:(id)argument;
- (void)start;
- (void)main;
@end

@interface NSDate : NSObject <NSCopying>
@property(readonly) NSTimeInterval timeIntervalSince1970;
@property(readonly) NSTimeInterval timeIntervalSinceNow;
@property(readonly) NSTimeInterval timeIntervalSinceReferenceDate;
+ (instancetype)date;
+ (instancetype)dateWithTimeIntervalSinceNow:(NSTimeInterval)seconds;
- (NSTimeInterval)timeIntervalSinceDate:(NSDate *)other;
@end

#if !__has_feature(objc_arc)
@interface NSAutoreleasePool : NSObject
- (void)drain;
- (void)addObject:(id)object;
+ (void)showPools;
@end
#endif

FOUNDATION_EXPORT NSExceptionName const NSGenericException;
FOUNDATION_EXPORT NSExceptionName const NSRangeException;
FOUNDATION_EXPORT NSExceptionName const NSInvalidArgumentException;
FOUNDATION_EXPORT NSExceptionName const NSInternalInconsistencyException;
FOUNDATION_EXPORT NSErrorUserInfoKey const NSLocalizedDescriptionKey;
FOUNDATION_EXPORT NSErrorUserInfoKey const NSLocalizedFailureReasonErrorKey;
FOUNDATION_EXPORT NSErrorUserInfoKey const NSUnderlyingErrorKey;
FOUNDATION_EXPORT NSFileAttributeKey const NSFileType;
FOUNDATION_EXPORT NSFileAttributeKey const NSFileSize;
FOUNDATION_EXPORT NSString *const NSFileTypeSymbolicLink;
FOUNDATION_EXPORT NSString *const NSFileTypeDirectory;
FOUNDATION_EXPORT NSString *const NSFileTypeRegular;
FOUNDATION_EXPORT NSErrorDomain const NSCocoaErrorDomain;
FOUNDATION_EXPORT NSErrorDomain const NSPOSIXErrorDomain;
FOUNDATION_EXPORT void NSLog(NSString *format, ...);
FOUNDATION_EXPORT void NSLogv(NSString *format, va_list values);
FOUNDATION_EXPORT NSString *NSStringFromClass(Class class_);
FOUNDATION_EXPORT NSString *NSStringFromSelector(SEL selector);
FOUNDATION_EXPORT Class NSClassFromString(NSString *name);
FOUNDATION_EXPORT SEL NSSelectorFromString(NSString *name);
FOUNDATION_EXPORT NSString *NSTemporaryDirectory(void);
FOUNDATION_EXPORT NSString *NSHomeDirectory(void);

#define NSAssert(condition, ...)                           \
  do {                                                     \
    if (!(condition)) NSLog(__VA_ARGS__), abort();         \
  } while (0)
#define NSCAssert NSAssert
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#if __has_feature(objc_arc)
#define CFBridgingRetain(object) ((__bridge_retained CFTypeRef)(object))
#define CFBridgingRelease(object) ((__bridge_transfer id)(object))
#endif

#endif
