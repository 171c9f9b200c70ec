// Switching between stacks. ucontext's switch asks the kernel for the signal mask each time, which
// takes most of an emulation's time; so there is one of our own where that is easy.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

namespace emu {

#ifdef __x86_64__

struct Context {
  void* top;
};

extern "C" void emu_switch(void** from, void* to);
asm(R"(
.text
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, . - emu_switch
)");

inline void switch_context(Context* from, Context* to) { emu_switch(&from->top, to->top); }

// Six registers to restore, then where to go, so that the stack stands as after a call.
inline void make_context(Context* made, char* stack, size_t size, void (*begin)()) {
  uintptr_t* top = reinterpret_cast<uintptr_t*>(stack + size) - 2;
  *top = reinterpret_cast<uintptr_t>(begin);
  for (int i = 0; i < 6; ++i) *--top = 0;
  made->top = top;
}

#else

typedef ucontext_t Context;

inline void switch_context(Context* from, Context* to) { swapcontext(from, to); }

inline void make_context(Context* made, char* stack, size_t size, void (*begin)()) {
  getcontext(made);
  made->uc_stack.ss_sp = stack;
  made->uc_stack.ss_size = size;
  made->uc_link = nullptr;
  makecontext(made, begin, 0);
}

#endif

}  // namespace emu
