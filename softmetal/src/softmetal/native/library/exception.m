/* NSException. */
#include "native.h"

#import <Foundation/Foundation.h>

NSExceptionName const NSGenericException = @"NSGenericException";
NSExceptionName const NSRangeException = @"NSRangeException";
NSExceptionName const NSInvalidArgumentException = @"NSInvalidArgumentException";
NSExceptionName const NSInternalInconsistencyException = @"NSInternalInconsistencyException";

@interface NSException () {
  NSString *_name, *_reason;
  NSDictionary *_info;
}
@end

@implementation NSException
+ (NSException *)exceptionWithName:(NSExceptionName)name
                            reason:(NSString *)reason
                          userInfo:(NSDictionary *)info {
  return [[[self alloc] initWithName:name reason:reason userInfo:info] autorelease];
}
+ (void)raise:(NSExceptionName)name format:(NSString *)format, ... {
  va_list values;
  va_start(values, format);
  NSString *reason = [[[NSString alloc] initWithFormat:format arguments:values] autorelease];
  va_end(values);
  [[self exceptionWithName:name reason:reason userInfo:nil] raise];
}
- (instancetype)initWithName:(NSExceptionName)name
                      reason:(NSString *)reason
                    userInfo:(NSDictionary *)info {
  _name = [name copy];
  _reason = [reason copy];
  _info = [info copy];
  return self;
}
- (void)dealloc {
  [_name release];
  [_reason release];
  [_info release];
  [super dealloc];
}
- (void)raise {
  objc_exception_throw(self);
}
- (NSExceptionName)name {
  return _name;
}
- (NSString *)reason {
  return _reason;
}
- (NSDictionary *)userInfo {
  return _info;
}
- (NSString *)description {
  return _reason ?: _name;
}
@end

void softmetal_raise(const char *exception, const char *format, ...) {
  char *text = NULL;
  va_list values;
  va_start(values, format);
  if (vasprintf(&text, format, values) < 0) softmetal_fatal("out of memory for an exception");
  va_end(values);
  NSString *reason = @(text);
  free(text);
  [[NSException exceptionWithName:@(exception) reason:reason userInfo:nil] raise];
  abort();
}

void softmetal_uncaught(id object) {
  NSString *name = object_getClassName(object) ? @(object_getClassName(object)) : @"nil";
  if ([object isKindOfClass:[NSException class]]) name = [object name];
  softmetal_fatal("uncaught exception %s: %s", [name UTF8String],
                  [[object description] UTF8String] ?: "");
}
