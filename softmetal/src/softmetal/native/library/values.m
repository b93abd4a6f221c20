/* Numbers, values, data, errors and URLs. */
#include "native.h"

#import <Foundation/Foundation.h>

/* ---- values and numbers ---- */

@interface NSValue () {
@public
  char type[16]; /* Objective-C's encoding */
  union {
    int64_t integer;
    double real;
    char bytes[48];
  } value;
  NSUInteger size;
}
@end

@implementation NSValue
+ (instancetype)valueWithPointer:(const void *)pointer {
  return [self valueWithBytes:&pointer objCType:"^v"];
}
+ (instancetype)valueWithBytes:(const void *)bytes objCType:(const char *)type {
  return [[[self alloc] initWithBytes:bytes objCType:type] autorelease];
}
/* The encodings of numbers, pointers, and structures of 8-byte members. */
static NSUInteger size_of(const char *type) {
  if (strchr("cCB", *type)) return 1;
  if (strchr("sS", *type)) return 2;
  if (strchr("iIf", *type)) return 4;
  const char *members = *type == '{' ? strchr(type, '=') : NULL;
  return members ? 8 * (strlen(members) - 2) : 8;
}
- (instancetype)initWithBytes:(const void *)bytes objCType:(const char *)given {
  size = size_of(given);
  if (size > sizeof value) softmetal_fatal("NSValue cannot hold a value of type %s", given);
  snprintf(type, sizeof type, "%s", given);
  memcpy(value.bytes, bytes, size);
  return self;
}
- (id)copyWithZone:(NSZone *)zone {
  return [self retain];
}
- (const char *)objCType {
  return type;
}
- (void *)pointerValue {
  return (void *)value.integer;
}
- (void)getValue:(void *)to {
  memcpy(to, value.bytes, size);
}
- (void)getValue:(void *)to size:(NSUInteger)bytes {
  memcpy(to, value.bytes, MIN(bytes, size));
}
- (NSUInteger)hash {
  return (NSUInteger)value.integer * 0x9e3779b97f4a7c15ull >> 16;
}
- (BOOL)isEqual:(id)object {
  if (![object isKindOfClass:[NSValue class]]) return NO;
  NSValue *other = object;
  return size == other->size && !memcmp(value.bytes, other->value.bytes, size);
}
@end

static int is_real(NSNumber *number) { return *number->type == 'd' || *number->type == 'f'; }
static double real_of(NSNumber *number) {
  if (is_real(number)) return number->value.real;
  return *number->type == 'Q' ? (double)(uint64_t)number->value.integer
                              : (double)number->value.integer;
}
static int64_t integer_of(NSNumber *number) {
  return is_real(number) ? (int64_t)number->value.real : number->value.integer;
}

static id number(Class class, const char *type, int64_t integer, double real) {
  NSNumber *made = [class alloc];
  made->size = 8;
  *made->type = *type == 'L' ? 'Q' : *type;
  if (is_real(made))
    made->value.real = real;
  else
    made->value.integer = integer;
  return made;
}

@implementation NSNumber
#define X(ctype, Name, name)                                                                       \
  +(instancetype)numberWith##Name : (ctype)given {                                                 \
    return [number(self, @encode(ctype), (int64_t)given, (double)given) autorelease];              \
  }                                                                                                \
  -(instancetype)initWith##Name : (ctype)given {                                                   \
    id made = number(object_getClass(self), @encode(ctype), (int64_t)given, (double)given);        \
    [self release];                                                                                \
    return made;                                                                                   \
  }                                                                                                \
  -(ctype)name##Value {                                                                            \
    return (ctype)(is_real(self) ? (ctype)self->value.real : (ctype)self->value.integer);          \
  }
SOFTMETAL_NUMBERS(X)
#undef X
- (NSUInteger)hash {
  return (NSUInteger)integer_of(self);
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSNumber class]] && [self isEqualToNumber:object];
}
- (BOOL)isEqualToNumber:(NSNumber *)other {
  if (is_real(self) || is_real(other)) return real_of(self) == real_of(other);
  return value.integer == other->value.integer;
}
- (NSComparisonResult)compare:(NSNumber *)other {
  if ([self isEqualToNumber:other]) return NSOrderedSame;
  return real_of(self) < real_of(other) ? NSOrderedAscending : NSOrderedDescending;
}
- (NSString *)stringValue {
  if (is_real(self)) return [NSString stringWithFormat:@"%.17g", value.real];
  return [NSString stringWithFormat:*type == 'Q' ? @"%lu" : @"%ld", value.integer];
}
- (NSString *)description {
  return [self stringValue];
}
- (NSString *)descriptionWithLocale:(id)locale {
  return [self stringValue];
}
@end

id softmetal_integer(int64_t value) { return number([NSNumber class], "q", value, 0); }
id softmetal_boolean(int value) { return number([NSNumber class], "B", value, 0); }
id softmetal_real(double value) { return number([NSNumber class], "d", 0, value); }

/* ---- data ---- */

@interface NSData () {
@public
  char *memory;
  NSUInteger used;
  BOOL borrowed;
}
@end

static char *file_bytes(NSString *path, NSUInteger *size) {
  FILE *file = path ? fopen([path UTF8String], "rb") : NULL;
  if (!file) return NULL;
  char *bytes = NULL;
  size_t got, room = 0;
  *size = 0;
  do {
    room = room ? 2 * room : 1 << 16;
    bytes = realloc(bytes, room);
    if (!bytes) softmetal_fatal("out of memory for a file");
    got = fread(bytes + *size, 1, room - *size, file);
    *size += got;
  } while (got && *size == room);
  fclose(file);
  return bytes;
}

@implementation NSData
+ (instancetype)data {
  return [[[self alloc] init] autorelease];
}
+ (instancetype)dataWithBytes:(const void *)bytes length:(NSUInteger)length {
  return [[[self alloc] initWithBytes:bytes length:length] autorelease];
}
+ (instancetype)dataWithBytesNoCopy:(void *)bytes length:(NSUInteger)length {
  return [self dataWithBytesNoCopy:bytes length:length freeWhenDone:YES];
}
+ (instancetype)dataWithBytesNoCopy:(void *)bytes
                             length:(NSUInteger)length
                       freeWhenDone:(BOOL)ours {
  NSData *data = [[self alloc] init];
  data->memory = bytes;
  data->used = length;
  data->borrowed = !ours;
  return [data autorelease];
}
+ (instancetype)dataWithContentsOfFile:(NSString *)path {
  return [[[self alloc] initWithContentsOfFile:path] autorelease];
}
+ (instancetype)dataWithContentsOfURL:(NSURL *)url {
  return [self dataWithContentsOfFile:[url path]];
}
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length {
  memory = softmetal_allocate(length);
  memcpy(memory, bytes, length);
  used = length;
  return self;
}
- (instancetype)initWithContentsOfFile:(NSString *)path {
  memory = file_bytes(path, &used);
  if (memory) return self;
  [self release];
  return nil;
}
- (void)dealloc {
  if (!borrowed) free(memory);
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  if (object_getClass(self) == [NSData class]) return [self retain];
  return [[NSData alloc] initWithBytes:memory length:used];
}
- (id)mutableCopyWithZone:(NSZone *)zone {
  return [[NSMutableData alloc] initWithBytes:memory length:used];
}
- (const void *)bytes {
  return memory;
}
- (NSUInteger)length {
  return used;
}
- (void)getBytes:(void *)buffer length:(NSUInteger)length {
  memcpy(buffer, memory, MIN(length, used));
}
- (NSUInteger)hash {
  return used;
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSData class]] && [self isEqualToData:object];
}
- (BOOL)isEqualToData:(NSData *)other {
  return other && used == other->used && !memcmp(memory, other->memory, used);
}
- (BOOL)writeToFile:(NSString *)path atomically:(BOOL)atomically {
  NSString *target = atomically ? [path stringByAppendingString:@".part"] : path;
  FILE *file = fopen([target UTF8String], "wb");
  if (!file) return NO;
  BOOL whole = fwrite(memory, 1, used, file) == used;
  whole = !fclose(file) && whole;
  return whole && (!atomically || !rename([target UTF8String], [path UTF8String]));
}
@end

@implementation NSMutableData
+ (instancetype)dataWithLength:(NSUInteger)length {
  NSMutableData *data = [self data];
  [data setLength:length];
  return data;
}
- (void *)mutableBytes {
  return memory;
}
- (void)setLength:(NSUInteger)length {
  char *resized = realloc(memory, length ? length : 1);
  if (!resized) softmetal_fatal("out of memory for %lu bytes of data", length);
  memory = resized;
  if (length > used) memset(memory + used, 0, length - used);
  used = length;
}
- (void)appendBytes:(const void *)bytes length:(NSUInteger)length {
  NSUInteger before = used;
  [self setLength:before + length];
  memcpy(memory + before, bytes, length);
}
@end

id softmetal_data(const void *bytes, size_t size) {
  return [[NSData alloc] initWithBytes:bytes length:size];
}

/* ---- errors ---- */

NSErrorUserInfoKey const NSLocalizedDescriptionKey = @"NSLocalizedDescription";
NSErrorUserInfoKey const NSLocalizedFailureReasonErrorKey = @"NSLocalizedFailureReason";
NSErrorUserInfoKey const NSUnderlyingErrorKey = @"NSUnderlyingError";
NSErrorDomain const NSCocoaErrorDomain = @"NSCocoaErrorDomain";
NSErrorDomain const NSPOSIXErrorDomain = @"NSPOSIXErrorDomain";

@interface NSError () {
  NSString *_domain;
  NSInteger _code;
  NSDictionary *_info;
}
@end

@implementation NSError
+ (instancetype)errorWithDomain:(NSErrorDomain)domain
                           code:(NSInteger)code
                       userInfo:(NSDictionary *)info {
  return [[[self alloc] initWithDomain:domain code:code userInfo:info] autorelease];
}
- (instancetype)initWithDomain:(NSErrorDomain)domain
                          code:(NSInteger)code
                      userInfo:(NSDictionary *)info {
  _domain = [domain copy];
  _code = code;
  _info = info ? [info copy] : [[NSDictionary alloc] init];
  return self;
}
- (void)dealloc {
  [_domain release];
  [_info release];
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  return [self retain];
}
- (NSErrorDomain)domain {
  return _domain;
}
- (NSInteger)code {
  return _code;
}
- (NSDictionary *)userInfo {
  return _info;
}
- (NSString *)localizedDescription {
  NSString *text = [_info objectForKey:NSLocalizedDescriptionKey];
  return text
             ?: [NSString stringWithFormat:@"The operation couldn’t be completed. (%@ error %ld.)",
                                           _domain, _code];
}
- (NSString *)localizedFailureReason {
  return [_info objectForKey:NSLocalizedFailureReasonErrorKey];
}
- (NSString *)localizedRecoverySuggestion {
  return nil;
}
- (NSArray *)localizedRecoveryOptions {
  return nil;
}
- (NSString *)description {
  return [NSString stringWithFormat:@"Error Domain=%@ Code=%ld \"%@\"", _domain, _code,
                                    [self localizedDescription]];
}
@end

id softmetal_error(id domain, int64_t code, id description) {
  NSDictionary *info = [[NSDictionary alloc] initWithObjects:&description
                                                     forKeys:&NSLocalizedDescriptionKey
                                                       count:1];
  NSError *error = [[NSError alloc] initWithDomain:domain code:code userInfo:info];
  [info release];
  return error;
}

/* ---- URLs ---- */

@interface NSURL () {
  NSString *_text;
}
@end

static NSString *escaped(const char *path) {
  NSMutableString *text = [NSMutableString stringWithUTF8String:"file://"];
  for (; *path; path++) {
    unsigned char byte = (unsigned char)*path;
    int plain = (byte | 32) >= 'a' && (byte | 32) <= 'z';
    int kept = plain || (byte >= '0' && byte <= '9') || strchr("/-_.~", byte);
    [text appendFormat:kept ? @"%c" : @"%%%02X", byte];
  }
  return text;
}

static NSString *unescaped(const char *text) {
  char *path = softmetal_allocate(strlen(text) + 1), *to = path;
  for (; *text; text++) {
    unsigned byte;
    if (*text == '%' && sscanf(text + 1, "%2x", &byte) == 1)
      *to++ = (char)byte, text += 2;
    else
      *to++ = *text;
  }
  NSString *string = [NSString stringWithUTF8String:path];
  free(path);
  return string;
}

@implementation NSURL
+ (instancetype)URLWithString:(NSString *)text {
  return [[[self alloc] initWithString:text] autorelease];
}
+ (instancetype)fileURLWithPath:(NSString *)path {
  return [[[self alloc] initFileURLWithPath:path] autorelease];
}
+ (instancetype)fileURLWithPath:(NSString *)path isDirectory:(BOOL)directory {
  return [self fileURLWithPath:path];
}
- (instancetype)initWithString:(NSString *)text {
  _text = [text copy];
  return self;
}
- (instancetype)initFileURLWithPath:(NSString *)path {
  if (![path hasPrefix:@"/"]) {
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) softmetal_fatal("the current folder has no path");
    path = [[NSString stringWithUTF8String:here] stringByAppendingPathComponent:path];
  }
  _text = [escaped([path UTF8String]) retain];
  return self;
}
- (void)dealloc {
  [_text release];
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  return [self retain];
}
- (NSString *)absoluteString {
  return _text;
}
- (NSString *)path {
  const char *text = [_text UTF8String], *rest = strstr(text, "://");
  if (!rest) return unescaped(text);
  const char *slash = strchr(rest + 3, '/');
  return unescaped(slash ? slash : "");
}
- (const char *)fileSystemRepresentation {
  return [[self path] UTF8String];
}
- (NSString *)lastPathComponent {
  return [[self path] lastPathComponent];
}
- (BOOL)isFileURL {
  return [_text hasPrefix:@"file://"];
}
- (NSURL *)URLByAppendingPathComponent:(NSString *)name {
  return [NSURL fileURLWithPath:[[self path] stringByAppendingPathComponent:name]];
}
- (NSURL *)URLByDeletingLastPathComponent {
  return [NSURL fileURLWithPath:[[self path] stringByDeletingLastPathComponent]];
}
- (NSUInteger)hash {
  return [_text hash];
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSURL class]] && [_text isEqualToString:[object absoluteString]];
}
- (NSString *)description {
  return _text;
}
@end

id softmetal_url(id text) { return [[NSURL alloc] initWithString:text]; }
