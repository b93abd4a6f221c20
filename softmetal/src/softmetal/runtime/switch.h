/* Switching between stacks: save what the ABI says a callee keeps, swap the stack, return.

   sm_switch returns by an indirect jump: `ret` would be predicted to return into the fiber that is
   left, whose last call is another one than that of the fiber that continues. */
#ifndef SOFTMETAL_SWITCH_H
#define SOFTMETAL_SWITCH_H

/* Stores the present stack pointer in *save and continues where `load` was stored. */
void sm_switch(void **save, void *load) __attribute__((visibility("hidden")));

/* Calls a function on the stack that ends at `top`. When it returns, everything is restored from
   sm_home: the function may have overwritten its stack, and so the registers that it restored. */
void sm_call_on(void *top, void (*function)(void)) __attribute__((visibility("hidden")));
extern _Thread_local void *sm_home
    __attribute__((visibility("hidden"), tls_model("initial-exec")));

#if defined(__x86_64__)

enum { SM_FRAME_WORDS = 8, SM_FRAME_RETURN = 6 }; /* six registers, return address, padding */

#define SM_SAVE \
  "  pushq %rbp\n" \
  "  pushq %rbx\n" \
  "  pushq %r12\n" \
  "  pushq %r13\n" \
  "  pushq %r14\n" \
  "  pushq %r15\n"
#define SM_RESTORE \
  "  popq %r15\n" \
  "  popq %r14\n" \
  "  popq %r13\n" \
  "  popq %r12\n" \
  "  popq %rbx\n" \
  "  popq %rbp\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sm_switch\n"
        ".hidden sm_switch\n"
        ".type sm_switch, @function\n"
        "sm_switch:\n"
        SM_SAVE
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        SM_RESTORE
        "  popq %rcx\n"
        "  jmpq *%rcx\n"
        ".size sm_switch, . - sm_switch\n"
        ".p2align 4\n"
        ".globl sm_call_on\n"
        ".hidden sm_call_on\n"
        ".type sm_call_on, @function\n"
        "sm_call_on:\n"
        SM_SAVE
        "  movq sm_home@gottpoff(%rip), %rax\n"
        "  movq %rsp, %fs:(%rax)\n"
        "  movq %rdi, %rsp\n"
        "  callq *%rsi\n"
        "  movq sm_home@gottpoff(%rip), %rax\n"
        "  movq %fs:(%rax), %rsp\n"
        SM_RESTORE
        "  retq\n"
        ".size sm_call_on, . - sm_call_on\n");

#elif defined(__aarch64__)

enum { SM_FRAME_WORDS = 20, SM_FRAME_RETURN = 11 }; /* x19 to x30, d8 to d15 */

#define SM_SAVE \
  "  sub sp, sp, #160\n" \
  "  stp x19, x20, [sp, #0]\n" \
  "  stp x21, x22, [sp, #16]\n" \
  "  stp x23, x24, [sp, #32]\n" \
  "  stp x25, x26, [sp, #48]\n" \
  "  stp x27, x28, [sp, #64]\n" \
  "  stp x29, x30, [sp, #80]\n" \
  "  stp d8, d9, [sp, #96]\n" \
  "  stp d10, d11, [sp, #112]\n" \
  "  stp d12, d13, [sp, #128]\n" \
  "  stp d14, d15, [sp, #144]\n"
#define SM_RESTORE \
  "  ldp x19, x20, [sp, #0]\n" \
  "  ldp x21, x22, [sp, #16]\n" \
  "  ldp x23, x24, [sp, #32]\n" \
  "  ldp x25, x26, [sp, #48]\n" \
  "  ldp x27, x28, [sp, #64]\n" \
  "  ldp x29, x30, [sp, #80]\n" \
  "  ldp d8, d9, [sp, #96]\n" \
  "  ldp d10, d11, [sp, #112]\n" \
  "  ldp d12, d13, [sp, #128]\n" \
  "  ldp d14, d15, [sp, #144]\n" \
  "  add sp, sp, #160\n"

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sm_switch\n"
        ".hidden sm_switch\n"
        ".type sm_switch, %function\n"
        "sm_switch:\n"
        SM_SAVE
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        SM_RESTORE
        "  br x30\n"
        ".size sm_switch, . - sm_switch\n"
        ".p2align 4\n"
        ".globl sm_call_on\n"
        ".hidden sm_call_on\n"
        ".type sm_call_on, %function\n"
        "sm_call_on:\n"
        SM_SAVE
        "  mrs x9, tpidr_el0\n"
        "  adrp x10, :gottprel:sm_home\n"
        "  ldr x10, [x10, #:gottprel_lo12:sm_home]\n"
        "  mov x11, sp\n"
        "  str x11, [x9, x10]\n"
        "  mov sp, x0\n"
        "  blr x1\n"
        "  mrs x9, tpidr_el0\n"
        "  adrp x10, :gottprel:sm_home\n"
        "  ldr x10, [x10, #:gottprel_lo12:sm_home]\n"
        "  ldr x11, [x9, x10]\n"
        "  mov sp, x11\n"
        SM_RESTORE
        "  ret\n"
        ".size sm_call_on, . - sm_call_on\n");

#else
#error "no fiber switch for this architecture"
#endif
#endif
