/* Sets of characters, scanners, and paths. */
#include "native.h"

#import <Foundation/Foundation.h>

/* The sets that programs name have characters of ASCII only. */
@interface NSCharacterSet () {
@public
  BOOL _has[128];
}
@end

@implementation NSCharacterSet
+ (NSCharacterSet *)characterSetWithCharactersInString:(NSString *)text {
  NSCharacterSet *set = [[self alloc] init];
  for (const unsigned char *at = (const unsigned char *)[text UTF8String]; *at; at++) {
    if (*at >= 128) softmetal_fatal("NSCharacterSet has ASCII only: not '%s'", [text UTF8String]);
    set->_has[*at] = YES;
  }
  return [set autorelease];
}
+ (NSCharacterSet *)whitespaceCharacterSet {
  return [self characterSetWithCharactersInString:@" \t"];
}
+ (NSCharacterSet *)newlineCharacterSet {
  return [self characterSetWithCharactersInString:@"\n\v\f\r"];
}
+ (NSCharacterSet *)whitespaceAndNewlineCharacterSet {
  return [self characterSetWithCharactersInString:@" \t\n\v\f\r"];
}
+ (NSCharacterSet *)decimalDigitCharacterSet {
  return [self characterSetWithCharactersInString:@"0123456789"];
}
- (id)copyWithZone:(NSZone *)zone {
  return [self retain];
}
- (BOOL)characterIsMember:(unichar)character {
  return character < 128 && _has[character];
}
@end

static BOOL has(NSCharacterSet *set, char byte) { return set && byte >= 0 && set->_has[(int)byte]; }

@implementation NSString (Text)
+ (NSString *)pathWithComponents:(NSArray *)components {
  NSString *path = @"";
  for (NSString *each in components) path = [path stringByAppendingPathComponent:each];
  return path;
}
- (NSString *)stringByStandardizingPath {
  NSMutableArray *kept = [NSMutableArray array];
  BOOL absolute = [self hasPrefix:@"/"];
  for (NSString *each in [self componentsSeparatedByString:@"/"]) {
    if (![each length] || [each isEqualToString:@"."]) continue;
    /* elsewhere a link may lead to the folder that `..` leaves */
    if (absolute && [each isEqualToString:@".."]) {
      if ([kept count]) [kept removeLastObject];
    } else {
      [kept addObject:each];
    }
  }
  NSString *path = [kept componentsJoinedByString:@"/"];
  return absolute ? [@"/" stringByAppendingString:path] : path;
}
- (NSString *)stringByTrimmingCharactersInSet:(NSCharacterSet *)set {
  size_t size;
  const char *start = softmetal_text(self, &size), *end = start + size;
  while (start < end && has(set, *start)) start++;
  while (start < end && has(set, end[-1])) end--;
  return [softmetal_string(start, (size_t)(end - start)) autorelease];
}
@end

@interface NSScanner () {
  NSString *_text;
  const char *_at;
}
@end

@implementation NSScanner
@synthesize charactersToBeSkipped = _skipped;

+ (instancetype)scannerWithString:(NSString *)text {
  return [[[self alloc] initWithString:text] autorelease];
}
- (instancetype)initWithString:(NSString *)text {
  _text = [text copy];
  _at = [_text UTF8String];
  _skipped = [[NSCharacterSet whitespaceAndNewlineCharacterSet] retain];
  return self;
}
- (void)dealloc {
  [_text release];
  [_skipped release];
  [super dealloc];
}
- (void)skip {
  while (*_at && has(_skipped, *_at)) _at++;
}
- (BOOL)isAtEnd {
  [self skip];
  return !*_at;
}
- (BOOL)taken:(const char *)end into:(NSString **)found {
  if (end == _at) return NO;
  if (found) *found = [softmetal_string(_at, (size_t)(end - _at)) autorelease];
  _at = end;
  return YES;
}
- (BOOL)scanString:(NSString *)text intoString:(NSString **)found {
  const char *before = _at;
  [self skip];
  size_t size;
  const char *wanted = softmetal_text(text, &size);
  if (size && !strncmp(_at, wanted, size)) return [self taken:_at + size into:found];
  _at = before;
  return NO;
}
- (BOOL)scanUpToString:(NSString *)text intoString:(NSString **)found {
  [self skip];
  const char *end = strstr(_at, [text UTF8String]);
  return [self taken:end ? end : _at + strlen(_at) into:found];
}
- (BOOL)scanInteger:(NSInteger *)value {
  [self skip];
  char *end;
  NSInteger read = strtol(_at, &end, 10);
  if (end == _at) return NO;
  if (value) *value = read;
  _at = end;
  return YES;
}
@end
