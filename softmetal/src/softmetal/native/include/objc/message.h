/* Messages. The functions are declared without arguments: cast them to a method's type. */
#pragma once

#include <objc/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

struct objc_super {
  id receiver;
  Class super_class;
};

void objc_msgSend(void);
void objc_msgSendSuper2(void);
#ifdef __x86_64__
void objc_msgSend_stret(void);
void objc_msgSend_fpret(void);
void objc_msgSend_fp2ret(void);
void objc_msgSendSuper2_stret(void);
#endif

#ifdef __cplusplus
}
#endif
