/* IOReport and the part of CoreFoundation that is used with it, with three samples of a chip. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE __attribute__((visibility("default")))

VISIBLE long living;  /* objects that were made and not released */
VISIBLE int refuses;  /* 1: no such group, 2: no subscription, 3: no samples */

typedef struct { char kind; char text[64]; int sample; } object;
typedef struct { const char *name, *unit; int64_t values[3]; } channel;
static const channel channels[] = {
    {"EACC_CPU0", "mJ", {900, 900, 900}}, /* of a core, which the sum has already */
    {"CPU Energy", "mJ", {1000, 1500, 2600}},
    {"GPU Energy", "nJ", {3000000000, 5000000000, 9000000000}},
    {"ANE0", "uJ ", {0, 250000, 500000}},
    {"DRAM0", "mJ", {100, 200, 300}},
    {"DISP", "mJ", {5, 50, 500}},
    {"GPU Energy", "C", {7, 7, 7}}, /* of a unit that is not known */
};
enum { COUNT = sizeof channels / sizeof *channels };
static int taken;

static object *make(char kind) {
  object *made = calloc(1, sizeof *made);
  made->kind = kind;
  living++;
  return made;
}

static void check(int right, const char *what) {
  if (right) return;
  fprintf(stderr, "wrong call: %s\n", what);
  abort();
}

VISIBLE void *CFStringCreateWithCString(void *allocator, const char *text, uint32_t encoding) {
  check(!allocator && encoding == 0x08000100, "CFStringCreateWithCString");
  object *made = make('s');
  strcpy(made->text, text);
  return made;
}

VISIBLE unsigned char CFStringGetCString(object *string, char *to, long size, uint32_t encoding) {
  check(string->kind == 's' && encoding == 0x08000100, "CFStringGetCString");
  if ((long)strlen(string->text) >= size) return 0;
  strcpy(to, string->text);
  return 1;
}

VISIBLE void CFRelease(object *given) {
  check(given != NULL, "CFRelease");
  living--;
  free(given);
}

VISIBLE void *CFDictionaryGetValue(object *samples, object *key) {
  check(samples->kind == 'd' && !strcmp(key->text, "IOReportChannels"), "CFDictionaryGetValue");
  return samples;
}

VISIBLE long CFArrayGetCount(object *samples) { return samples->kind == 'd' ? COUNT : -1; }

/* A channel is its number and that of the sample. */
VISIBLE void *CFArrayGetValueAtIndex(object *samples, long index) {
  return (void *)(uintptr_t)(0x1000 + index * 8 + samples->sample);
}

static const channel *of(void *given, int *sample) {
  uintptr_t number = (uintptr_t)given - 0x1000;
  *sample = number % 8;
  return &channels[number / 8];
}

VISIBLE void *IOReportCopyChannelsInGroup(object *group, void *b, uint64_t c, uint64_t d, uint64_t e) {
  check(!b && !c && !d && !e, "IOReportCopyChannelsInGroup");
  return strcmp(group->text, "Energy Model") || refuses == 1 ? NULL : make('c');
}

VISIBLE void *IOReportCreateSubscription(void *a, object *wanted, void **found, uint64_t d, void *e) {
  check(!a && wanted->kind == 'c' && !d && !e, "IOReportCreateSubscription");
  if (refuses == 2) return NULL;
  *found = make('f');
  return make('u');
}

VISIBLE void *IOReportCreateSamples(object *subscription, object *found, void *c) {
  check(subscription->kind == 'u' && found->kind == 'f' && !c, "IOReportCreateSamples");
  if (refuses == 3) return NULL;
  object *made = make('d');
  made->sample = taken++ % 3;
  return made;
}

static void *shown(const char *text) { /* owned by the channel */
  static object strings[64];
  static int used;
  object *made = &strings[used++ % 64];
  made->kind = 's';
  strcpy(made->text, text);
  return made;
}

VISIBLE void *IOReportChannelGetChannelName(void *given) {
  int sample;
  return shown(of(given, &sample)->name);
}

VISIBLE void *IOReportChannelGetUnitLabel(void *given) {
  int sample;
  return shown(of(given, &sample)->unit);
}

VISIBLE int64_t IOReportSimpleGetIntegerValue(void *given, int32_t b) {
  int sample;
  const channel *found = of(given, &sample);
  check(!b, "IOReportSimpleGetIntegerValue");
  return found->values[sample];
}
