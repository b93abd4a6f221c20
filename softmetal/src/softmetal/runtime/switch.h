/* Switching between fibers: save what the ABI says a callee keeps, swap the stack, return.

   The return is an indirect jump: `ret` would be predicted to return into the fiber that is left,
   whose last call is another one than that of the fiber that continues. */
#ifndef SOFTMETAL_SWITCH_H
#define SOFTMETAL_SWITCH_H

/* Stores the present stack pointer in *save and continues where `load` was stored. */
void sm_switch(void **save, void *load) __attribute__((visibility("hidden")));

#if defined(__x86_64__)

enum { SM_FRAME_WORDS = 8, SM_FRAME_RETURN = 6 }; /* six registers, return address, padding */

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sm_switch\n"
        ".hidden sm_switch\n"
        ".type sm_switch, @function\n"
        "sm_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  popq %rcx\n"
        "  jmpq *%rcx\n"
        ".size sm_switch, . - sm_switch\n");

#elif defined(__aarch64__)

enum { SM_FRAME_WORDS = 20, SM_FRAME_RETURN = 11 }; /* x19 to x30, d8 to d15 */

__asm__(".text\n"
        ".p2align 4\n"
        ".globl sm_switch\n"
        ".hidden sm_switch\n"
        ".type sm_switch, %function\n"
        "sm_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  br x30\n"
        ".size sm_switch, . - sm_switch\n");

#else
#error "no fiber switch for this architecture"
#endif
#endif
