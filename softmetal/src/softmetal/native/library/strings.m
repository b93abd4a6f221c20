/* Strings: UTF-8, in the layout of the constants that clang writes. */
#include "native.h"

#import <Foundation/Foundation.h>
#include <ctype.h>
#include <strings.h>

enum { CONSTANT_UTF16 = 0x7d0 };

@interface NSString () {
@public
  int flags;
  char *bytes; /* ends with a zero byte */
  long size;   /* bytes, or units of UTF-16 in a constant with CONSTANT_UTF16 */
}
@end

@interface NSConstantString : NSString
@end

@implementation NSConstantString
- (void)dealloc {
}
- (id)copyWithZone:(NSZone *)zone {
  return self;
}
@end
__asm__(".globl __CFConstantStringClassReference\n"
        ".set __CFConstantStringClassReference, \"OBJC_CLASS_$_NSConstantString\"");

static size_t put_utf8(char *to, uint32_t code) {
  if (code < 0x80) return to[0] = (char)code, 1;
  if (code < 0x800) return to[0] = (char)(0xc0 | code >> 6), to[1] = (char)(0x80 | (code & 63)), 2;
  if (code < 0x10000) {
    to[0] = (char)(0xe0 | code >> 12), to[1] = (char)(0x80 | (code >> 6 & 63));
    return to[2] = (char)(0x80 | (code & 63)), 3;
  }
  to[0] = (char)(0xf0 | code >> 18), to[1] = (char)(0x80 | (code >> 12 & 63));
  to[2] = (char)(0x80 | (code >> 6 & 63)), to[3] = (char)(0x80 | (code & 63));
  return 4;
}

static char *utf8_of(const uint16_t *units, long count, long *size) {
  char *text = softmetal_allocate(3 * (size_t)count + 1);
  *size = 0;
  for (long i = 0; i < count; i++) {
    uint32_t code = units[i];
    if (code >= 0xd800 && code < 0xdc00 && i + 1 < count)
      code = 0x10000 + ((code - 0xd800) << 10) + (units[++i] - 0xdc00u);
    *size += (long)put_utf8(text + *size, code);
  }
  return text;
}

/* A constant with characters beyond ASCII is converted in place when it is first read. */
static NSString *readable(NSString *string) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  if (__atomic_load_n(&string->flags, __ATOMIC_ACQUIRE) != CONSTANT_UTF16) return string;
  pthread_mutex_lock(&lock);
  if (string->flags == CONSTANT_UTF16) {
    string->bytes = utf8_of((const uint16_t *)string->bytes, string->size, &string->size);
    __atomic_store_n(&string->flags, 0, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return string;
}

static const char *text_of(NSString *string) { return readable(string)->bytes ?: ""; }

const char *softmetal_text(id string, size_t *size) {
  const char *text = text_of(string);
  if (size) *size = (size_t)((NSString *)string)->size;
  return text;
}

static void set_bytes(NSString *string, const char *bytes, size_t size) {
  char *copy = softmetal_allocate(size + 1);
  memcpy(copy, bytes, size);
  free(string->bytes);
  string->bytes = copy;
  string->size = (long)size;
}

static id made(Class class, const char *bytes, size_t size) {
  NSString *string = [class alloc];
  set_bytes(string, bytes, size);
  return string;
}

id softmetal_string(const char *text, size_t size) { return made([NSString class], text, size); }

static id temporary(const char *text, size_t size) {
  return [softmetal_string(text, size) autorelease];
}

static int is_unit(char byte) { return (byte & 0xc0) != 0x80; }
static int is_long(char byte) { return (byte & 0xf8) == 0xf0; } /* two units of UTF-16 */

static NSUInteger units_in(const char *text, size_t size) {
  NSUInteger units = 0;
  for (size_t i = 0; i < size; i++) units += (NSUInteger)(is_unit(text[i]) + is_long(text[i]));
  return units;
}

/* The character at a position, which moves behind it. */
static uint32_t code_at(const unsigned char **at) {
  uint32_t code = *(*at)++;
  int more = code < 0xc0 ? 0 : code < 0xe0 ? 1 : code < 0xf0 ? 2 : 3;
  if (more) code &= 0x3fu >> more;
  for (; more-- && !is_unit((char)**at); ++*at) code = code << 6 | (**at & 63);
  return code;
}

/* A character's first or second unit of UTF-16. */
static unichar unit_of(uint32_t code, NSUInteger which) {
  if (code < 0x10000) return (unichar)code;
  return (unichar)(which ? 0xdc00 + (code & 0x3ff) : 0xd800 + ((code - 0x10000) >> 10));
}

/* The byte at which a unit of UTF-16 begins. */
static size_t byte_of(NSString *string, NSUInteger unit) {
  const char *text = text_of(string);
  NSUInteger seen = 0;
  for (size_t i = 0; i < (size_t)string->size; i++) {
    if (is_unit(text[i]) && seen >= unit) return i;
    seen += (NSUInteger)(is_unit(text[i]) + is_long(text[i]));
  }
  if (unit > seen)
    softmetal_raise("NSRangeException", "index %lu is beyond a string of length %lu", unit, seen);
  return (size_t)string->size;
}

/* ---- formats ---- */

static void write_object(FILE *out, id object) {
  NSString *text = object ? [object description] : @"(null)";
  fwrite(text_of(text), 1, (size_t)text->size, out);
}

static int write_integer(FILE *out, const char *spec, int longs, va_list *values) {
  return longs ? fprintf(out, spec, va_arg(*values, long))
               : fprintf(out, spec, va_arg(*values, int));
}

/* One conversion, from after its `%`; returns where it ends. */
static const char *write_value(FILE *out, const char *at, va_list *values) {
  char spec[64] = "%";
  size_t length = 1;
  int longs = 0;
  for (; *at && !strchr("@diouxXcCsfFeEgGaAp%", *at) && length < sizeof spec - 16; at++) {
    if (*at == '*') {
      length += (size_t)sprintf(spec + length, "%d", va_arg(*values, int));
      continue;
    }
    if (strchr("lzjtq", *at)) longs++;
    spec[length++] = *at == 'q' ? 'l' : *at;
  }
  spec[length] = *at;
  switch (*at) {
  case 0: return at;
  case '%': fputc('%', out); break;
  case '@': write_object(out, va_arg(*values, id)); break;
  case 's':
  case 'p': fprintf(out, spec, va_arg(*values, void *)); break;
  case 'f':
  case 'F':
  case 'e':
  case 'E':
  case 'g':
  case 'G':
  case 'a':
  case 'A': fprintf(out, spec, va_arg(*values, double)); break;
  default: write_integer(out, spec, longs, values);
  }
  return at + 1;
}

static char *formatted(NSString *format, va_list given, size_t *size) {
  char *text = NULL;
  FILE *out = open_memstream(&text, size);
  if (!out) softmetal_fatal("out of memory for a string");
  va_list values;
  va_copy(values, given);
  const char *at = text_of(format);
  while (*at) {
    if (*at != '%')
      fputc(*at++, out);
    else
      at = write_value(out, at + 1, &values);
  }
  va_end(values);
  fclose(out);
  return text;
}

static void take_format(NSString *string, NSString *format, va_list values) {
  size_t size;
  char *text = formatted(format, values, &size);
  set_bytes(string, text, size);
  free(text);
}

void NSLogv(NSString *format, va_list values) {
  size_t size;
  char *text = formatted(format, values, &size);
  fprintf(stderr, "%s\n", text);
  free(text);
}

void NSLog(NSString *format, ...) {
  va_list values;
  va_start(values, format);
  NSLogv(format, values);
  va_end(values);
}

@implementation NSString

+ (instancetype)string {
  return [made(self, "", 0) autorelease];
}
+ (instancetype)stringWithString:(NSString *)text {
  return [made(self, text_of(text), (size_t)text->size) autorelease];
}
+ (instancetype)stringWithUTF8String:(const char *)text {
  return text ? [made(self, text, strlen(text)) autorelease] : nil;
}
+ (instancetype)stringWithCString:(const char *)text encoding:(NSStringEncoding)encoding {
  return text ? [made(self, text, strlen(text)) autorelease] : nil;
}
+ (instancetype)stringWithFormat:(NSString *)format, ... {
  va_list values;
  va_start(values, format);
  NSString *string = [[self alloc] initWithFormat:format arguments:values];
  va_end(values);
  return [string autorelease];
}
+ (instancetype)stringWithContentsOfFile:(NSString *)path
                                encoding:(NSStringEncoding)encoding
                                   error:(NSError **)error {
  NSData *data = [NSData dataWithContentsOfFile:path];
  if (data) return [made(self, [data bytes], [data length]) autorelease];
  NSDictionary *info =
      @{NSLocalizedDescriptionKey : [@"cannot read " stringByAppendingString:path]};
  if (error) *error = [NSError errorWithDomain:NSCocoaErrorDomain code:260 userInfo:info];
  return nil;
}
+ (instancetype)stringWithContentsOfURL:(NSURL *)url
                               encoding:(NSStringEncoding)encoding
                                  error:(NSError **)error {
  return [self stringWithContentsOfFile:[url path] encoding:encoding error:error];
}

- (instancetype)initWithString:(NSString *)text {
  set_bytes(self, text_of(text), (size_t)text->size);
  return self;
}
- (instancetype)initWithUTF8String:(const char *)text {
  set_bytes(self, text, strlen(text));
  return self;
}
- (instancetype)initWithCString:(const char *)text encoding:(NSStringEncoding)encoding {
  return [self initWithUTF8String:text];
}
- (instancetype)initWithBytes:(const void *)bytes
                       length:(NSUInteger)length
                     encoding:(NSStringEncoding)encoding {
  set_bytes(self, bytes, length);
  return self;
}
- (instancetype)initWithBytesNoCopy:(void *)bytes
                             length:(NSUInteger)length
                           encoding:(NSStringEncoding)encoding
                       freeWhenDone:(BOOL)ours {
  set_bytes(self, bytes, length);
  if (ours) free(bytes);
  return self;
}
- (instancetype)initWithData:(NSData *)data encoding:(NSStringEncoding)encoding {
  return [self initWithBytes:[data bytes] length:[data length] encoding:encoding];
}
- (instancetype)initWithFormat:(NSString *)format, ... {
  va_list values;
  va_start(values, format);
  take_format(self, format, values);
  va_end(values);
  return self;
}
- (instancetype)initWithFormat:(NSString *)format arguments:(va_list)values {
  take_format(self, format, values);
  return self;
}
- (void)dealloc {
  free(bytes);
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  if (object_getClass(self) == [NSString class]) return [self retain];
  return softmetal_string(text_of(self), (size_t)size);
}
- (id)mutableCopyWithZone:(NSZone *)zone {
  return made([NSMutableString class], text_of(self), (size_t)readable(self)->size);
}

- (const char *)UTF8String {
  return text_of(self);
}
- (const char *)cStringUsingEncoding:(NSStringEncoding)encoding {
  return text_of(self);
}
- (NSUInteger)length {
  return units_in(text_of(self), (size_t)readable(self)->size);
}
- (NSUInteger)lengthOfBytesUsingEncoding:(NSStringEncoding)encoding {
  return (NSUInteger)readable(self)->size;
}
- (NSUInteger)maximumLengthOfBytesUsingEncoding:(NSStringEncoding)encoding {
  return 3 * [self length];
}
- (NSData *)dataUsingEncoding:(NSStringEncoding)encoding {
  return [NSData dataWithBytes:text_of(self) length:(NSUInteger)size];
}
- (unichar)characterAtIndex:(NSUInteger)index {
  const unsigned char *at = (const unsigned char *)text_of(self), *end = at + size;
  for (NSUInteger unit = 0; at < end;) {
    uint32_t code = code_at(&at);
    NSUInteger units = code < 0x10000 ? 1 : 2;
    if (index < unit + units) return unit_of(code, index - unit);
    unit += units;
  }
  softmetal_raise("NSRangeException", "index %lu is beyond a string of length %lu", index,
                  [self length]);
}
- (NSUInteger)hash {
  NSUInteger hash = 5381;
  for (const char *at = text_of(self); *at; at++) hash = hash * 33 + (unsigned char)*at;
  return hash;
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSString class]] && [self isEqualToString:object];
}
- (BOOL)isEqualToString:(NSString *)other {
  if (!other) return NO;
  const char *mine = text_of(self), *theirs = text_of(other);
  return size == other->size && !memcmp(mine, theirs, (size_t)size);
}
- (NSComparisonResult)compare:(NSString *)other {
  int order = strcmp(text_of(self), text_of(other));
  return order < 0 ? NSOrderedAscending : order > 0 ? NSOrderedDescending : NSOrderedSame;
}
- (BOOL)hasPrefix:(NSString *)text {
  return !strncmp(text_of(self), text_of(text), (size_t)readable(text)->size);
}
- (BOOL)hasSuffix:(NSString *)text {
  long length = readable(text)->size;
  return readable(self)->size >= length && !strcmp(text_of(self) + size - length, text_of(text));
}
- (BOOL)containsString:(NSString *)text {
  return strstr(text_of(self), text_of(text)) != NULL;
}
- (NSRange)rangeOfString:(NSString *)text {
  const char *mine = text_of(self), *found = strstr(mine, text_of(text));
  if (!found || !text->size) return NSMakeRange(NSNotFound, 0);
  return NSMakeRange(units_in(mine, (size_t)(found - mine)), [text length]);
}
- (NSString *)substringWithRange:(NSRange)range {
  size_t start = byte_of(self, range.location), end = byte_of(self, NSMaxRange(range));
  return temporary(text_of(self) + start, end - start);
}
- (NSString *)substringFromIndex:(NSUInteger)index {
  return temporary(text_of(self) + byte_of(self, index), (size_t)size - byte_of(self, index));
}
- (NSString *)substringToIndex:(NSUInteger)index {
  return temporary(text_of(self), byte_of(self, index));
}
- (NSString *)stringByAppendingString:(NSString *)text {
  return [NSString stringWithFormat:@"%@%@", self, text];
}
- (NSString *)stringByAppendingFormat:(NSString *)format, ... {
  va_list values;
  va_start(values, format);
  NSString *text = [[[NSString alloc] initWithFormat:format arguments:values] autorelease];
  va_end(values);
  return [self stringByAppendingString:text];
}
- (NSString *)stringByReplacingOccurrencesOfString:(NSString *)text withString:(NSString *)with {
  return [[self componentsSeparatedByString:text] componentsJoinedByString:with];
}
- (NSArray *)componentsSeparatedByString:(NSString *)separator {
  NSMutableArray *parts = [NSMutableArray array];
  const char *at = text_of(self), *found;
  const char *between = text_of(separator);
  while (separator->size && (found = strstr(at, between))) {
    [parts addObject:temporary(at, (size_t)(found - at))];
    at = found + separator->size;
  }
  [parts addObject:temporary(at, strlen(at))];
  return parts;
}
- (NSString *)changedBy:(int (*)(int))change {
  NSString *copy = temporary(text_of(self), (size_t)readable(self)->size);
  for (char *at = copy->bytes; *at; at++)
    if (*at > 0) *at = (char)change(*at);
  return copy;
}
- (NSString *)lowercaseString {
  return [self changedBy:tolower];
}
- (NSString *)uppercaseString {
  return [self changedBy:toupper];
}

- (NSString *)lastPathComponent {
  const char *text = text_of(self), *slash = strrchr(text, '/');
  return [NSString stringWithUTF8String:slash && slash[1] ? slash + 1 : text];
}
- (NSString *)pathExtension {
  const char *name = [[self lastPathComponent] UTF8String], *dot = strrchr(name, '.');
  return [NSString stringWithUTF8String:dot && dot != name ? dot + 1 : ""];
}
- (NSString *)stringByDeletingLastPathComponent {
  const char *text = text_of(self), *slash = strrchr(text, '/');
  if (!slash) return @"";
  return temporary(text, slash == text ? 1 : (size_t)(slash - text));
}
- (NSString *)stringByDeletingPathExtension {
  long extension = readable([self pathExtension])->size;
  return temporary(text_of(self),
                   (size_t)(extension ? size - extension - 1 : readable(self)->size));
}
- (NSString *)stringByAppendingPathComponent:(NSString *)name {
  if (!readable(self)->size) return [NSString stringWithString:name];
  return [NSString stringWithFormat:[self hasSuffix:@"/"] ? @"%@%@" : @"%@/%@", self, name];
}
- (NSString *)stringByAppendingPathExtension:(NSString *)extension {
  return [NSString stringWithFormat:@"%@.%@", self, extension];
}

- (int)intValue {
  return atoi(text_of(self));
}
- (NSInteger)integerValue {
  return atol(text_of(self));
}
- (long long)longLongValue {
  return atoll(text_of(self));
}
- (float)floatValue {
  return strtof(text_of(self), NULL);
}
- (double)doubleValue {
  return strtod(text_of(self), NULL);
}
- (BOOL)boolValue {
  return strchr("YyTt123456789", *text_of(self)) && size;
}
- (NSString *)description {
  return self;
}
- (BOOL)writeToFile:(NSString *)path
         atomically:(BOOL)atomically
           encoding:(NSStringEncoding)encoding
              error:(NSError **)error {
  return [[self dataUsingEncoding:encoding] writeToFile:path atomically:atomically];
}

@end

@implementation NSMutableString
- (id)copyWithZone:(NSZone *)zone {
  return softmetal_string(bytes ?: "", (size_t)size);
}
- (void)setString:(NSString *)text {
  set_bytes(self, text_of(text), (size_t)text->size);
}
- (void)appendString:(NSString *)text {
  size_t length = (size_t)readable(text)->size;
  bytes = realloc(bytes, (size_t)size + length + 1);
  if (!bytes) softmetal_fatal("out of memory for a string");
  memcpy(bytes + size, text_of(text), length); /* the text may be this one */
  size += (long)length;
  bytes[size] = 0;
}
- (void)appendFormat:(NSString *)format, ... {
  va_list values;
  va_start(values, format);
  NSString *text = [[NSString alloc] initWithFormat:format arguments:values];
  va_end(values);
  [self appendString:text];
  [text release];
}
@end

NSString *NSStringFromClass(Class class) {
  return class ? [NSString stringWithUTF8String:class_getName(class)] : nil;
}
NSString *NSStringFromSelector(SEL selector) {
  return selector ? [NSString stringWithUTF8String:sel_getName(selector)] : nil;
}
Class NSClassFromString(NSString *name) { return name ? objc_lookUpClass([name UTF8String]) : Nil; }
SEL NSSelectorFromString(NSString *name) {
  return name ? sel_registerName([name UTF8String]) : NULL;
}
