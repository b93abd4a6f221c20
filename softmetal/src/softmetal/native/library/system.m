/* The process, files, locks, threads, dates and pools. */
#include "native.h"

#import <Foundation/Foundation.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysctl.h>
#include <time.h>

static NSString *string(const char *text) { return [NSString stringWithUTF8String:text]; }

static NSString *link_target(const char *path) {
  char target[PATH_MAX];
  ssize_t length = readlink(path, target, sizeof target - 1);
  if (length < 0) return nil;
  target[length] = 0;
  return string(target);
}

static BOOL report(BOOL done, NSString *path, NSError **error) {
  if (done || !error) return done;
  NSString *text = [NSString stringWithFormat:@"%@: %s", path, strerror(errno)];
  *error = [NSError errorWithDomain:NSPOSIXErrorDomain
                               code:errno
                           userInfo:@{NSLocalizedDescriptionKey : text}];
  return NO;
}

/* ---- bundles: a program's resources are beside it ---- */

@interface NSBundle () {
  NSString *_path;
}
@end

@implementation NSBundle
+ (NSBundle *)mainBundle {
  return [self bundleWithPath:[link_target("/proc/self/exe") stringByDeletingLastPathComponent]];
}
+ (NSBundle *)bundleForClass:(Class)kind {
  return [self mainBundle];
}
+ (NSBundle *)bundleWithPath:(NSString *)path {
  NSBundle *bundle = [[self alloc] init];
  bundle->_path = [path copy];
  return [bundle autorelease];
}
- (void)dealloc {
  [_path release];
  [super dealloc];
}
- (NSString *)bundlePath {
  return _path;
}
- (NSString *)resourcePath {
  return _path;
}
- (NSString *)executablePath {
  return link_target("/proc/self/exe");
}
- (NSString *)bundleIdentifier {
  return nil;
}
- (NSURL *)bundleURL {
  return [NSURL fileURLWithPath:_path];
}
- (NSURL *)resourceURL {
  return [NSURL fileURLWithPath:_path];
}
- (NSString *)pathForResource:(NSString *)name ofType:(NSString *)extension {
  NSString *path = [_path stringByAppendingPathComponent:name];
  if ([extension length]) path = [path stringByAppendingPathExtension:extension];
  return access([path UTF8String], R_OK) ? nil : path;
}
- (NSURL *)URLForResource:(NSString *)name withExtension:(NSString *)extension {
  NSString *path = [self pathForResource:name ofType:extension];
  return path ? [NSURL fileURLWithPath:path] : nil;
}
- (id)objectForInfoDictionaryKey:(NSString *)key {
  return nil;
}
@end

/* ---- the process ---- */

@implementation NSProcessInfo
+ (NSProcessInfo *)processInfo {
  return [[[self alloc] init] autorelease];
}
- (NSArray *)arguments {
  NSData *data = [NSData dataWithContentsOfFile:@"/proc/self/cmdline"];
  NSMutableArray *arguments = [NSMutableArray array];
  const char *at = [data bytes], *end = at + [data length];
  for (; at < end; at += strlen(at) + 1) [arguments addObject:string(at)];
  return arguments;
}
- (NSDictionary *)environment {
  NSMutableDictionary *all = [NSMutableDictionary dictionary];
  for (char **each = environ; *each; each++) {
    const char *equals = strchr(*each, '=');
    if (!equals) continue;
    NSString *name = [[NSString alloc] initWithBytes:*each
                                              length:(NSUInteger)(equals - *each)
                                            encoding:NSUTF8StringEncoding];
    [all setObject:string(equals + 1) forKey:[name autorelease]];
  }
  return all;
}
- (NSString *)processName {
  return [link_target("/proc/self/exe") lastPathComponent];
}
- (NSString *)hostName {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return string(name);
}
- (int)processIdentifier {
  return getpid();
}
- (NSUInteger)processorCount {
  return (NSUInteger)sysconf(_SC_NPROCESSORS_ONLN);
}
- (NSUInteger)activeProcessorCount {
  return [self processorCount];
}
- (unsigned long long)physicalMemory {
  return (unsigned long long)sysconf(_SC_PHYS_PAGES) * (unsigned long long)sysconf(_SC_PAGESIZE);
}
- (NSTimeInterval)systemUptime {
  return (double)mach_absolute_time() * 1e-9;
}
- (NSOperatingSystemVersion)operatingSystemVersion {
  return (NSOperatingSystemVersion){15, 0, 0};
}
- (NSString *)operatingSystemVersionString {
  return @"Version 15.0 (softmetal)";
}
- (BOOL)isOperatingSystemAtLeastVersion:(NSOperatingSystemVersion)version {
  return version.majorVersion < 15 ||
         (version.majorVersion == 15 && version.minorVersion == 0 && version.patchVersion == 0);
}
- (BOOL)isLowPowerModeEnabled {
  return NO;
}
- (NSInteger)thermalState {
  return 0;
}
@end

/* What clang's `@available` and `__builtin_available` call where a target has versions. */
int __isPlatformVersionAtLeast(uint32_t platform, uint32_t major, uint32_t minor, uint32_t patch) {
  return major < 15 || (major == 15 && !minor && !patch);
}

static int answer(const void *from, size_t length, void *value, size_t *size) {
  if (value && *size < length) return errno = ENOMEM, -1;
  if (value) memcpy(value, from, length);
  *size = length;
  return 0;
}

int sysctlbyname(const char *name, void *value, size_t *size, void *new_value, size_t new_size) {
  static const char *counts[] = {"hw.ncpu",
                                 "hw.logicalcpu",
                                 "hw.physicalcpu",
                                 "hw.activecpu",
                                 "hw.perflevel0.physicalcpu",
                                 "hw.perflevel0.logicalcpu"};
  uint64_t memory = [[NSProcessInfo processInfo] physicalMemory];
  int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (!strcmp(name, "hw.memsize")) return answer(&memory, sizeof memory, value, size);
  if (!strcmp(name, "hw.model")) return answer("softmetal", sizeof "softmetal", value, size);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    if (!strcmp(name, counts[i])) return answer(&processors, sizeof processors, value, size);
  softmetal_missing("sysctl", "-", name);
  return errno = ENOENT, -1;
}

int sysctl(int *name, unsigned count, void *value, size_t *size, void *new_value, size_t new_size) {
  if (count == 2 && name[0] == CTL_HW && name[1] == HW_MEMSIZE)
    return sysctlbyname("hw.memsize", value, size, NULL, 0);
  return errno = ENOENT, -1;
}

/* ---- files ---- */

NSFileAttributeKey const NSFileType = @"NSFileType";
NSFileAttributeKey const NSFileSize = @"NSFileSize";
NSString *const NSFileTypeSymbolicLink = @"NSFileTypeSymbolicLink";
NSString *const NSFileTypeDirectory = @"NSFileTypeDirectory";
NSString *const NSFileTypeRegular = @"NSFileTypeRegular";

@implementation NSFileManager
+ (NSFileManager *)defaultManager {
  return [[[self alloc] init] autorelease];
}
- (NSString *)currentDirectoryPath {
  char here[PATH_MAX];
  return getcwd(here, sizeof here) ? string(here) : nil;
}
- (BOOL)fileExistsAtPath:(NSString *)path {
  return !access([path UTF8String], F_OK);
}
- (BOOL)fileExistsAtPath:(NSString *)path isDirectory:(BOOL *)directory {
  /* not stat: before glibc 2.33 it is a function of the program's, not of libc.so */
  DIR *folder = opendir([path UTF8String]);
  if (directory) *directory = folder != NULL;
  if (folder) closedir(folder);
  return folder || [self fileExistsAtPath:path];
}
- (BOOL)isReadableFileAtPath:(NSString *)path {
  return !access([path UTF8String], R_OK);
}
- (NSDictionary *)attributesOfItemAtPath:(NSString *)path error:(NSError **)error {
  const char *name = [path UTF8String];
  BOOL directory = NO;
  if (!report(!access(name, F_OK) || link_target(name), path, error)) return nil;
  [self fileExistsAtPath:path isDirectory:&directory];
  NSString *type = link_target(name) ? NSFileTypeSymbolicLink
                   : directory       ? NSFileTypeDirectory
                                     : NSFileTypeRegular;
  int file = open(name, O_RDONLY);
  off_t size = file < 0 ? 0 : lseek(file, 0, SEEK_END);
  if (file >= 0) close(file);
  return @{NSFileType : type, NSFileSize : @(size)};
}
- (BOOL)removeItemAtPath:(NSString *)path error:(NSError **)error {
  return report(!remove([path UTF8String]), path, error);
}
- (BOOL)createDirectoryAtPath:(NSString *)path
    withIntermediateDirectories:(BOOL)intermediate
                     attributes:(NSDictionary *)attributes
                          error:(NSError **)error {
  if (intermediate && [self fileExistsAtPath:path]) return YES;
  NSString *above = [path stringByDeletingLastPathComponent];
  if (intermediate && [above length] && ![self fileExistsAtPath:above] &&
      ![self createDirectoryAtPath:above
          withIntermediateDirectories:YES
                           attributes:attributes
                                error:error])
    return NO;
  return report(!mkdir([path UTF8String], 0777), path, error);
}
- (NSString *)destinationOfSymbolicLinkAtPath:(NSString *)path error:(NSError **)error {
  NSString *target = link_target([path UTF8String]);
  report(target != nil, path, error);
  return target;
}
@end

NSString *NSTemporaryDirectory(void) { return string(getenv("TMPDIR") ?: "/tmp"); }
NSString *NSHomeDirectory(void) { return string(getenv("HOME") ?: "/"); }

/* ---- locks ---- */

@interface NSLock () {
@public
  pthread_mutex_t mutex;
  pthread_cond_t condition;
}
@end

@implementation NSLock
- (instancetype)init {
  pthread_mutex_init(&mutex, NULL);
  pthread_cond_init(&condition, NULL);
  return self;
}
- (void)dealloc {
  pthread_mutex_destroy(&mutex);
  pthread_cond_destroy(&condition);
  [super dealloc];
}
- (void)lock {
  pthread_mutex_lock(&mutex);
}
- (BOOL)tryLock {
  return !pthread_mutex_trylock(&mutex);
}
- (void)unlock {
  pthread_mutex_unlock(&mutex);
}
@end

@implementation NSRecursiveLock
- (instancetype)init {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&mutex, &recursive);
  pthread_cond_init(&condition, NULL);
  return self;
}
@end

@implementation NSCondition
- (void)wait {
  pthread_cond_wait(&condition, &mutex);
}
- (void)signal {
  pthread_cond_signal(&condition);
}
- (void)broadcast {
  pthread_cond_broadcast(&condition);
}
@end

@interface NSThread () {
  void (^_block)(void);
  id _target, _argument;
  SEL _selector;
  _Atomic BOOL _finished;
}
- (void)finish;
@end

static void *run_thread(void *thread) {
  void *pool = objc_autoreleasePoolPush();
  [(NSThread *)thread main];
  [(NSThread *)thread finish];
  objc_autoreleasePoolPop(pool);
  [(NSThread *)thread release];
  return NULL;
}

@implementation NSThread
@synthesize name = _name;
+ (BOOL)isMainThread {
  return getpid() == syscall(SYS_gettid);
}
+ (void)detachNewThreadWithBlock:(void (^)(void))block {
  [[[[self alloc] initWithBlock:block] autorelease] start];
}
+ (void)detachNewThreadSelector:(SEL)selector toTarget:(id)target withObject:(id)argument {
  [[[[self alloc] initWithTarget:target selector:selector object:argument] autorelease] start];
}
- (instancetype)initWithBlock:(void (^)(void))block {
  _block = [block copy];
  return self;
}
- (instancetype)initWithTarget:(id)target selector:(SEL)selector object:(id)argument {
  _target = [target retain];
  _argument = [argument retain];
  _selector = selector;
  return self;
}
- (void)dealloc {
  [_block release];
  [_target release];
  [_argument release];
  [_name release];
  [super dealloc];
}
- (void)main {
  if (_block) _block();
  if (_target) [_target performSelector:_selector withObject:_argument];
}
- (void)finish {
  _finished = YES;
}
- (BOOL)isFinished {
  return _finished;
}
- (void)start {
  pthread_t thread;
  int failed = pthread_create(&thread, NULL, run_thread, [self retain]);
  if (failed) softmetal_fatal("cannot start an NSThread: %s", strerror(failed));
  pthread_detach(thread);
}
+ (void)sleepForTimeInterval:(NSTimeInterval)seconds {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&time, NULL);
}
@end

/* ---- dates ---- */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

@interface NSDate () {
  double _seconds; /* since 1970 */
}
@end

@implementation NSDate
+ (instancetype)date {
  return [self dateWithTimeIntervalSinceNow:0];
}
+ (instancetype)dateWithTimeIntervalSinceNow:(NSTimeInterval)seconds {
  NSDate *date = [[self alloc] init];
  date->_seconds += seconds;
  return [date autorelease];
}
- (instancetype)init {
  _seconds = now();
  return self;
}
- (id)copyWithZone:(NSZone *)zone {
  return [self retain];
}
- (NSTimeInterval)timeIntervalSince1970 {
  return _seconds;
}
- (NSTimeInterval)timeIntervalSinceReferenceDate {
  return _seconds - 978307200; /* the beginning of 2001 */
}
- (NSTimeInterval)timeIntervalSinceNow {
  return _seconds - now();
}
- (NSTimeInterval)timeIntervalSinceDate:(NSDate *)other {
  return _seconds - other->_seconds;
}
@end

/* ---- pools as objects ---- */

@interface NSAutoreleasePool () {
  void *_token;
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
  _token = objc_autoreleasePoolPush();
  return self;
}
- (void)drain {
  void *token = _token;
  softmetal_free(self);
  objc_autoreleasePoolPop(token);
}
- (oneway void)release {
  [self drain];
}
- (void)addObject:(id)object {
  objc_autorelease(object);
}
+ (void)showPools {
}
@end
