/* Messages on aarch64: find the method, and jump to it with all argument registers as they were. */
#ifdef __aarch64__
.text

.macro function name
.globl \name
.type \name, %function
\name:
.cfi_startproc
.endm

.macro end
.cfi_endproc
.endm

.macro save_registers
  stp x29, x30, [sp, #-224]!
  mov x29, sp
  .cfi_remember_state
  .cfi_def_cfa x29, 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
.endm

.macro restore_registers
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x29, x30, [sp], #224
  .cfi_restore_state
.endm

function objc_msgSend
  cbz x0, .Lnil
  save_registers
  bl softmetal_cached
  cbnz x0, 1f
  ldp x0, x1, [sp, #16]
  bl softmetal_lookup
1:
  mov x16, x0
  restore_registers
  br x16
.Lnil:
  mov x1, #0
  movi d0, #0
  movi d1, #0
  movi d2, #0
  movi d3, #0
  ret
end

function objc_msgSendSuper2
  save_registers
  bl softmetal_super_lookup
  mov x16, x0
  restore_registers
  ldr x0, [x0]
  br x16
end

/* Methods that Python has: hands struct registers (messages.c) to softmetal_call. A
   large result has its address in x8. */
.macro forward large
  stp x29, x30, [sp, #-192]!
  mov x29, sp
  .cfi_def_cfa x29, 192
  .cfi_offset x29, -192
  .cfi_offset x30, -184
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  stp d0, d1, [sp, #80]
  stp d2, d3, [sp, #96]
  stp d4, d5, [sp, #112]
  stp d6, d7, [sp, #128]
  add x9, sp, #192
  stp x9, x8, [sp, #144]
  add x0, sp, #16
  add x1, sp, #160
  mov w2, #\large
.endm

.hidden softmetal_forward
function softmetal_forward
  forward 0
  bl softmetal_call
  ldp x0, x1, [sp, #160]
  ldr d0, [sp, #176]
  ldp x29, x30, [sp], #192
  ret
end

.hidden softmetal_forward_large
function softmetal_forward_large
  forward 1
  bl softmetal_call
  ldp x29, x30, [sp], #192
  ret
end

.section .note.GNU-stack, "", %progbits
#endif
