/* Functions of the Objective-C runtime. */
#pragma once

#include <objc/objc.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct objc_method *Method;
#ifdef __OBJC__
@class Protocol;
#else
typedef struct objc_object Protocol;
#endif

SEL sel_registerName(const char *name);
SEL sel_getUid(const char *name);
const char *sel_getName(SEL selector);
BOOL sel_isEqual(SEL a, SEL b);

Class objc_getClass(const char *name);
Class objc_lookUpClass(const char *name);
Class objc_getRequiredClass(const char *name);
Class objc_getMetaClass(const char *name);
Protocol *objc_getProtocol(const char *name);
Class objc_allocateClassPair(Class superclass, const char *name, size_t extra);
void objc_registerClassPair(Class made);

Class object_getClass(id object);
const char *object_getClassName(id object);
BOOL object_isClass(id object);
const char *class_getName(Class class_);
Class class_getSuperclass(Class class_);
BOOL class_isMetaClass(Class class_);
size_t class_getInstanceSize(Class class_);
Method class_getInstanceMethod(Class class_, SEL selector);
Method class_getClassMethod(Class class_, SEL selector);
IMP class_getMethodImplementation(Class class_, SEL selector);
BOOL class_respondsToSelector(Class class_, SEL selector);
BOOL class_conformsToProtocol(Class class_, Protocol *protocol);
BOOL class_addMethod(Class class_, SEL selector, IMP function, const char *types);
IMP class_replaceMethod(Class class_, SEL selector, IMP function, const char *types);
IMP method_getImplementation(Method method);
SEL method_getName(Method method);

typedef uintptr_t objc_AssociationPolicy;
enum {
  OBJC_ASSOCIATION_ASSIGN = 0,
  OBJC_ASSOCIATION_RETAIN_NONATOMIC = 1,
  OBJC_ASSOCIATION_COPY_NONATOMIC = 3,
  OBJC_ASSOCIATION_RETAIN = 01401,
  OBJC_ASSOCIATION_COPY = 01403
};
void objc_setAssociatedObject(id owner, const void *key, id value, objc_AssociationPolicy policy);
id objc_getAssociatedObject(id owner, const void *key);
void objc_removeAssociatedObjects(id owner);

void *objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void *pool);

#ifdef __cplusplus
}
#endif
