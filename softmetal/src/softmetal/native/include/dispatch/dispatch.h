/* The part of libdispatch that Metal programs use. */
#pragma once

#include <objc/objc.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef void (*dispatch_function_t)(void *);
#ifdef __BLOCKS__
typedef void (^dispatch_block_t)(void);
#endif

#ifdef __OBJC__
#import <Foundation/NSObject.h>
#define SOFTMETAL_DISPATCH_TYPE(name)  \
  @protocol OS_##name <NSObject>       \
  @end                                 \
  typedef NSObject<OS_##name> *name##_t
#else
#define SOFTMETAL_DISPATCH_TYPE(name) typedef struct name##_s *name##_t
#endif
SOFTMETAL_DISPATCH_TYPE(dispatch_queue);
SOFTMETAL_DISPATCH_TYPE(dispatch_group);
SOFTMETAL_DISPATCH_TYPE(dispatch_semaphore);
SOFTMETAL_DISPATCH_TYPE(dispatch_data);
#ifdef __OBJC__
typedef id dispatch_object_t;
#else
typedef void *dispatch_object_t;
#endif
typedef dispatch_object_t dispatch_queue_attr_t;

typedef uint64_t dispatch_time_t;
typedef intptr_t dispatch_once_t;
typedef long dispatch_qos_class_t;
typedef dispatch_queue_t dispatch_queue_global_t, dispatch_queue_serial_t, dispatch_queue_main_t;

#define DISPATCH_TIME_NOW ((dispatch_time_t)0)
#define DISPATCH_TIME_FOREVER (~(dispatch_time_t)0)
#define NSEC_PER_SEC 1000000000ull
#define NSEC_PER_MSEC 1000000ull
#define NSEC_PER_USEC 1000ull
#define USEC_PER_SEC 1000000ull

#define QOS_CLASS_USER_INTERACTIVE 0x21
#define QOS_CLASS_USER_INITIATED 0x19
#define QOS_CLASS_DEFAULT 0x15
#define QOS_CLASS_UTILITY 0x11
#define QOS_CLASS_BACKGROUND 0x09
#define DISPATCH_QUEUE_PRIORITY_HIGH 2
#define DISPATCH_QUEUE_PRIORITY_DEFAULT 0
#define DISPATCH_QUEUE_PRIORITY_LOW (-2)
#define DISPATCH_QUEUE_PRIORITY_BACKGROUND (-32768)

#ifdef __cplusplus
extern "C" {
#endif

extern char _dispatch_queue_attr_concurrent[];
#define DISPATCH_QUEUE_SERIAL ((dispatch_queue_attr_t)0)
#ifdef __OBJC__
#if __has_feature(objc_arc)
#define DISPATCH_QUEUE_CONCURRENT \
  ((__bridge dispatch_queue_attr_t)(void *)_dispatch_queue_attr_concurrent)
#else
#define DISPATCH_QUEUE_CONCURRENT ((dispatch_queue_attr_t)(void *)_dispatch_queue_attr_concurrent)
#endif
#else
#define DISPATCH_QUEUE_CONCURRENT ((dispatch_queue_attr_t)_dispatch_queue_attr_concurrent)
#endif

#ifdef __OBJC__
#define SOFTMETAL_OWNED __attribute__((ns_returns_retained))
#else
#define SOFTMETAL_OWNED
#endif

dispatch_queue_t dispatch_queue_create(const char *label,
                                       dispatch_queue_attr_t attributes) SOFTMETAL_OWNED;
dispatch_queue_attr_t dispatch_queue_attr_make_with_qos_class(dispatch_queue_attr_t attributes,
                                                              dispatch_qos_class_t class_,
                                                              int priority);
dispatch_queue_t dispatch_get_global_queue(intptr_t identifier, uintptr_t flags);
dispatch_queue_t dispatch_get_main_queue(void);
void dispatch_async_f(dispatch_queue_t queue, void *context, dispatch_function_t work);
void dispatch_sync_f(dispatch_queue_t queue, void *context, dispatch_function_t work);

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value) SOFTMETAL_OWNED;
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);

dispatch_group_t dispatch_group_create(void) SOFTMETAL_OWNED;
void dispatch_group_enter(dispatch_group_t group);
void dispatch_group_leave(dispatch_group_t group);
intptr_t dispatch_group_wait(dispatch_group_t group, dispatch_time_t timeout);

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds);
size_t dispatch_data_get_size(dispatch_data_t data);

#if !defined(__OBJC__) || !__has_feature(objc_arc)
void dispatch_retain(dispatch_object_t object);
void dispatch_release(dispatch_object_t object);
#endif

#ifdef __BLOCKS__
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0)
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_barrier_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_barrier_sync(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_apply(size_t iterations, dispatch_queue_t queue, void (^block)(size_t));
void dispatch_once(dispatch_once_t *predicate, dispatch_block_t block);
void dispatch_after(dispatch_time_t when, dispatch_queue_t queue, dispatch_block_t block);
void dispatch_group_async(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block);
void dispatch_group_notify(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block);
dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor) SOFTMETAL_OWNED;
#endif

#ifdef __cplusplus
}
#endif
