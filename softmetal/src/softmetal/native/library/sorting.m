/* Arrays in order. Objects that compare as equal keep their order. */
#include "native.h"

#import <Foundation/Foundation.h>

static void merge(id *objects, id *room, NSUInteger count, NSComparator compare) {
  if (count < 2) return;
  NSUInteger half = count / 2, left = 0, right = half;
  merge(objects, room, half, compare);
  merge(objects + half, room, count - half, compare);
  for (NSUInteger i = 0; i < count; i++) {
    int first = right == count ||
                (left < half && compare(objects[left], objects[right]) != NSOrderedDescending);
    room[i] = objects[first ? left++ : right++];
  }
  memcpy(objects, room, count * sizeof *objects);
}

static NSComparator by_message(SEL selector) {
  NSComparator compare = ^NSComparisonResult(id a, id b) {
    return ((NSComparisonResult (*)(id, SEL, id))softmetal_lookup(a, selector))(a, selector, b);
  };
  return [[compare copy] autorelease];
}

@implementation NSArray (SoftmetalSorting)
- (NSArray *)sortedArrayUsingComparator:(NSComparator)compare {
  NSUInteger count = [self count];
  id *objects = softmetal_allocate(2 * count * sizeof *objects);
  for (NSUInteger i = 0; i < count; i++) objects[i] = [self objectAtIndex:i];
  merge(objects, objects + count, count, compare);
  NSArray *sorted = [NSArray arrayWithObjects:objects count:count];
  free(objects);
  return sorted;
}
- (NSArray *)sortedArrayUsingSelector:(SEL)selector {
  return [self sortedArrayUsingComparator:by_message(selector)];
}
@end

@implementation NSMutableArray (SoftmetalSorting)
- (void)sortUsingComparator:(NSComparator)compare {
  NSArray *sorted = [self sortedArrayUsingComparator:compare];
  for (NSUInteger i = 0; i < [sorted count]; i++)
    [self replaceObjectAtIndex:i withObject:[sorted objectAtIndex:i]];
}
- (void)sortUsingSelector:(SEL)selector {
  [self sortUsingComparator:by_message(selector)];
}
@end
