/* Messages on x86-64: find the method, and jump to it with all argument registers as they were. */
#ifdef __x86_64__
.text

.macro function name
.globl \name
.type \name, @function
\name:
.cfi_startproc
.endm

.macro end
.cfi_endproc
.endm

.macro save_integers /* leaves the stack aligned */
  push %rdi
  .cfi_adjust_cfa_offset 8
  push %rsi
  .cfi_adjust_cfa_offset 8
  push %rdx
  .cfi_adjust_cfa_offset 8
  push %rcx
  .cfi_adjust_cfa_offset 8
  push %r8
  .cfi_adjust_cfa_offset 8
  push %r9
  .cfi_adjust_cfa_offset 8
  push %rax
  .cfi_adjust_cfa_offset 8
.endm

.macro restore_integers
  pop %rax
  .cfi_adjust_cfa_offset -8
  pop %r9
  .cfi_adjust_cfa_offset -8
  pop %r8
  .cfi_adjust_cfa_offset -8
  pop %rcx
  .cfi_adjust_cfa_offset -8
  pop %rdx
  .cfi_adjust_cfa_offset -8
  pop %rsi
  .cfi_adjust_cfa_offset -8
  pop %rdi
  .cfi_adjust_cfa_offset -8
.endm

.macro save_reals
  sub $128, %rsp
  .cfi_adjust_cfa_offset 128
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
.endm

.macro restore_reals
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  add $128, %rsp
  .cfi_adjust_cfa_offset -128
.endm

function objc_msgSend
.Lsend:
  test %rdi, %rdi
  je .Lnil
  save_integers
  call softmetal_cached
  test %rax, %rax
  jne 1f
  mov 48(%rsp), %rdi
  mov 40(%rsp), %rsi
  save_reals
  call softmetal_lookup
  restore_reals
1:
  mov %rax, %r11
  restore_integers
  jmp *%r11
.Lnil:
  xor %eax, %eax
  xor %edx, %edx
  xorps %xmm0, %xmm0
  xorps %xmm1, %xmm1
  ret
end

/* Results of the x87 unit: one, and the two of a complex number. */
function objc_msgSend_fpret
  test %rdi, %rdi
  jne .Lsend
  fldz
  jmp .Lnil
end

function objc_msgSend_fp2ret
  test %rdi, %rdi
  jne .Lsend
  fldz
  fldz
  jmp .Lnil
end

/* The address of a large result comes first. */
function objc_msgSend_stret
  test %rsi, %rsi
  je .Lnil_stret
  save_integers
  mov %rsi, %rdi
  mov %rdx, %rsi
  call softmetal_cached
  test %rax, %rax
  jne 1f
  mov 40(%rsp), %rdi
  mov 32(%rsp), %rsi
  save_reals
  call softmetal_lookup
  restore_reals
1:
  mov %rax, %r11
  restore_integers
  jmp *%r11
.Lnil_stret:
  mov %rdi, %rax
  ret
end

function objc_msgSendSuper2
  save_integers
  save_reals
  call softmetal_super_lookup
  restore_reals
  mov %rax, %r11
  restore_integers
  mov (%rdi), %rdi
  jmp *%r11
end

function objc_msgSendSuper2_stret
  save_integers
  mov %rsi, %rdi
  mov %rdx, %rsi
  save_reals
  call softmetal_super_lookup
  restore_reals
  mov %rax, %r11
  restore_integers
  mov (%rsi), %rsi
  jmp *%r11
end

/* Methods that Python has: hands struct registers (messages.c) to softmetal_call. */
.macro forward large
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  sub $160, %rsp
  mov %rdi, (%rsp)
  mov %rsi, 8(%rsp)
  mov %rdx, 16(%rsp)
  mov %rcx, 24(%rsp)
  mov %r8, 32(%rsp)
  mov %r9, 40(%rsp)
  movsd %xmm0, 48(%rsp)
  movsd %xmm1, 56(%rsp)
  movsd %xmm2, 64(%rsp)
  movsd %xmm3, 72(%rsp)
  movsd %xmm4, 80(%rsp)
  movsd %xmm5, 88(%rsp)
  movsd %xmm6, 96(%rsp)
  movsd %xmm7, 104(%rsp)
  lea 16(%rbp), %rax
  mov %rax, 112(%rsp)
  mov %rsp, %rdi
  lea 120(%rsp), %rsi
  mov $\large, %edx
  call softmetal_call
.endm

.hidden softmetal_forward
function softmetal_forward
  forward 0
  mov 120(%rsp), %rax
  mov 128(%rsp), %rdx
  movsd 136(%rsp), %xmm0
  leave
  .cfi_def_cfa %rsp, 8
  ret
end

.hidden softmetal_forward_large
function softmetal_forward_large
  forward 1
  mov (%rsp), %rax
  leave
  .cfi_def_cfa %rsp, 8
  ret
end

.section .note.GNU-stack, "", @progbits
#endif
