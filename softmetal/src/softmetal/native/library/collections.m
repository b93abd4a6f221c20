/* Arrays, dictionaries, sets and their enumeration. */
#include "native.h"

#import <Foundation/Foundation.h>

static id fresh(Class class) { return [[class alloc] init]; }

@interface NSArray () {
@public
  id *items;
  NSUInteger used, room;
  unsigned long changes;
}
@end

static void append(NSArray *array, id taken) {
  if (!taken) softmetal_raise("NSInvalidArgumentException", "nil cannot be an element of an array");
  if (array->used == array->room) {
    array->room = array->room ? 2 * array->room : 8;
    array->items = realloc(array->items, array->room * sizeof(id));
    if (!array->items) softmetal_fatal("out of memory for an array");
  }
  array->items[array->used++] = taken;
  array->changes++;
}

static void check_index(NSArray *array, NSUInteger index) {
  if (index >= array->used)
    softmetal_raise("NSRangeException", "index %lu is beyond an array of %lu objects", index,
                    array->used);
}

static void remove_at(NSArray *array, NSUInteger index) {
  check_index(array, index);
  id removed = array->items[index];
  array->used--;
  memmove(array->items + index, array->items + index + 1, (array->used - index) * sizeof(id));
  array->changes++;
  [removed release];
}

id softmetal_array(id *taken, size_t count) {
  NSArray *array = fresh([NSArray class]);
  for (size_t i = 0; i < count; i++) append(array, taken[i]);
  return array;
}

/* Hands out everything that `array` has at once. */
static NSUInteger enumerate(NSArray *array, NSFastEnumerationState *state) {
  if (state->state || !array->used) return 0;
  state->state = 1;
  state->itemsPtr = array->items;
  state->mutationsPtr = &array->changes;
  return array->used;
}

@interface NSEnumerator () {
  NSArray *all;
  NSUInteger next;
}
- (instancetype)initWithArray:(NSArray *)array;
@end

@implementation NSArray

+ (instancetype)array {
  return [fresh(self) autorelease];
}
+ (instancetype)arrayWithObject:(id)object {
  return [self arrayWithObjects:&object count:1];
}
+ (instancetype)arrayWithObjects:(id)first, ... {
  NSArray *array = fresh(self);
  va_list values;
  va_start(values, first);
  for (id each = first; each; each = va_arg(values, id)) append(array, [each retain]);
  va_end(values);
  return [array autorelease];
}
+ (instancetype)arrayWithObjects:(const id[])objects count:(NSUInteger)count {
  return [[[self alloc] initWithObjects:objects count:count] autorelease];
}
+ (instancetype)arrayWithArray:(NSArray *)other {
  return [[[self alloc] initWithArray:other] autorelease];
}
- (instancetype)initWithObjects:(const id[])objects count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; i++) append(self, [objects[i] retain]);
  return self;
}
- (instancetype)initWithArray:(NSArray *)other {
  return other ? [self initWithObjects:other->items count:other->used] : self;
}
- (void)dealloc {
  for (NSUInteger i = 0; i < used; i++) [items[i] release];
  free(items);
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  if (object_getClass(self) == [NSArray class]) return [self retain];
  return [[NSArray alloc] initWithArray:self];
}
- (id)mutableCopyWithZone:(NSZone *)zone {
  return [[NSMutableArray alloc] initWithArray:self];
}
- (NSUInteger)count {
  return used;
}
- (id)objectAtIndex:(NSUInteger)index {
  check_index(self, index);
  return items[index];
}
- (id)objectAtIndexedSubscript:(NSUInteger)index {
  return [self objectAtIndex:index];
}
- (id)object:(NSUInteger)index {
  return [self objectAtIndex:index];
}
- (id)firstObject {
  return used ? items[0] : nil;
}
- (id)lastObject {
  return used ? items[used - 1] : nil;
}
- (NSUInteger)indexOfObject:(id)object {
  for (NSUInteger i = 0; i < used; i++)
    if (items[i] == object || [items[i] isEqual:object]) return i;
  return NSNotFound;
}
- (BOOL)containsObject:(id)object {
  return [self indexOfObject:object] != NSNotFound;
}
- (NSUInteger)hash {
  return used;
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSArray class]] && [self isEqualToArray:object];
}
- (BOOL)isEqualToArray:(NSArray *)other {
  if (!other || used != other->used) return NO;
  for (NSUInteger i = 0; i < used; i++)
    if (![items[i] isEqual:other->items[i]]) return NO;
  return YES;
}
- (NSArray *)arrayByAddingObject:(id)object {
  NSArray *array = [[NSArray alloc] initWithArray:self];
  append(array, [object retain]);
  return [array autorelease];
}
- (NSString *)componentsJoinedByString:(NSString *)separator {
  NSMutableString *text = [NSMutableString string];
  for (NSUInteger i = 0; i < used; i++) {
    if (i) [text appendString:separator];
    [text appendString:[items[i] description]];
  }
  return text;
}
- (NSEnumerator *)objectEnumerator {
  return [[[NSEnumerator alloc] initWithArray:self] autorelease];
}
- (void)enumerateObjectsUsingBlock:(void (^)(id object, NSUInteger index, BOOL *stop))block {
  BOOL stop = NO;
  for (NSUInteger i = 0; i < used && !stop; i++) block(items[i], i, &stop);
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id *)objects
                                    count:(NSUInteger)count {
  return enumerate(self, state);
}
- (NSString *)description {
  return [NSString stringWithFormat:@"(%@)", [self componentsJoinedByString:@", "]];
}

@end

@implementation NSMutableArray

+ (instancetype)arrayWithCapacity:(NSUInteger)capacity {
  return [self array];
}
- (instancetype)initWithCapacity:(NSUInteger)capacity {
  return self;
}
- (void)addObject:(id)object {
  append(self, [object retain]);
}
- (void)addObjectsFromArray:(NSArray *)other {
  for (NSUInteger i = 0, count = [other count]; i < count; i++)
    append(self, [other->items[i] retain]);
}
- (void)insertObject:(id)object atIndex:(NSUInteger)index {
  append(self, [object retain]);
  check_index(self, index);
  memmove(items + index + 1, items + index, (used - 1 - index) * sizeof(id));
  items[index] = object;
}
- (void)replaceObjectAtIndex:(NSUInteger)index withObject:(id)object {
  check_index(self, index);
  id before = items[index];
  items[index] = [object retain];
  [before release];
}
- (void)setObject:(id)object atIndexedSubscript:(NSUInteger)index {
  if (index == used)
    [self addObject:object];
  else
    [self replaceObjectAtIndex:index withObject:object];
}
- (void)removeObject:(id)object {
  for (NSUInteger i = used; i-- > 0;)
    if ([items[i] isEqual:object]) remove_at(self, i);
}
- (void)removeObjectAtIndex:(NSUInteger)index {
  remove_at(self, index);
}
- (void)removeLastObject {
  remove_at(self, used - 1);
}
- (void)removeAllObjects {
  while (used) remove_at(self, used - 1);
}

@end

@implementation NSEnumerator
- (instancetype)initWithArray:(NSArray *)array {
  all = [array retain];
  return self;
}
- (void)dealloc {
  [all release];
  [super dealloc];
}
- (id)nextObject {
  return next < [all count] ? [all objectAtIndex:next++] : nil;
}
- (NSArray *)allObjects {
  NSMutableArray *rest = [NSMutableArray array];
  for (id each; (each = [self nextObject]);) [rest addObject:each];
  return rest;
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id *)objects
                                    count:(NSUInteger)count {
  return enumerate(all, state);
}
@end

/* ---- dictionaries: keys and values in order of insertion, found through a table of hashes ---- */

@interface NSDictionary () {
@public
  NSMutableArray *keys, *values;
  uint32_t *table; /* index of a key + 1; 0 is free */
  NSUInteger slots;
}
@end

static void rebuild(NSDictionary *dictionary, NSUInteger slots) {
  free(dictionary->table);
  dictionary->table = softmetal_allocate(slots * sizeof *dictionary->table);
  dictionary->slots = slots;
  for (NSUInteger i = 0, count = [dictionary->keys count]; i < count; i++) {
    NSUInteger at = [[dictionary->keys objectAtIndex:i] hash] % slots;
    while (dictionary->table[at]) at = (at + 1) % slots;
    dictionary->table[at] = (uint32_t)i + 1;
  }
}

static NSUInteger find(NSDictionary *dictionary, id key) {
  if (!key || !dictionary->slots) return NSNotFound;
  for (NSUInteger at = [key hash] % dictionary->slots; dictionary->table[at];
       at = (at + 1) % dictionary->slots) {
    NSUInteger index = dictionary->table[at] - 1;
    id known = [dictionary->keys objectAtIndex:index];
    if (known == key || [known isEqual:key]) return index;
  }
  return NSNotFound;
}

static void put(NSDictionary *dictionary, id key, id value) {
  if (!key || !value)
    softmetal_raise("NSInvalidArgumentException", "nil cannot be a key or a value of a dictionary");
  if (!dictionary->keys) {
    dictionary->keys = fresh([NSMutableArray class]);
    dictionary->values = fresh([NSMutableArray class]);
  }
  NSUInteger known = find(dictionary, key);
  if (known != NSNotFound) {
    [dictionary->values replaceObjectAtIndex:known withObject:value];
    return;
  }
  id copy = [key copy];
  [dictionary->keys addObject:copy];
  [copy release];
  [dictionary->values addObject:value];
  NSUInteger count = [dictionary->keys count];
  if (2 * count > dictionary->slots) {
    rebuild(dictionary, dictionary->slots ? 4 * dictionary->slots : 16);
    return;
  }
  NSUInteger at = [key hash] % dictionary->slots;
  while (dictionary->table[at]) at = (at + 1) % dictionary->slots;
  dictionary->table[at] = (uint32_t)count;
}

id softmetal_dictionary(id *taken_keys, id *taken_values, size_t count) {
  NSDictionary *dictionary = fresh([NSDictionary class]);
  for (size_t i = 0; i < count; i++) {
    put(dictionary, taken_keys[i], taken_values[i]);
    [taken_keys[i] release];
    [taken_values[i] release];
  }
  return dictionary;
}

@implementation NSDictionary

+ (instancetype)dictionary {
  return [fresh(self) autorelease];
}
+ (instancetype)dictionaryWithObject:(id)object forKey:(id)key {
  return [self dictionaryWithObjects:&object forKeys:&key count:1];
}
+ (instancetype)dictionaryWithObjects:(const id[])objects
                              forKeys:(const id[])keys
                                count:(NSUInteger)count {
  return [[[self alloc] initWithObjects:objects forKeys:keys count:count] autorelease];
}
+ (instancetype)dictionaryWithObjectsAndKeys:(id)first, ... {
  NSDictionary *dictionary = fresh(self);
  va_list rest;
  va_start(rest, first);
  for (id value = first; value; value = va_arg(rest, id)) put(dictionary, va_arg(rest, id), value);
  va_end(rest);
  return [dictionary autorelease];
}
+ (instancetype)dictionaryWithDictionary:(NSDictionary *)other {
  return [[[self alloc] initWithDictionary:other] autorelease];
}
- (instancetype)initWithObjects:(const id[])objects
                        forKeys:(const id[])given
                          count:(NSUInteger)count {
  for (NSUInteger i = 0; i < count; i++) put(self, given[i], objects[i]);
  return self;
}
- (instancetype)initWithDictionary:(NSDictionary *)other {
  for (NSUInteger i = 0, count = [other count]; i < count; i++)
    put(self, [other->keys objectAtIndex:i], [other->values objectAtIndex:i]);
  return self;
}
- (void)dealloc {
  [keys release];
  [values release];
  free(table);
  [super dealloc];
}
- (id)copyWithZone:(NSZone *)zone {
  if (object_getClass(self) == [NSDictionary class]) return [self retain];
  return [[NSDictionary alloc] initWithDictionary:self];
}
- (id)mutableCopyWithZone:(NSZone *)zone {
  return [[NSMutableDictionary alloc] initWithDictionary:self];
}
- (NSUInteger)count {
  return [keys count];
}
- (id)objectForKey:(id)key {
  NSUInteger index = find(self, key);
  return index == NSNotFound ? nil : [values objectAtIndex:index];
}
- (id)objectForKeyedSubscript:(id)key {
  return [self objectForKey:key];
}
- (NSArray *)allKeys {
  return [NSArray arrayWithArray:keys];
}
- (NSArray *)allValues {
  return [NSArray arrayWithArray:values];
}
- (NSUInteger)hash {
  return [self count];
}
- (BOOL)isEqual:(id)object {
  return [object isKindOfClass:[NSDictionary class]] && [self isEqualToDictionary:object];
}
- (BOOL)isEqualToDictionary:(NSDictionary *)other {
  if (!other || [self count] != [other count]) return NO;
  for (NSUInteger i = 0; i < [self count]; i++)
    if (![[values objectAtIndex:i] isEqual:[other objectForKey:[keys objectAtIndex:i]]]) return NO;
  return YES;
}
- (NSEnumerator *)keyEnumerator {
  return [[self allKeys] objectEnumerator];
}
- (NSEnumerator *)objectEnumerator {
  return [[self allValues] objectEnumerator];
}
- (void)enumerateKeysAndObjectsUsingBlock:(void (^)(id key, id object, BOOL *stop))block {
  BOOL stop = NO;
  for (NSUInteger i = 0; i < [keys count] && !stop; i++)
    block([keys objectAtIndex:i], [values objectAtIndex:i], &stop);
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id *)objects
                                    count:(NSUInteger)count {
  return keys ? enumerate(keys, state) : 0;
}
- (NSString *)description {
  NSMutableArray *lines = [NSMutableArray array];
  for (NSUInteger i = 0; i < [keys count]; i++) {
    id key = [keys objectAtIndex:i];
    [lines addObject:[NSString stringWithFormat:@"%@ = %@;", key, [values objectAtIndex:i]]];
  }
  return [NSString stringWithFormat:@"{%@}", [lines componentsJoinedByString:@" "]];
}

@end

@implementation NSMutableDictionary

+ (instancetype)dictionaryWithCapacity:(NSUInteger)capacity {
  return [self dictionary];
}
- (instancetype)initWithCapacity:(NSUInteger)capacity {
  return self;
}
- (void)setObject:(id)object forKey:(id)key {
  put(self, key, object);
}
- (void)setObject:(id)object forKeyedSubscript:(id)key {
  if (object)
    put(self, key, object);
  else
    [self removeObjectForKey:key];
}
- (void)removeObjectForKey:(id)key {
  NSUInteger index = find(self, key);
  if (index == NSNotFound) return;
  [keys removeObjectAtIndex:index];
  [values removeObjectAtIndex:index];
  rebuild(self, slots);
}
- (void)removeAllObjects {
  [keys removeAllObjects];
  [values removeAllObjects];
  if (slots) rebuild(self, slots);
}

@end

@interface NSSet () {
@public
  NSMutableDictionary *members;
}
@end

@implementation NSSet
+ (instancetype)set {
  return [fresh(self) autorelease];
}
+ (instancetype)setWithObject:(id)object {
  return [self setWithArray:[NSArray arrayWithObject:object]];
}
+ (instancetype)setWithArray:(NSArray *)objects {
  NSSet *set = fresh(self);
  for (id each in objects) put(set->members, each, each);
  return [set autorelease];
}
- (instancetype)init {
  members = fresh([NSMutableDictionary class]);
  return self;
}
- (instancetype)initWithObjects:(const id[])objects count:(NSUInteger)count {
  members = fresh([NSMutableDictionary class]);
  for (NSUInteger i = 0; i < count; i++) put(members, objects[i], objects[i]);
  return self;
}
- (void)dealloc {
  [members release];
  [super dealloc];
}
- (NSUInteger)count {
  return [members count];
}
- (NSArray *)allObjects {
  return [members allValues];
}
- (BOOL)containsObject:(id)object {
  return [members objectForKey:object] != nil;
}
- (NSEnumerator *)objectEnumerator {
  return [members objectEnumerator];
}
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id *)objects
                                    count:(NSUInteger)count {
  return members->values ? enumerate(members->values, state) : 0;
}
@end

@implementation NSMutableSet
- (void)addObject:(id)object {
  put(members, object, object);
}
- (void)removeObject:(id)object {
  [members removeObjectForKey:object];
}
@end

/* What clang takes for `@[]` and `@{}`. */
id __NSArray0__, __NSDictionary0__;

__attribute__((constructor(102))) static void make_empty_literals(void) {
  __NSArray0__ = fresh([NSArray class]);
  __NSDictionary0__ = fresh([NSDictionary class]);
}
